from __future__ import annotations

from typing import Any

import pytest

from nri_policy.plugin.convert import devices_of, mounts_of, pod_of, resources_of
from nri_policy.proto import nri_pb2 as pb
from nri_policy.workload.hints import ContainerMount, DeviceFile


def container(**linux: Any) -> pb.Container:
    return pb.Container(linux=pb.LinuxContainer(**linux))


def rule(
    allow: bool,
    type_: str = "",
    number: tuple[int | None, int | None] = (None, None),
    access: str = "",
) -> pb.LinuxDeviceCgroup:
    major, minor = (None if part is None else pb.OptionalInt64(value=part) for part in number)
    return pb.LinuxDeviceCgroup(allow=allow, type=type_, major=major, minor=minor, access=access)


def device(type_: str = "c", number: tuple[int, int] = (226, 128)) -> pb.LinuxDevice:
    return pb.LinuxDevice(path="/dev/dri/x", type=type_, major=number[0], minor=number[1])


DENY_ALL, ALLOW_ALL = rule(False, access="rwm"), rule(True, access="rwm")
OURS = rule(True, "c", (226, 128), "rw")


def test_a_pods_annotations_are_its_owners() -> None:
    """A runtime adds a dozen of its own, which say nothing of what anybody wants."""
    owners = {"hide-hyperthreads.resource-policy.nri.io": "true", "kubernetes.io/odd": ""}
    runtimes = {"io.kubernetes.cri.sandbox-id": "s1", "io.kubernetes.cri-o.ImageName": "pause"}
    labels = {"app": "web", "io.kubernetes.pod.uid": "u1"}
    pod = pod_of(pb.PodSandbox(annotations=owners | runtimes, labels=labels))
    assert (pod.annotations, pod.labels) == (owners, labels)


def test_a_device_file_is_a_path_a_kind_and_a_number() -> None:
    given = container(
        devices=[device(), device("b", (8, 0)), device("p", (0, 0))],
        resources=pb.LinuxResources(devices=[DENY_ALL, OURS, rule(True, "b", (8, None), "rwm")]),
    )
    assert devices_of(given) == (
        DeviceFile(path="/dev/dri/x", kind="char", number="226:128"),
        DeviceFile(path="/dev/dri/x", kind="block", number="8:0"),
    )


@pytest.mark.parametrize(
    ("rules", "given"),
    [
        ([], False),
        ([DENY_ALL], False),
        ([DENY_ALL, OURS], True),
        ([DENY_ALL, rule(True, "c", (226, 128))], True),
        ([DENY_ALL, rule(True, "a", (226, 128), "rwm")], True),
        ([DENY_ALL, rule(True, "c", (226, -1), "rwm")], True),
        ([DENY_ALL, rule(True, "c", (226, 128), "rm")], False),
        ([DENY_ALL, rule(True, "b", (226, 128), "rwm")], False),
        ([DENY_ALL, rule(True, "c", (226, 129), "rwm")], False),
        ([DENY_ALL, rule(True, "c", (0, 128), "rwm")], False),
        ([OURS, DENY_ALL], False),
        ([OURS, rule(False, "c", (226, 128), "w")], False),
        ([OURS, rule(False, "c", (226, 128), "m")], True),
        # a privileged container is allowed all devices: it was given none in particular
        ([DENY_ALL, ALLOW_ALL], False),
        ([DENY_ALL, rule(True, "c", (-1, -1), "rwm")], False),
        ([DENY_ALL, OURS, ALLOW_ALL], True),
    ],
)
def test_devices_count_that_a_rule_lets_the_container_write_to(
    rules: list[pb.LinuxDeviceCgroup], given: bool
) -> None:
    found = devices_of(container(devices=[device()], resources=pb.LinuxResources(devices=rules)))
    assert bool(found) is given


@pytest.mark.parametrize(
    ("options", "writable"),
    [([], True), (["rbind", "rw"], True), (["rbind", "ro"], False), (["rbind", "rro"], False)],
)
def test_a_mount_is_writable_unless_an_option_says_no(options: list[str], writable: bool) -> None:
    given = pb.Container(mounts=[pb.Mount(destination="/d", source="/s", options=options)])
    assert mounts_of(given) == (ContainerMount(destination="/d", source="/s", writable=writable),)


@pytest.mark.parametrize(("limit", "read"), [(0, 0), (4096, 4096), (-1, 0), (-(2**63), 0)])
def test_a_negative_memory_limit_is_none(limit: int, read: int) -> None:
    resources = pb.LinuxResources(memory=pb.LinuxMemory(limit=pb.OptionalInt64(value=limit)))
    assert resources_of(resources).memory_limit == read


def test_huge_pages_are_the_limits_that_are_not_0_by_the_bytes_of_a_page() -> None:
    limits = {"1GB": 4 << 30, "2MB": 64 << 20, "64KB": 0, "32MB": 32 << 20, "odd": 1, "": 2}
    resources = pb.LinuxResources(
        hugepage_limits=[pb.HugepageLimit(page_size=name, limit=n) for name, n in limits.items()]
    )
    assert resources_of(resources).hugepages == (
        (2 << 20, 64 << 20),
        (32 << 20, 32 << 20),
        (1 << 30, 4 << 30),
    )
