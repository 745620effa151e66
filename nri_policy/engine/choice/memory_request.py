"""Memory requests: what a container asks of the memory nodes; placement.md §7."""

from __future__ import annotations

from functools import cache

from msgspec.structs import replace

from nri_policy.engine.state.state import State
from nri_policy.hardware.machine import MemoryKind
from nri_policy.manifests.quality_of_service import QoS
from nri_policy.pools.memory_map import Kinds
from nri_policy.pools.memory_offer import MemoryRequest, Rank
from nri_policy.workload.pod import Container
from nri_policy.workload.request import Request

_RANKS = {
    QoS.BEST_EFFORT: Rank.BEST_EFFORT,
    QoS.BURSTABLE: Rank.BURSTABLE,
    QoS.GUARANTEED: Rank.GUARANTEED,
}


@cache
def _kinds(kinds: tuple[MemoryKind, ...]) -> Kinds:
    """Return the set of *kinds*; cached, because there are few and each computes its hash once."""
    return frozenset(kinds)


def memory_request(
    container: Container, request: Request, *, aligned: bool, cold: bool = True
) -> MemoryRequest | None:
    """Return the memory request of *container*, None with `memory.preserve`.

    It is cold if the container asks for a cold start, unless *cold* is False: the cold start is
    over. If containers are *aligned*, memory of one with exclusive CPUs stays beside them.
    """
    if request.memory_preserve:
        return None
    strict = request.steering.strict_hints
    stays = (strict and bool(request.steering.hints)) or (aligned and request.exclusive > 0)
    return MemoryRequest(
        id=container.id,
        amount=request.memory,
        limit=request.memory_limit,
        kinds=_kinds(request.memory_kinds),
        rank=_RANKS[request.qos],
        created=container.created,
        strict=strict,
        movable=request.movable and not stays and not request.hugepages,  # these do not move
        cold=cold and request.cold_start is not None,
        hugepages=request.hugepages,
        needs_pages=stays,
    )


def pages_request(state: State, container: Container, request: Request) -> MemoryRequest | None:
    """Return the request for a tenant's huge pages, which its room lacks; None if it has none."""
    if not request.hugepages:
        return None
    only = replace(request, memory=0, memory_limit=None, cold_start=None)
    return memory_request(container, only, aligned=state.layout.aligned)
