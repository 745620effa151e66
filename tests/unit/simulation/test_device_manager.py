from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from msgspec.structs import replace

from nri_policy.foundation.clock import Clock
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.kubelet.pod_resources import Assignments
from nri_policy.manifests.pod import PodManifest, read_pod
from nri_policy.plugin.convert import devices_of
from nri_policy.simulation.device_manager import (
    AdmissionError,
    DeviceManager,
    DriverDevice,
    PluginDevice,
    answering,
)
from nri_policy.simulation.embedded import EmbeddedRuntime
from nri_policy.workload.hints import DeviceFile
from tests.support.nodes import container

NIC = "example.com/nic"


def asking(
    name: str, inits: dict[str, int], mains: dict[str, int], sidecar: str = ""
) -> PodManifest:
    """Return a pod whose containers ask for so many NICs."""

    def each(name: str, count: int) -> dict[str, object]:
        made: dict[str, object] = {"name": name, "resources": {"limits": {NIC: count}}}
        return made | ({"restartPolicy": "Always"} if name == sidecar else {})

    return read_pod(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "uid": f"uid-{name}"},
            "spec": {
                "initContainers": [each(*item) for item in inits.items()],
                "containers": [each(*item) for item in mains.items()],
            },
        }
    )


def having(*ids: str) -> DeviceManager:
    manager = DeviceManager()
    manager.advertise({NIC: [PluginDevice(id=id_, file=f"/dev/{id_}") for id_ in ids]})
    return manager


def files(manager: DeviceManager, pod: PodManifest) -> dict[str, list[str]]:
    return {
        each.name: [device.path for device in manager.files(pod.metadata.uid, each.name)]
        for each in pod.spec.every_container
    }


def test_a_device_is_given_to_one_container_until_its_pod_is_gone() -> None:
    manager = having("a", "b", "c")
    first, second = asking("first", {}, {"x": 1, "y": 1}), asking("second", {}, {"z": 1})
    manager.admit(first)
    manager.admit(second)
    assert files(manager, first) == {"x": ["/dev/a"], "y": ["/dev/b"]}
    assert files(manager, second) == {"z": ["/dev/c"]}
    third = asking("third", {}, {"x": 2})
    with pytest.raises(
        AdmissionError, match=r"container x asks for 2 example\.com/nic, 0 of 3 are"
    ):
        manager.admit(third)
    assert manager.unused() == {NIC: 0}
    manager.forget(first.metadata.uid)
    assert manager.unused() == {NIC: 2}
    manager.admit(third)
    assert files(manager, third) == {"x": ["/dev/a", "/dev/b"]}


def test_what_an_init_container_had_is_for_those_after_it_but_a_sidecar_keeps_its_own() -> None:
    manager = having("a", "b", "c")
    pod = asking("pod", {"one": 2, "side": 1, "two": 1}, {"main": 2}, sidecar="side")
    manager.admit(pod)
    assert files(manager, pod) == {
        "one": ["/dev/a", "/dev/b"],
        "side": ["/dev/a"],
        "two": ["/dev/b"],
        "main": ["/dev/b", "/dev/c"],
    }
    assert [
        [(each.name, len(each.devices)) for each in told.containers]
        for told in manager.pod_resources()
    ] == [[("side", 1), ("main", 2)]]


def test_a_node_without_such_devices_admits_nobody_who_asks() -> None:
    with pytest.raises(AdmissionError, match="0 of 0 are free"):
        DeviceManager().admit(asking("pod", {}, {"x": 1}))


def test_the_minor_number_of_a_device_stays_its_own() -> None:
    manager = DeviceManager()
    a, b = PluginDevice(id="a", numa=0), PluginDevice(id="b", numa=1)
    manager.advertise({NIC: [a, b], "other.com/x": [a]})
    assert manager.numa_nodes == {0: 0, 1: 1, 2: 0}
    manager.advertise({NIC: [b]})
    assert manager.numa_nodes == {1: 1}
    manager.advertise({NIC: [a]})
    assert manager.numa_nodes == {0: 0}


async def test_a_plugin_sees_the_files_and_that_they_may_be_used(tmp_path: Path) -> None:
    async with EmbeddedRuntime(
        tmp_path / "nri.sock", online_cpus=CPUSet((0,)), memory_nodes=CPUSet((0,))
    ) as runtime:
        runtime.devices.advertise(
            {NIC: [PluginDevice(id="a"), PluginDevice(id="b", file="/dev/b")]}
        )
        pod = await runtime.start_pod(asking("pod", {}, {"x": 2}))
        message = pod.container("x").message
        assert devices_of(message) == (DeviceFile(path="/dev/b", kind="char", number="511:1"),)


async def forever(_seconds: float) -> None:
    await asyncio.Event().wait()


async def test_the_kubelets_answers_are_what_our_client_understands(tmp_path: Path) -> None:
    manager = DeviceManager()
    manager.advertise(
        {NIC: [PluginDevice(id="a", numa=3), PluginDevice(id="b"), PluginDevice(id="c", numa=0)]}
    )
    manifest = asking("pod", {}, {"x": 3})
    manager.admit(manifest)
    pod = replace(container(1000).pod, name="pod", uid=manifest.metadata.uid)
    socket = tmp_path / "kubelet.sock"
    async with (
        answering(manager, socket),
        Assignments(socket, clock=Clock(sleep=forever)) as assignments,
    ):
        for every in (False, True):
            if every:
                assignments.ask_all([pod])
            else:
                assignments.ask(pod)
            await assignments.ready([pod])
            (devices,) = assignments.devices(pod, "x").values()
            assert [*devices.values()] == [CPUSet((3,)), CPUSet(), CPUSet((0,))]


def test_a_pod_whose_claim_is_not_allocated_is_not_admitted() -> None:
    manager = DeviceManager()
    pod = read_pod(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "web", "uid": "uid-web"},
            "spec": {
                "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "gpus"}],
                "containers": [{"name": "c0", "resources": {"claims": [{"name": "gpu"}]}}],
            },
        }
    )
    with pytest.raises(AdmissionError, match="the claim web-gpu is not allocated"):
        manager.admit(pod)
    assert manager.claimed("uid-web", "c0") == ()
    device = DriverDevice(driver="gpu.example.com", device="gpu-0", numa=1)
    manager.allocate({"web-gpu": {"a": [device, device], "b": [device]}})
    manager.admit(pod)
    (claimed,) = manager.claimed("uid-web", "c0")
    assert (claimed.claim, claimed.name, claimed.node) == ("web-gpu", "gpu-0", 1)
