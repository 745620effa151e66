"""The pods that schedulers count, as a runtime lists them after a restart."""

from __future__ import annotations

import asyncio
from pathlib import Path

from nri_policy.engine.engine import Engine
from nri_policy.kubelet.podresources import PATIENCE, Assignments
from nri_policy.node import Node
from nri_policy.plugin.pods import Pods
from nri_policy.proto import nri_pb2 as pb
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

    pods = Pods(Node(Engine(nodes.machine(), nodes.settings())), None, None, None, changed)
    every = [listed("runs", pb.CONTAINER_RUNNING), listed("created", pb.CONTAINER_CREATED)]
    await pods.restart(
        [pod for pod, _ in every], [container for _, container in every], shows_processes=False
    )
    assert pods.exclusive == {"pod-runs": ("default", "runs")}
    assert {*pods.guaranteed} == {"pod-runs", "pod-created"}
    assert changes


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
    async with serving(kubelet, socket), Assignments(socket, sleep=sleep) as assignments:
        pods = Pods(Node(engine), None, assignments, None, lambda: None)
        restarting = asyncio.create_task(pods.restart([pod], [container], shows_processes=False))
        await kubelet.called.wait()
        kubelet.open.set()
        await restarting
    assert pods.exclusive == {"pod-runs": ("default", "runs")}, "it has a device"
