"""Manifests of pods that might come."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from msgspec.structs import replace

from nri_policy.dra.hypothetical import allocator
from nri_policy.kubelet.manifest_pods import MAX_TEXT, ContainerFactory, parse_manifests
from nri_policy.kubelet.runtime_requests import Kubelet
from nri_policy.manifests.quality_of_service import QoS
from nri_policy.plugin.convert import container_of
from nri_policy.workload.requirements import Requirements
from tests.support.daemon import pod

FACTORY = ContainerFactory(
    kubelet=Kubelet(), convert=container_of, exact=False, allocator=allocator
)
TEMPLATE: dict[str, Any] = {key: pod("template", "2")[key] for key in ("metadata", "spec")}


def owner(kind: str, version: str, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": version,
        "kind": kind,
        "metadata": {"name": "web", "namespace": "prod"},
        "spec": {"template": TEMPLATE, **spec},
    }


def counted(*documents: object, replicas: int = 0) -> dict[str, int]:
    text = "\n---\n".join(map(json.dumps, documents))
    pods = parse_manifests(text, replicas, FACTORY).pods
    return {f"{each.namespace}/{each.name}": each.replicas for each in pods}


def test_a_pod_is_what_a_runtime_would_tell_a_plugin() -> None:
    manifest = pod("new", "1500m", annotations={"a": "b"})
    manifest["metadata"]["labels"] = {"app": "x"}
    manifest["spec"]["initContainers"] = [
        {"name": "init"},
        {"name": "side", "restartPolicy": "Always"},
    ]
    (wanted,) = parse_manifests(json.dumps(manifest), 0, FACTORY).pods
    starts = wanted.starts("other-name")
    assert [(each.container.name, each.init, each.to_end) for each in starts] == [
        ("init", True, True),
        ("side", True, False),
        ("main", False, False),
    ]
    main = starts[-1].container
    assert main.full_name == "default/other-name/main"
    assert (main.resources.cpu_request, main.resources.cpu_limit) == (1500, 1500)
    assert main.pod.qos is QoS.BURSTABLE, "its init containers ask for nothing"
    assert (main.pod.labels["app"], main.pod.annotations["a"]) == ("x", "b")
    assert len({each.container.id for each in starts}) == 3
    assert main.pod.id != wanted.starts("third")[0].container.pod.id


@pytest.mark.parametrize(
    ("kind", "version", "spec", "count"),
    [
        ("Deployment", "apps/v1", {"replicas": 3}, 3),
        ("Deployment", "apps/v1", {}, 1),
        ("StatefulSet", "apps/v1", {"replicas": 0}, 0),
        ("ReplicaSet", "apps/v1", {"replicas": 2}, 2),
        ("DaemonSet", "apps/v1", {}, 1),
        ("Job", "batch/v1", {"parallelism": 4}, 4),
        ("Job", "batch/v1", {"parallelism": 4, "completions": 2}, 2),
    ],
)
def test_what_has_a_template_makes_pods_of_its_own_name(
    kind: str, version: str, spec: dict[str, Any], count: int
) -> None:
    assert counted(owner(kind, version, **spec)) == {"prod/web": count}
    assert counted(owner(kind, version, **spec), replicas=7) == {"prod/web": 7}


def test_a_cron_job_makes_the_pods_of_one_run() -> None:
    job = owner("Job", "batch/v1", parallelism=4)["spec"]
    nightly = owner("CronJob", "batch/v1", schedule="0 3 * * *", jobTemplate={"spec": job})
    assert counted(nightly) == {"prod/web": 4}
    nightly["spec"]["jobTemplate"]["spec"]["parallelism"] = "x"
    with pytest.raises(
        ValueError, match=r"^spec\.jobTemplate\.spec\.parallelism: 'x' is not a num"
    ):
        counted(nightly)


def test_lists_and_several_documents_are_read_in_order() -> None:
    listed = {"apiVersion": "v1", "kind": "List", "items": [pod("a"), owner("Job", "batch/v1")]}
    assert [*counted(pod("z"), listed, None, pod("b"))] == [
        "default/z",
        "default/a",
        "prod/web",
        "default/b",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "it has no manifest"),
        ("- a", "a list of steps is a scenario, which `nri-policy simulate` plays"),
        (
            "{kind: Service}",
            "kind: 'Service' does not create pods; these do: Pod, List, Deployment",
        ),
        ("{metadata: {name: web}}", "add apiVersion and kind: of a pod, `apiVersion: v1`"),
        ("{kind: [a]}", "kind: a list (1 entry) does not create pods"),
        ("{kind: List}", "items: null is not a list"),
        ("{kind: Deployment, apiVersion: v1}", "apiVersion: 'v1' is not apps/v1"),
        ("{kind: Deployment, apiVersion: apps/v1}", "metadata: null is not a map"),
        (json.dumps(owner("Deployment", "apps/v1", replicas=-1)), "spec.replicas: -1 is not"),
        (
            json.dumps(owner("Job", "batch/v1", paralelism=2)),
            "spec.paralelism: no such field; did you mean 'parallelism'?",
        ),
        (json.dumps(owner("Deployment", "apps/v1", replicas=True)), "spec.replicas: true is not"),
        (json.dumps(owner("Deployment", "apps/v1", template=3)), "template: 3 is not a map"),
        (
            json.dumps(owner("Deployment", "apps/v1", template={**TEMPLATE, "metadata": "x"})),
            "spec.template.metadata: 'x' is not a map",
        ),
        (json.dumps(owner("Deployment", "apps/v1", replicas=1001)), "1001 containers are too many"),
        (json.dumps(pod("new", "much")), "cpu: 'much'"),
        ("#" * (MAX_TEXT + 1), "the text is longer than"),
    ],
)
def test_a_manifest_that_makes_no_sense_names_the_field(text: str, message: str) -> None:
    with pytest.raises(ValueError) as error:  # noqa: PT011 - the text is compared below
        parse_manifests(text, 0, FACTORY)
    assert message in str(error.value)


def test_devices_of_plugins_are_counted_for_a_pod() -> None:
    manifest = pod("train", "2")
    limits = manifest["spec"]["containers"][0]["resources"]["limits"]
    limits["nvidia.com/gpu"] = 2
    limits["hugepages-2Mi"] = "2Mi"
    manifest["spec"]["initContainers"] = [
        {"name": "check", "resources": {"limits": {"nvidia.com/gpu": 3, "example.com/nic": 1}}},
        {
            "name": "side",
            "restartPolicy": "Always",
            "resources": {"limits": {"example.com/nic": 1}},
        },
    ]
    (wanted,) = parse_manifests(json.dumps(manifest), 0, FACTORY).pods
    assert wanted.devices == {"nvidia.com/gpu": 3, "example.com/nic": 1}


def test_where_the_node_would_read_the_pod_its_containers_ask_for_what_it_says() -> None:
    manifest = pod("new", "1500m")
    manifest["spec"]["resources"] = {"limits": {"cpu": 4, "memory": "1Gi"}}
    manifest["spec"]["containers"].append({"name": "log"})
    found = {}
    for exact in (False, True):
        (wanted,) = parse_manifests(json.dumps(manifest), 0, replace(FACTORY, exact=exact)).pods
        found[exact] = {each.container.name: each.container for each in wanted.starts("new")}
    assert found[True]["log"].requirements == Requirements()
    assert {each.pod_level for each in found[True].values()} == {True}
    assert {(each.requirements, each.pod_level) for each in found[False].values()} == {(None, None)}


def test_objects_that_create_no_pods_are_left_out_and_named_beside_others() -> None:
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}}
    items = {"kind": "List", "items": [service, {"kind": "ConfigMap"}, pod("web", "1")]}
    asked = parse_manifests(json.dumps(items), 0, FACTORY)
    assert [each.name for each in asked.pods] == ["web"]
    assert asked.notes == (
        "left out, because no pods of theirs are known here: ConfigMap, Service web",
    )
    assert parse_manifests(json.dumps(pod("web", "1")), 0, FACTORY).notes == ()


def test_a_mistyped_kind_is_not_left_out() -> None:
    items = {"kind": "List", "items": [pod("web", "1"), owner("Deploymnt", "apps/v1")]}
    wrong = "object 2: kind: 'Deploymnt' does not create pods; did you mean 'Deployment'?"
    with pytest.raises(ValueError, match=re.escape(wrong)):
        parse_manifests(json.dumps(items), 0, FACTORY)


def test_of_several_objects_the_one_without_a_name_is_numbered() -> None:
    nameless = pod("web", "1") | {"metadata": {}}
    documents = "\n---\n".join(map(json.dumps, (pod("web", "1"), {"kind": "Service"}, nameless)))
    with pytest.raises(ValueError, match=r"^object 3: metadata: name is missing$"):
        parse_manifests(documents, 0, FACTORY)


def test_every_object_that_is_wrong_is_named() -> None:
    few = [pod("a", "much"), pod("b", "1"), owner("Job", "batch/v2")]
    wrong = r"^object 1: pod 'a': .*'much'.*; object 3: apiVersion: 'batch/v2' is not batch/v1$"
    with pytest.raises(ValueError, match=wrong):
        parse_manifests("\n---\n".join(map(json.dumps, few)), 0, FACTORY)
    with pytest.raises(ValueError, match=r"object 5: add apiVersion and kind.*; and 2 more$"):
        parse_manifests("\n---\n".join(map(json.dumps, [{}] * 7)), 0, FACTORY)


def test_an_object_whose_name_the_api_server_makes_has_one_here() -> None:
    job = owner("Job", "batch/v1")
    job["metadata"] = {"generateName": "j-", "namespace": "prod"}
    alone = pod("web", "1") | {"metadata": {"generateName": "web-", "name": ""}}
    assert counted(job, alone) == {"prod/j-xxxxx": 1, "default/web-xxxxx": 1}
    with pytest.raises(ValueError, match=r"^object 2: .*metadata\.name: 'J-xxxxx' is not"):
        counted(alone, pod("web", "1") | {"metadata": {"generateName": "J-"}})


@pytest.mark.parametrize(
    ("kind", "spec", "ordinal"),
    [
        ("Deployment", {}, None),
        ("StatefulSet", {}, 0),
        ("StatefulSet", {"ordinals": {"start": 5}}, 5),
    ],
)
def test_the_pods_of_a_stateful_set_are_numbered_from_its_first_ordinal(
    kind: str, spec: dict[str, Any], ordinal: int | None
) -> None:
    (wanted,) = parse_manifests(json.dumps(owner(kind, "apps/v1", **spec)), 0, FACTORY).pods
    assert wanted.ordinal == ordinal


@pytest.mark.parametrize(
    ("kind", "version", "place"),
    [
        ("Deployment", "apps/v1", "spec.template"),
        ("CronJob", "batch/v1", "spec.jobTemplate.spec.template"),
    ],
)
def test_an_annotation_of_the_owner_instead_of_its_pods_is_noted(
    kind: str, version: str, place: str
) -> None:
    key = "full-cores.resource-policy.nri.io/pod"
    document = owner(kind, version)
    if kind == "CronJob":
        document["spec"] = {"jobTemplate": {"spec": document["spec"]}}
    document["metadata"]["annotations"] = {key: "true", "example.com/owner": "me"}
    (note,) = parse_manifests(json.dumps(document), 0, FACTORY).notes
    assert note == (
        f"{kind} web: annotations of its own metadata have no effect: {key};"
        f" they belong in {place}.metadata.annotations"
    )
    document["metadata"]["annotations"] = {"example.com/owner": "me"}
    assert parse_manifests(json.dumps(document), 0, FACTORY).notes == ()
