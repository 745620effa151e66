"""The pods that schedulers count, as a runtime lists them after a restart."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from nri_policy.engine.engine import Engine
from nri_policy.foundation.clock import Clock
from nri_policy.hardware.locality import Locator
from nri_policy.kubelet.pod_resources import PATIENCE, Assignments
from nri_policy.node import Node
from nri_policy.plugin.pods import Pods
from nri_policy.proto import nri_pb2 as pb
from nri_policy.proto.podresources_pb2 import ContainerResources, PodResources
from tests.support import nodes
from tests.unit.kubelet.kubelet import Kubelet, entry, resources, serving


def listed(name: str, state: pb.ContainerState) -> tuple[pb.PodSandbox, pb.Container]:
    """Return a Guaranteed pod with its container."""
    pod = pb.PodSandbox(id=f"pod-{name}", uid=name, name=name, namespace="default")
    pod.linux.cgroup_parent = f"/kubepods/pod{name}"
    container = pb.Container(id=name, pod_sandbox_id=pod.id, name="main", state=state)
    return pod, container


async def test_a_new_daemon_counts_the_pods_whose_containers_have_started() -> None:
    changes = 0

    def changed() -> None:
        nonlocal changes
        changes += 1

    node = Node(Engine(nodes.machine(), nodes.settings()))
    pods = Pods(node, None, None, None, changed)
    every = [listed("runs", pb.CONTAINER_RUNNING), listed("created", pb.CONTAINER_CREATED)]
    async with node.turn:
        await pods.restart([pod for pod, _ in every], [container for _, container in every])
        assert not node.view.pods, "readers see no mixture of a list and of the time before it"
        assert pods.listed == {"pod-runs", "pod-created"}
        pods.show()
    counted = {name: pod.counted for name, pod in node.view.pods.items()}
    assert counted == {"pod-runs": True, "pod-created": False}
    assert all(pod.whole for pod in node.view.pods.values())
    assert changes


async def test_a_pod_whose_coming_was_missed_is_taken_in_with_its_first_container() -> None:
    node = Node(Engine(nodes.machine(), nodes.settings()))
    changes: list[bool] = []
    pods = Pods(node, None, None, None, lambda: changes.append(True))
    pod, container = listed("runs", pb.CONTAINER_CREATED)
    async with node.turn:
        pods.note_start(pod, container)
        before = node.view
        assert before.pods["pod-runs"].counted
        pods.note_start(pod, container)
        assert node.view is before, "the second container changes nothing"
        pods.stop(pod)
    assert not node.view.pods
    assert before.pods, "a view never changes"
    assert changes == [True]


async def test_at_a_start_a_slow_answer_about_devices_is_waited_for(tmp_path: Path) -> None:
    """Longer than at a creation: whoever came meanwhile is placed by it for good."""
    kubelet = Kubelet([resources("runs", entry("example.com/gpu", "a", 1), container="main")])
    kubelet.open.clear()

    async def sleep(seconds: float) -> None:
        if seconds > PATIENCE:
            await asyncio.Event().wait()

    engine = Engine(nodes.machine(), nodes.settings(agent={"podResourceAPI": True}))
    pod, container = listed("runs", pb.CONTAINER_RUNNING)
    pod.linux.cgroup_parent = "/kubepods/burstable/podruns"
    socket = tmp_path / "kubelet.sock"
    async with (
        serving(kubelet, socket),
        Assignments(socket, clock=Clock(sleep=sleep)) as assignments,
    ):
        node = Node(engine)
        pods = Pods(node, None, assignments, None, lambda: None)
        restarting = asyncio.create_task(pods.restart([pod], [container]))
        await kubelet.called.wait()
        kubelet.open.set()
        await restarting
    async with node.turn:
        pods.show()
    assert node.view.pods["pod-runs"].counted, "it has a device"


@pytest.mark.parametrize("asks", [True, False])
async def test_who_may_get_a_room_has_the_devices_of_all_its_containers_as_hints(
    asks: bool, tmp_path: Path
) -> None:
    devices = (
        ContainerResources(name=name, devices=[entry("example.com/gpu", name, node)])
        for name, node in (("main", 1), ("side", 3))
    )
    kubelet = Kubelet([PodResources(name="shop", namespace="default", containers=devices)])
    settings = nodes.settings(
        agent={"podResourceAPI": True}, podRooms="guaranteed" if asks else "off"
    )
    pod, container = listed("shop", pb.CONTAINER_CREATED)
    socket = tmp_path / "kubelet.sock"
    async with serving(kubelet, socket), Assignments(socket) as assignments:
        machine = nodes.machine()
        node = Node(Engine(machine, settings))
        pods = Pods(node, Locator(tmp_path, machine), assignments, None, lambda: None)
        await pods.restart([pod], [container])
        found = pods.container(pod, container)
        assert assignments.owners(found.pod) == {"main": None, "side": None}
    assert [each.device for each in found.hints] == ["main"]
    assert [(each.device, str(each.nodes)) for each in found.pod.hints] == (
        [("main", "1"), ("side", "3")] if asks else []
    )
