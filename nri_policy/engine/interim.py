"""Interim placements: where containers run while no decision rules them.

One that had to be admitted before it could be decided on, and all of them once nobody decides any
more. Reads a State; changes nothing.
"""

from __future__ import annotations

from msgspec.structs import replace

from nri_policy.cpuset import EMPTY, CPUSet
from nri_policy.engine.grant import Placement
from nri_policy.engine.placement import plain_grant
from nri_policy.engine.state import State
from nri_policy.workload.pod import Container
from nri_policy.workload.request import Request, Sort


def until_decided(state: State, container: Container, request: Request) -> Placement:
    """Return where *container* can wait for its decision: on CPUs that are nobody's own."""
    cpus = EMPTY
    if state.layout.settings.pin_cpu:
        top = state.layout.tree.top.id
        grant = replace(plain_grant(request, top, EMPTY), shares=request.sort is Sort.NORMAL)
        cpus = state.cpus(grant, request.hide_hyperthreads)
    return Placement(
        container_id=container.id,
        cpus=cpus,
        mems=EMPTY,
        shares=None,
        cause="there was no time to decide",
    )


def known(state: State, container_id: str) -> Placement | None:
    """Return what a container was last told, or is to be told; None where it holds no grant."""
    if container_id not in state.placed:
        return None
    cpus, mems = state.told[container_id]
    return Placement(
        container_id=container_id,
        cpus=cpus,
        mems=mems,
        shares=None,
        cause="again",
        limits=state.updatable_limits(container_id),
    )


def unmanaged(state: State, container_id: str) -> Placement:
    """Return where a container would run if there were no policy: anywhere."""
    settings, machine = state.layout.settings, state.layout.machine
    request = state.placed[container_id].request
    cpus = settings.pin_cpu and request.sort is not Sort.PRESERVE
    mems = settings.pin_memory and not request.memory_preserve
    nodes = CPUSet(node.id for node in machine.nodes if node.memory)
    return Placement(
        container_id=container_id,
        cpus=machine.online if cpus else EMPTY,
        mems=nodes if mems else EMPTY,
        shares=None,
        cause="the policy leaves",
    )
