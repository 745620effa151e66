from __future__ import annotations

from typing import Any

import pytest

from nri_policy.kubelet import runtimespec
from nri_policy.kubelet.resize_steps import ContainerStep, list_resize_steps
from nri_policy.kubelet.runtime_requests import Kubelet, cpu_quota, cpu_shares
from nri_policy.manifests.pod import PodManifest, read_pod
from nri_policy.manifests.resources import Amounts, ResourceChange
from nri_policy.proto import nri_pb2 as nri

UID = "11111111-2222-3333-4444-555555555555"
SLICE_UID = UID.replace("-", "_")
GIB = 1 << 30
NODE = Kubelet(memory_capacity=100 * GIB)


def container(name: str, cpu: Any = None, memory: Any = None, **rest: Any) -> dict[str, Any]:
    """Return a container whose *cpu* and *memory* are (request, limit), None where not given."""
    resources: dict[str, dict[str, Any]] = {"requests": {}, "limits": {}}
    for resource, amounts in (("cpu", cpu), ("memory", memory)):
        for kind, amount in zip(("requests", "limits"), amounts or (None, None), strict=True):
            if amount is not None:
                resources[kind][resource] = amount
    return {"name": name, "resources": resources} | rest


def pod(*containers: dict[str, Any], **spec: Any) -> PodManifest:
    return read_pod(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "pod0", "uid": UID, "labels": {"app": "x"}},
            "spec": {"containers": list(containers)} | spec,
        }
    )


GUARANTEED = pod(container("c0", (1, 1), (GIB, GIB)))
BURSTABLE = pod(container("c0", (1, None)))
BEST_EFFORT = pod(container("c0"))


@pytest.mark.parametrize(
    ("manifest", "systemd", "cgroupfs"),
    [
        (
            GUARANTEED,
            f"/kubepods.slice/kubepods-pod{SLICE_UID}.slice",
            f"/kubepods/pod{UID}",
        ),
        (
            BURSTABLE,
            f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{SLICE_UID}.slice",
            f"/kubepods/burstable/pod{UID}",
        ),
        (
            BEST_EFFORT,
            f"/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{SLICE_UID}.slice",
            f"/kubepods/besteffort/pod{UID}",
        ),
    ],
)
def test_the_cgroup_parent_tells_the_quality_of_service(
    manifest: PodManifest, systemd: str, cgroupfs: str
) -> None:
    assert Kubelet().cgroup_parent(manifest) == systemd
    assert Kubelet(cgroup_driver="cgroupfs").cgroup_parent(manifest) == cgroupfs


@pytest.mark.parametrize(
    ("milli_cpu", "shares"),
    [(0, 2), (1, 2), (2, 2), (100, 102), (500, 512), (1000, 1024), (10**7, 262144)],
)
def test_cpu_shares(milli_cpu: int, shares: int) -> None:
    assert cpu_shares(milli_cpu) == shares


@pytest.mark.parametrize(
    ("milli_cpu", "quota"), [(0, 0), (1, 1000), (5, 1000), (500, 50_000), (2500, 250_000)]
)
def test_cpu_quota(milli_cpu: int, quota: int) -> None:
    assert cpu_quota(milli_cpu) == quota


@pytest.mark.parametrize(
    ("manifest", "score"),
    [
        (GUARANTEED, -997),
        (BEST_EFFORT, 1000),
        (BURSTABLE, 999),
        (pod(container("c0", None, (10 * GIB, None))), 900),
        (pod(container("c0", None, (100 * GIB, None))), 3),
        (pod(container("c0", (1, None)), priorityClassName="system-node-critical"), -997),
    ],
)
def test_the_oom_score_follows_the_memory_request(manifest: PodManifest, score: int) -> None:
    assert NODE.oom_score_adj(manifest, manifest.container("c0")) == score


def test_a_machine_that_does_not_say_its_memory_has_a_score() -> None:
    nameless = Kubelet(memory_capacity=0)
    assert nameless.oom_score_adj(BURSTABLE, BURSTABLE.container("c0")) == 999
    manifest = pod(container("c0", None, (10 * GIB, None)))
    assert nameless.oom_score_adj(manifest, manifest.container("c0")) == 3


def test_a_sidecar_is_not_killed_before_those_that_it_serves() -> None:
    manifest = pod(
        container("a", None, (30 * GIB, None)),
        container("b", None, (20 * GIB, None)),
        initContainers=[container("s", None, (GIB, None), restartPolicy="Always")],
    )
    assert NODE.oom_score_adj(manifest, manifest.container("s")) == 800


def test_resources_are_as_kubelet_passes_them() -> None:
    manifest = pod(
        {
            "name": "c0",
            "resources": {
                "requests": {"cpu": "1500m"},
                "limits": {"cpu": 2, "memory": "1Gi", "hugepages-2Mi": "64Mi"},
            },
        }
    )
    resources = NODE.resources(manifest, manifest.container("c0"))
    assert resources.cpu.shares.value == 1536
    assert resources.cpu.quota.value == 200_000
    assert resources.cpu.period.value == 100_000
    assert resources.cpu.cpus == ""
    assert resources.memory.limit.value == GIB
    limits = {limit.page_size: limit.limit for limit in resources.hugepage_limits}
    assert limits == {"2MB": 64 << 20, "1GB": 0}


def test_the_pod_needs_the_most_of_its_init_containers_and_of_the_others() -> None:
    manifest = pod(
        container("a", (1, 2)),
        container("b", (2, 2)),
        initContainers=[
            container("big", (3, 3)),
            container("side", ("500m", 1), restartPolicy="Always"),
            container("bigger", (3, 3)),
        ],
    )
    resources = NODE.pod_resources(manifest)
    assert resources.cpu.shares.value == cpu_shares(3500)
    assert resources.cpu.quota.value == 500_000


def test_labels_and_annotations_are_those_of_kubelet() -> None:
    sandbox = NODE.sandbox(GUARANTEED, seen="2026-01-01T00:00:00Z")
    of_pod = {
        "io.kubernetes.pod.name": "pod0",
        "io.kubernetes.pod.namespace": "default",
        "io.kubernetes.pod.uid": UID,
    }
    assert sandbox.labels == of_pod | {"app": "x"}
    assert sandbox.annotations["kubernetes.io/config.source"] == "api"
    message = NODE.container(GUARANTEED, GUARANTEED.container("c0"), attempt=2)
    assert message.labels == of_pod | {"io.kubernetes.container.name": "c0"}
    assert message.annotations["io.kubernetes.container.restartCount"] == "2"
    assert message.annotations["io.kubernetes.pod.terminationGracePeriod"] == "30"


def test_volumes_become_mounts() -> None:
    manifest = pod(
        container(
            "c0",
            volumeMounts=[
                {"name": "dev", "mountPath": "/dev/x", "readOnly": True},
                {"name": "tmp", "mountPath": "/tmp"},
            ],
        ),
        volumes=[
            {"name": "dev", "hostPath": {"path": "/dev/sda"}},
            {"name": "tmp", "emptyDir": {}},
        ],
    )
    mounts = NODE.container(manifest, manifest.container("c0")).mounts
    assert [(mount.destination, mount.source, mount.options[-1]) for mount in mounts] == [
        ("/dev/x", "/dev/sda", "ro"),
        ("/tmp", f"/var/lib/kubelet/pods/{UID}/volumes/kubernetes.io~empty-dir/tmp", "rw"),
    ]


def completed(runtime: str, kubelet: Kubelet = NODE) -> tuple[nri.PodSandbox, nri.Container]:
    sandbox = kubelet.sandbox(GUARANTEED, seen="")
    sandbox.id = "pod-id"
    runtimespec.complete_sandbox(sandbox, runtime=runtime, pid=7)
    message = kubelet.container(GUARANTEED, GUARANTEED.container("c0"))
    message.id = "ctr-id"
    runtimespec.complete_container(message, sandbox, runtime=runtime, image="busybox")
    return sandbox, message


def test_containerd_adds_its_labels_and_annotations() -> None:
    sandbox, message = completed("containerd")
    assert sandbox.labels["io.cri-containerd.kind"] == "sandbox"
    assert sandbox.annotations["io.kubernetes.cri.sandbox-cpu-shares"] == "1024"
    assert message.labels["io.cri-containerd.kind"] == "container"
    assert message.annotations["io.kubernetes.cri.container-name"] == "c0"
    assert message.annotations["io.kubernetes.cri.sandbox-id"] == "pod-id"


def test_a_memory_limit_leaves_no_swap() -> None:
    _, message = completed("containerd")
    assert message.linux.resources.memory.swap.value == GIB


def test_what_is_not_limited_is_absent_from_a_new_container() -> None:
    sandbox = NODE.sandbox(BEST_EFFORT, seen="")
    message = NODE.container(BEST_EFFORT, BEST_EFFORT.container("c0"))
    runtimespec.complete_container(message, sandbox, runtime="containerd", image="")
    assert not message.linux.resources.HasField("memory")
    assert not message.linux.resources.cpu.HasField("quota")
    assert message.linux.resources.cpu.shares.value == 2


@pytest.mark.parametrize(
    ("runtime", "kubelet", "path"),
    [
        ("containerd", NODE, f"kubepods-pod{SLICE_UID}.slice:cri-containerd:ctr-id"),
        ("cri-o", NODE, f"kubepods-pod{SLICE_UID}.slice:crio:ctr-id"),
        ("containerd", Kubelet(cgroup_driver="cgroupfs"), f"/kubepods/pod{UID}/ctr-id"),
        ("cri-o", Kubelet(cgroup_driver="cgroupfs"), f"/kubepods/pod{UID}/crio-ctr-id"),
    ],
)
def test_cgroup_paths_of_containers(runtime: str, kubelet: Kubelet, path: str) -> None:
    assert completed(runtime, kubelet)[1].linux.cgroups_path == path


def test_ids_depend_on_nothing_but_their_parts() -> None:
    assert runtimespec.object_id("a", 1) == runtimespec.object_id("a", 1)
    assert runtimespec.object_id("a", 1) != runtimespec.object_id("a", 2)
    assert len(runtimespec.object_id("a")) == 64
    assert len(runtimespec.object_uid("a")) == len(UID)


MIB = 1 << 20
WHOLE = {"cpu": 4, "memory": "512Mi"}
MAIN = container("main", (2, 2), ("128Mi", "128Mi"))
MESH = container("mesh", ("100m", None))


def asked(manifest: PodManifest) -> dict[str, tuple[int, int, int]]:
    """Return the shares, quota (in CPUs) and memory limit of each container, and of the pod."""
    messages = {each.name: NODE.container(manifest, each) for each in manifest.spec.containers}
    parts = {name: each.linux.resources for name, each in messages.items()}
    parts["pod"] = NODE.pod_resources(manifest)
    return {
        name: (each.cpu.shares.value, each.cpu.quota.value // 100_000, each.memory.limit.value)
        for name, each in parts.items()
    }


def test_a_container_without_limits_has_those_of_its_pod_as_on_real_nodes() -> None:
    manifest = pod(MAIN, container("log"), MESH, resources={"limits": WHOLE, "requests": WHOLE})
    assert asked(manifest) == {
        "main": (2048, 2, 128 * MIB),
        "log": (4096, 4, 512 * MIB),
        "mesh": (102, 4, 512 * MIB),
        "pod": (4096, 4, 512 * MIB),
    }
    burstable = pod(container("log"), resources={"requests": {"cpu": 1}, "limits": {"cpu": 3}})
    assert asked(burstable) == {"log": (3072, 3, 0), "pod": (1024, 3, 0)}
    unlimited = pod(container("log"), resources={"requests": {"cpu": 1}})
    assert asked(unlimited) == {"log": (2, 0, 0), "pod": (1024, 0, 0)}


def test_the_oom_scores_share_the_rest_of_a_pod_s_memory_out() -> None:
    manifest = pod(
        container("c0", None, ("10Gi", None)),
        container("c1"),
        resources={"requests": {"memory": "30Gi"}},
    )
    scores = [NODE.oom_score_adj(manifest, each) for each in manifest.spec.containers]
    assert scores == [1000 - 200, 1000 - 100]


def test_a_resize_of_a_pod_as_a_whole_gives_its_limits_to_those_without() -> None:
    before = pod(MAIN, container("log"), MESH, resources={"limits": WHOLE, "requests": WHOLE})
    more = Amounts(cpu=6000)
    after = before.resized_as_a_whole(ResourceChange(requests=more, limits=more))
    steps = [
        (step.name, step.resources.cpu.shares.value, step.resources.cpu.quota.value)
        if isinstance(step, ContainerStep)
        else ("", step.resources.cpu.shares.value, step.resources.cpu.quota.value)
        for step in list_resize_steps(NODE, before, after)
    ]
    assert steps == [
        ("", 4096, 600_000),
        ("", 6144, 600_000),
        ("log", 2, 600_000),
        ("mesh", 102, 600_000),
    ]
