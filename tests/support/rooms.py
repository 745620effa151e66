"""Pods with one room for all their containers, and these containers."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from nri_policy.foundation.cpuset import CPUSet
from nri_policy.hardware.machine import Machine
from nri_policy.manifests.quality_of_service import QoS
from nri_policy.workload.hints import Hint
from nri_policy.workload.pod import Container, Pod
from tests.support import nodes

ROOM = {"pod-room.resource-policy.nri.io/pod": "true"}


def pod(
    milli: int,
    *,
    qos: QoS = QoS.GUARANTEED,
    name: str = "shop",
    memory: int = 0,
    annotations: Mapping[str, str] = ROOM,
    hints: tuple[Hint, ...] = (),
) -> Pod:
    """Return a pod that requests *milli* milli-CPU in all, and wants a room."""
    limit = milli if qos is QoS.GUARANTEED else None
    return Pod(
        id=f"sandbox-{name}",
        uid=f"uid-{name}",
        name=name,
        namespace="default",
        qos=qos,
        labels={},
        annotations=annotations,
        amounts=replace(nodes.resources(milli, limit), memory_limit=memory),
        hints=hints,
    )


def tenant(whole: Pod, name: str, milli: int, limit: int | None = None) -> Container:
    """Return a container of the pod *whole* that requests *milli* milli-CPU."""
    return nodes.container(milli, limit, qos=whole.qos, pod=whole, name=name)


def with_cpus(machine: Machine, online: CPUSet) -> Machine:
    """Return *machine* with just the CPUs *online*."""
    return replace(machine, online=online & machine.possible)
