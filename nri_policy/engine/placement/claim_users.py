"""Claim users: the grants of containers that use resource claims; spec dra.md §2.3, §2.4.

A part of a claim holds its CPUs, exclusive and shared, for all of its users. A claim user only
books the CPUs that it requests beyond its claims, which it shares with others in their pool: its
request and its claims count the same CPUs, as schedulers expect. So its grant follows from its
claims, and is computed again whenever these change; no annotation moves it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from msgspec import Struct
from msgspec.structs import replace

from nri_policy.engine.choice.choice import Choice, ChoiceFacts, explain
from nri_policy.engine.choice.memory_request import memory_request
from nri_policy.engine.choice.shortage import Lack, PlacementError, memory_shortage
from nri_policy.engine.explanation import DecisionKind
from nri_policy.engine.grant import Grant
from nri_policy.engine.placement.booking import book
from nri_policy.engine.state.state import Placed, State
from nri_policy.foundation.cpuset import EMPTY, CPUSet
from nri_policy.foundation.units import format_cpu
from nri_policy.foundation.wording import some
from nri_policy.pools.memory_offer import MemoryShortageError
from nri_policy.pools.tree import Pool
from nri_policy.workload.pod import Container
from nri_policy.workload.request import Request, Sort


class Claimed(Struct, frozen=True, kw_only=True):
    """The grant of a container by its claims."""

    grant: Grant
    uses: tuple[str, ...]  # the parts of claims
    notes: tuple[str, ...]


def choose_by_claims(
    state: State, container: Container, request: Request, held: int | None = None
) -> Claimed:
    """Return the grant of a container that uses claims, without memory nodes.

    CPUs that it requests beyond them stay in the pool *held*, if that has room. Raises
    PlacementError if a claim is not held, or if there is no room for these CPUs.
    """
    parts = [*_parts(state, container, request)]
    tree, amount = state.layout.tree, sum(each.request.milli for each in parts)
    own = CPUSet.union(each.grant.exclusive for each in parts)
    pools = [tree.pools[each.grant.pool] for each in parts]
    pool = tree.around(CPUSet.union(each.cpus for each in pools))
    more = max(0, request.milli - amount)
    shares = more > 0 or any(each.grant.shares for each in parts)
    notes = [*_notes(container, request, amount)]
    if more:
        pool = _pool_with(state, request, pool, more, held)
        notes.append(
            f"it shares {format_cpu(more)} CPU of {pool.name}, which it requests beyond its claims"
        )
    lost = not own and not shares
    if lost:
        notes.append("the CPUs of its claims are offline: it shares others")
        free = state.supply.free_cpus()
        pool = next((each for each in tree.path(pool) if each.cpus & free), tree.top)
    grant = Grant(
        pool=pool.id,
        sort=Sort.NORMAL,
        exclusive=EMPTY,
        isolated=False,
        shared=more,
        shares=shares or lost,
        preemptible=lost,
        mems=EMPTY,
        claimed=own,
    )
    return Claimed(grant=grant, uses=tuple(map(_use, parts)), notes=tuple(notes))


def place_by_claims(state: State, container: Container, request: Request) -> Choice:
    """Book the CPUs of a container by its claims, and memory as near to these as possible."""
    try:
        claimed = choose_by_claims(state, container, request)
    except PlacementError as refusal:
        raise explain(state, container, ChoiceFacts(), refusal) from None
    grant, pool = claimed.grant, state.layout.tree.pools[claimed.grant.pool]
    memory, offer = memory_request(container, request, aligned=False), None
    if memory is not None:
        try:
            offer = state.memory.offer(pool.id, memory)
        except MemoryShortageError as error:
            short = memory_shortage(request, pool, error.shortage)
            raise explain(state, container, ChoiceFacts(), short) from error
        grant = replace(grant, mems=offer.zone)
    findings = ChoiceFacts(uses=claimed.uses, notes=claimed.notes)
    choice = Choice(grant=grant, kind=DecisionKind.CLAIMED, offer=offer, findings=findings)
    book(state, container, request, choice)
    return choice


def _parts(state: State, container: Container, request: Request) -> Iterator[Placed]:
    """Yield the parts of claims that a container uses."""
    for each in container.claims:
        if each not in state.claims:
            text = f"{each} is not prepared on this node"
            top = state.layout.tree.top.name
            raise PlacementError(Lack.CLAIM, request, pool=top, available=0, detail=text)
        yield state.claims[each]


def _pool_with(state: State, request: Request, pool: Pool, milli: int, held: int | None) -> Pool:
    """Return the nearest pool from *pool* upward in which *milli* can be shared, *held* first."""
    for each in sorted(state.layout.tree.path(pool), key=lambda each: each.id != held):
        if milli <= state.supply.allocatable_shared(each.id):
            return each
    text = f"no pool has {format_cpu(milli)} CPU to share beside the CPUs of its claims"
    available = max(0, state.supply.allocatable_shared(pool.id))
    raise PlacementError(Lack.CPU, request, pool=pool.name, available=available, detail=text)


def _use(placed: Placed) -> str:
    """Return a part of a claim in words."""
    part = placed.container.claim_part
    beside = f", beside {some(part.beside)}" if part.beside else ""
    return f"{format_cpu(part.milli)} CPU of {part.device} by {part.full_name}{beside}"


def _notes(container: Container, request: Request, amount: int) -> Iterator[str]:
    """Yield what is odd about the requests of a container with claims of *amount* milli-CPU."""
    if request.milli < amount:
        yield (
            f"it requests {format_cpu(request.milli)} CPU, and its claims have"
            f" {format_cpu(amount)}: schedulers count the difference as free on this node"
        )
    limit = container.resources.cpu_limit
    if limit is not None and limit < amount:
        yield f"its limit of {format_cpu(limit)} CPU is below its claims' {format_cpu(amount)}"
    if request.sort is not Sort.NORMAL:
        yield "it uses claims: annotations and namespaces do not place it elsewhere"


def with_held_claims(container: Container, held: Collection[str]) -> Container:
    """Return a container that runs already without the claims that are not *held*."""
    if not container.claims:
        return container
    return replace(container, claims=tuple(each for each in container.claims if each in held))
