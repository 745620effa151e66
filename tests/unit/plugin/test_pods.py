"""The pods that schedulers count, as a runtime lists them after a restart."""

from __future__ import annotations

from nri_policy.engine.engine import Engine
from nri_policy.node import Node
from nri_policy.plugin.pods import Pods
from nri_policy.proto import nri_pb2 as pb
from tests.support import nodes


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
