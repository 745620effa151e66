"""The embedded runtime with its kubelet, held against recordings of real ones.

A recording (tools/record_kubelet.py) is of a kubelet with cgroup v1 and the cgroupfs driver, beside
a containerd that lowers no OOM score.
"""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from nri_policy.foundation.cpuset import CPUSet
from nri_policy.kubelet.runtime_requests import Kubelet
from nri_policy.manifests.resources import ResourceChange, read_part
from nri_policy.simulation.embedded import EmbeddedRuntime
from tests.support.nri_events import Event, described, of_pod
from tests.unit.simulation.scripted import ScriptedPlugin

FOLDER = Path(__file__).parent
STEPS = yaml.safe_load((FOLDER / "kubelet_steps.yaml").read_text())
RECORDED = {
    each.stem.removeprefix("kubelet-"): json.loads(each.read_text())
    for each in FOLDER.glob("kubelet-*.json")
}
PODS = [step["start"]["metadata"]["name"] for step in STEPS if "start" in step]
EVERYTHING = 0x1FFF

# What the model leaves out: files and variables that every container gets, paths of namespaces, and
# what comes from the image, the OCI runtime, the network plugin and the host's cgroup version.
NOT_MODELLED = {
    "args",
    "devices",
    "env",
    "hugepageLimits",
    "image",
    "io.kubernetes.cri.podsandbox.image-name",
    "ips",
    "mounts",
    "oci_runtime_type",
    "oomScoreAdj",
    "path",
    "pid",
    "seccompProfile",
    "unified",
    "user",
}


def modelled(value: Any) -> Any:
    """Return what the model has of *value* too; nothing is left of what has nothing else."""
    if isinstance(value, dict):
        parts = {key: modelled(each) for key, each in value.items() if key not in NOT_MODELLED}
        return {key: each for key, each in parts.items() if each != {}}
    return [modelled(each) for each in value] if isinstance(value, list) else value


async def played(folder: Path, version: str) -> list[Event]:
    """Return what containerd tells a plugin when the same steps are played here."""
    runtime = EmbeddedRuntime(
        folder / "nri.sock",
        online_cpus=CPUSet.parse("0-7"),
        memory_nodes=CPUSet.parse("0-1"),
        version=version,
        kubelet=Kubelet(cgroup_driver="cgroupfs"),
    )
    async with runtime, ScriptedPlugin(runtime.socket_path, events=EVERYTHING) as plugin:
        await plugin.saw("Synchronize")
        for step in STEPS:
            match step:
                case {"start": manifest}:
                    spec = {**manifest["spec"], "terminationGracePeriodSeconds": 1}
                    head = {"apiVersion": "v1", "kind": "Pod"}
                    await runtime.start_pod({**head, **manifest, "spec": spec})
                case {"resize": {"pod": name, "containers": containers}}:
                    changes = {
                        each: read_part(amounts, ResourceChange)
                        for each, amounts in containers.items()
                    }
                    await runtime.resize_together(runtime.pod(name), changes)
                case {"delete": name}:
                    await runtime.delete_pod(runtime.pod(name))
                case _:
                    raise AssertionError(step)
        await runtime.settled()
        return described(plugin.seen)


def calls(events: list[Event]) -> list[tuple[str, str]]:
    """Return the calls in order; the end of a short container may come before its start's.

    Scenarios have an init container removed at its end, the kubelet with its pod.
    """
    found = [(event["event"], event.get("container", "")) for event in events]
    found = [each for each in found if each != ("RemoveContainer", "first")]
    for at, (first, second) in enumerate(pairwise(found)):
        if first[0] == "StopContainer" and second == ("PostStartContainer", first[1]):
            found[at : at + 2] = second, first
    return found


@pytest.mark.parametrize("release", RECORDED)
@pytest.mark.parametrize("pod", PODS)
async def test_what_is_said_of_a_pod_and_its_containers_is_what_a_real_kubelet_says(
    pod: str, release: str, tmp_path: Path
) -> None:
    about = {"RunPodSandbox", "CreateContainer", "UpdateContainer", "UpdatePodSandbox"}
    recorded = RECORDED[release]
    theirs, ours = (
        [modelled(event) for event in of_pod(events, pod) if event["event"] in about]
        for events in (recorded["events"], await played(tmp_path, recorded["containerd"]))
    )
    assert ours == theirs


@pytest.mark.parametrize("release", RECORDED)
@pytest.mark.parametrize("pod", PODS)
async def test_it_is_said_in_the_order_of_a_real_kubelet(
    pod: str, release: str, tmp_path: Path
) -> None:
    recorded = RECORDED[release]
    ours = await played(tmp_path, recorded["containerd"])
    assert calls(of_pod(ours, pod)) == calls(of_pod(recorded["events"], pod))
