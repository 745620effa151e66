from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from nri_policy.foundation.cpuset import CPUSet
from nri_policy.simulation.device_manager import PluginDevice
from nri_policy.simulation.scenario import (
    Advance,
    Apply,
    ChangeSettings,
    Delete,
    Devices,
    Disks,
    Expect,
    HotplugStep,
    Resize,
    Restart,
    ScenarioError,
    read_scenario,
    read_step,
)
from tests.unit.simulation.scripted import pod

DOCUMENTED = """
- settings: {reservedResources: {cpu: 750m}}
- apply: [ {apiVersion: v1, kind: Pod, metadata: {name: pod0}, spec: {containers: [{name: c0}]}} ]
- apply: {file: pods.yaml}
- delete: [pod0, ns/pod1]
- resize: {pod: pod0, container: c0, resources: {requests: {cpu: 3}, limits: {cpu: 3}}}
- advance: 60s
- restart: daemon
- restart: runtime
- offline: "4-5"
- online: 4
- devices: {v.com/nic: [{id: n0, numa: 3, file: /dev/nic0}, {id: n1}], v.com/gpu: []}
- disks: {/: 0, /data: 3}
- expect: {pod0/c0: {cpus: "4-7", mems: 1, pool: "NUMA node #1"}, ns/pod1/c0: null}
"""


def workload(kind: str, name: str, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {"name": name},
        "spec": {"template": {"spec": pod()["spec"]}, **spec},
    }


def test_objects_that_create_pods_are_applied_as_their_pods(tmp_path: Path) -> None:
    objects = [
        workload("Deployment", "web", replicas=2),
        workload("StatefulSet", "db", replicas=2),
        {"apiVersion": "v1", "kind": "List", "items": [pod("one"), workload("DaemonSet", "agent")]},
    ]
    (tmp_path / "all.yaml").write_text("---\n".join(map(yaml.dump, objects)))
    for given in (objects, {"file": "all.yaml"}):
        step = read_step({"apply": given}, folder=tmp_path)
        assert isinstance(step, Apply)
        names = [each.metadata.name for each in step.pods]
        assert names == ["web-1", "web-2", "db-0", "db-1", "one", "agent"]


def test_the_documented_steps_are_read(tmp_path: Path) -> None:
    (tmp_path / "scenario.yaml").write_text(DOCUMENTED)
    (tmp_path / "pods.yaml").write_text("---\n".join(yaml.dump(pod(name)) for name in "ab"))
    settings, inline, from_file, *steps = read_scenario(tmp_path / "scenario.yaml")
    assert isinstance(settings, ChangeSettings)
    assert settings.spec == {"reservedResources": {"cpu": "750m"}}
    assert isinstance(inline, Apply)
    assert [p.key for p in inline.pods] == ["default/pod0"]
    assert isinstance(from_file, Apply)
    assert [p.key for p in from_file.pods] == ["default/a", "default/b"]
    assert isinstance(steps[1], Resize)
    assert steps[1].change.limits == {"cpu": 3000}
    assert [steps[0], *steps[2:]] == [
        Delete(names=("pod0", "ns/pod1")),
        Advance(seconds=60.0),
        Restart(what="daemon"),
        Restart(what="runtime"),
        HotplugStep(offline=CPUSet.parse("4-5"), online=CPUSet()),
        HotplugStep(offline=CPUSet(), online=CPUSet.parse("4")),
        Devices(
            devices={
                "v.com/nic": [
                    PluginDevice(id="n0", numa=3, file="/dev/nic0"),
                    PluginDevice(id="n1"),
                ],
                "v.com/gpu": [],
            }
        ),
        Disks(nodes={"/": 0, "/data": 3}),
        Expect(
            containers={
                "pod0/c0": {"cpus": "4-7", "mems": "1", "pool": "NUMA node #1"},
                "ns/pod1/c0": None,
            }
        ),
    ]


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (3, "a step is a map with one key, not 3"),
        ({"advance": "1s", "delete": []}, "a step is a map with one key, not a map (2 entries)"),
        ({"setings": {}}, "'setings' is not a step; did you mean 'settings'? (there are apply, "),
        ({1: {}}, "1 is not a step (there are"),
        ({"settings": []}, "settings: a list (0 entries) is not a map"),
        ({"apply": [3]}, "apply: [0]: a Pod manifest is a mapping, not 3"),
        (
            {"apply": [pod(), pod("pod1", requests={"cpu": "x"})]},
            "apply: [1]: pod 'pod1': spec.containers[0].resources.requests: cpu: 'x' is not",
        ),
        (
            {"apply": pod() | {"apiVersion": "batch/v1", "kind": "Job"}},
            "apply: template: null is not a map",
        ),
        (
            {"apply": workload("Deployment", "web", replicas=1001)},
            "apply: 1001 containers are too many; at most 1000",
        ),
        (
            {"apply": pod() | {"kind": "Service"}},
            "apply: kind: 'Service' does not create pods; these",
        ),
        ({"apply": {"file": "none.yaml"}}, "none.yaml: cannot be read: No such file"),
        ({"delete": [""]}, "delete: '' is not name or name/name or name/name/name"),
        ({"delete": ["a//b"]}, "delete: 'a//b' is not"),
        ({"resize": {"pod": "p"}}, "resize: needs container, pod, resources"),
        (
            {"resize": {"pod": "p", "container": "c", "resources": {"requests": {"cpu": "x"}}}},
            "resize: resources: requests: cpu: 'x' is not a CPU quantity",
        ),
        ({"advance": "soon"}, "advance: 'soon' is not a duration"),
        ({"advance": 60}, "advance: '60' is not a duration"),
        ({"restart": "kubelet"}, "restart: 'kubelet' is neither daemon nor runtime"),
        ({"offline": "3-1"}, "offline: bad CPU list '3-1'"),
        ({"online": True}, "online: true is not a list such as '0-3,8'"),
        ({"devices": {"nic": []}}, "devices: 'nic' is not a resource such as vendor.com/nic"),
        ({"devices": {"v.com/n": [{"numa": 1}]}}, "[0]: id is missing"),
        ({"devices": {"v.com/n": [{"id": "a", "node": 1}]}}, "unknown field node"),
        ({"devices": {"v.com/n": [{"id": "a", "numa": -1}]}}, "numa: -1 is not a NUMA node"),
        (
            {"devices": {"v.com/n": [{"id": "a", "numa": "1"}]}},
            "expected a whole number or null, got a string",
        ),
        ({"devices": {"v.com/n": [{"id": "a", "file": "nic"}]}}, "file: 'nic' is not a path"),
        ({"devices": {"v.com/n": [{"id": "a"}, {"id": "a"}]}}, "v.com/n: two devices have the id"),
        ({"claims": {"gpus": {"a": [{"driver": "d"}]}}}, "device is missing"),
        ({"claims": {"gpus": {"a": [{"driver": "d", "device": "x", "numa": -1}]}}}, "claims: "),
        ({"disks": {"data": 1}}, "disks: 'data' is not a mount point"),
        ({"disks": {"/data/": 1}}, "disks: '/data/' is not a mount point"),
        ({"disks": {"/a b": 1}}, "disks: '/a b' is not a mount point"),
        ({"disks": {"/data": -1}}, "expected a whole number of at least 0"),
        ({"disks": []}, "disks: a list (0 entries) is not a map"),
        ({"expect": {"pod0": {}}}, "expect: pod0: 'pod0' is not name/name or name/name/name"),
        ({"expect": {"error": 3}}, "expect: error: 3 is not a string"),
        (
            {"expect": {"pod0/c0": {"cpu": "1"}}},
            "pod0/c0: 'cpu' is not a field; did you mean 'cpus'?",
        ),
        ({"expect": {"pod0/c0": {"mems": "x"}}}, "pod0/c0: bad CPU list 'x'"),
    ],
)
def test_an_error_names_the_field(tmp_path: Path, step: Any, message: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        read_step(step, folder=tmp_path)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- expect: {a/b: &x {state: running}}\n-\n  apply: [*x]", "line 3: step 2: apply: [0]"),
        ("", "a scenario is one list of steps"),
        ("a: b", "a scenario is one list of steps"),
        ("3", "a scenario is one list of steps"),
        (
            "kind: Pod\n---\nkind: Pod",
            "one is expected, a list of steps; a step applies manifests, `- apply: {file: scenario",
        ),
        (
            "kind: Pod",
            "steps; this is a manifest: a step applies manifests, `- apply: {file: scenario.yaml}`",
        ),
        ("- apply: [{fil: pod.yaml}]", "apply: [0]: 'fil' is not a field; did you mean 'file'?"),
        ("- apply: [pod.yaml]", "'pod.yaml' is not a manifest; of a file write {file: NAME}"),
        ("[]\n---\n[]", "line 2, column 1: a second document starts here"),
        ("[", "line 2, column 1: "),
        ("- advance: 2026-99-99", "step 1: advance: '2026-99-99' is not a duration"),
        ("[" * 10_000, "nested more than"),
        ("- advance: \udcff", "the text is not UTF-8"),
        ("- advance: 1s\n- advance: 2\n", "line 2: step 2: advance: '2' is not a duration"),
        ("- apply:\n  - {kind: Pod}\n", "line 2: step 1: apply: [0]: "),
        ("- apply:\n    {kind: Pod}\n", "line 1: step 1: apply: "),
        ("- settings: {a: &a {apply: [{kind: Pod}]}}\n- *a\n", "line 2: step 2: apply: [0]: "),
        ("- advance: &a 1s\n- *a\n", "line 2: step 2: a step is a map"),
        ("- apply: {file: scenario.yaml}", "yaml: document 1: a manifest is a map, not a list"),
    ],
)
def test_an_error_names_file_and_step(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "scenario.yaml"
    path.write_text(text, errors="surrogateescape")
    with pytest.raises(ScenarioError) as caught:
        read_scenario(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert message in str(caught.value)


def test_a_file_without_an_end_is_not_read_to_it(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="/dev/zero: the text is longer than 1048576 bytes"):
        read_scenario(Path("/dev/zero"))
    step = {"apply": {"file": "/dev/zero"}}
    with pytest.raises(ScenarioError, match="/dev/zero: the text is longer than 1048576 bytes"):
        read_step(step, folder=tmp_path)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"none\.yaml: cannot be read: No such file"):
        read_scenario(tmp_path / "none.yaml")
