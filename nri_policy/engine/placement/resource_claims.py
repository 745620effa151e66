"""Resource claims: cuts and releases the CPUs of resource claims; spec dra.md §2.3.

A part of a claim is a grant in one pool, that of the device that the scheduler chose: it is never
widened and never moved. The scheduler counts what was published (`dra.projection`), so there is
room, or containers that came later must make it. The order of containers that move: those without a
CPU request, small sharers, which move up the tree, and last owners of exclusive CPUs, which move to
other pools. The settings limit this.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from nri_policy.engine.choice.choice import plain_grant
from nri_policy.engine.choice.exclusive_cpus import take
from nri_policy.engine.choice.shortage import Lack, PlacementError
from nri_policy.engine.event import Prepared, StoredGrant, Unprepared
from nri_policy.engine.explanation import DecisionKind, Explanation
from nri_policy.engine.grant import Decision, Grant
from nri_policy.engine.placement.placement import place
from nri_policy.engine.placement.rebooking import bring_back, last_resort, make_room, move_up
from nri_policy.engine.state.layout import Layout
from nri_policy.engine.state.state import Placed, State
from nri_policy.engine.updates.announcement import announce_since
from nri_policy.foundation.cpuset import EMPTY, CPUSet
from nri_policy.foundation.refusal import Refused
from nri_policy.foundation.units import count_cpus, format_cpu
from nri_policy.foundation.wording import some
from nri_policy.manifests.quality_of_service import QoS
from nri_policy.pools.tree import Pool
from nri_policy.settings import MakeRoom
from nri_policy.workload.claim import ClaimPart
from nri_policy.workload.pod import Container, ContainerState, Pod, Resources
from nri_policy.workload.request import Request

MAX_OWNERS = 16  # containers that are moved on trial for one part of a claim


class ClaimError(Refused):
    """An impossible claim; the text is for the author of the claim."""


def stand_in(part: ClaimPart) -> Container:
    """Return what stands for a part of a claim, and holds its CPUs."""
    pod = Pod(
        id=part.id,
        uid=part.claim,
        name=part.name,
        namespace=part.namespace,
        qos=QoS.GUARANTEED,
        labels={},
        annotations={},
    )
    return Container(
        id=part.id,
        pod=pod,
        name="",
        state=ContainerState.RUNNING,
        created=0,
        labels={},
        resources=Resources(),
        part=part,
    )


def parts_of(state: State, claim: str) -> list[Placed]:
    """Return the parts of a claim, by its uid."""
    return [each for each in state.claims.values() if each.container.claim_part.claim == claim]


def prepare(state: State, event: Prepared) -> Decision:
    """Hold all parts of a claim before its containers exist; return updates for moved containers.

    Raises ClaimError if another allocation of the claim is held, or if a part names no pool;
    PlacementError if there is no room: some parts may be held then.
    """
    free, parts = state.supply.free_cpus(), {each.id: each for each in event.parts}
    if held := parts_of(state, event.parts[0].claim):
        known = {each.container.id: each.container.claim_part.allocated for each in held}
        if known != {each: part.allocated for each, part in parts.items()}:
            name = f"{event.parts[0].namespace}/{event.parts[0].name}"
            raise ClaimError(f"claim {name} is prepared already, with another allocation")
        for each in held:  # a claim about to be released is used again
            container = replace(each.container, part=parts[each.container.id])
            grant = replace(each.grant, ending=False)
            if (container, grant) != (each.container, each.grant):
                state.enter(replace(each, container=container, grant=grant))
        return Decision()
    for part in parts.values():
        _hold(state, part)
    cause = f"{event.parts[0].full_name} was prepared"
    return Decision(changes=announce_since(state, free, cause))


def unprepare(state: State, event: Unprepared) -> Decision:
    """Give a claim back, or have it end with the last container that uses it; others may spread."""
    free = state.supply.free_cpus()
    gone = _give_back(state, event.claim)
    if gone and state.away:
        bring_back(state)
    names = ", ".join(each.container.full_name for each in gone)
    return Decision(changes=announce_since(state, free, f"{names} was given back"))


def _give_back(state: State, claim: str) -> list[Placed]:
    """Give a claim back, or have it end with the last container that uses it; return what is free.

    A claim that is not held is given back already.
    """
    held = parts_of(state, claim)
    if _in_use(state, held):
        for each in held:
            state.enter(replace(each, grant=replace(each.grant, ending=True)))
        return []
    return [state.drop(each.container.id) for each in held]


def end_claims(state: State) -> list[Placed]:
    """Release unprepared claims whose last container is gone."""
    ending = [each for each in state.claims.values() if each.grant.ending]
    claims = dict.fromkeys(each.container.claim_part.claim for each in ending)
    return [gone for claim in claims for gone in _give_back(state, claim)]


def _in_use(state: State, held: Iterable[Placed]) -> bool:
    ids = {each.container.id for each in held}
    return any(not ids.isdisjoint(each.container.claims) for each in state.placed.values())


def _hold(state: State, part: ClaimPart) -> None:
    """Hold one part of a claim, and move containers to make room for it."""
    layout = state.layout
    pool = next((each for each in layout.tree.pools if each.name == part.pool), None)
    if pool is None:
        raise ClaimError(f"{part.full_name}: this node has no {part.pool}")
    if part.milli <= 0:
        raise ClaimError(f"{part.full_name}: it asks for nothing")
    container = stand_in(part)
    request = layout.requests.read_claim(part)
    cause = f"{part.full_name} took its CPUs"
    for with_preemptible in (True, False):
        if (grant := _cut(state, request, pool, with_preemptible=with_preemptible)) is not None:
            _book(state, container, request, grant)
            if not with_preemptible:
                make_room(state, cause)
            return
    how = layout.settings.dra.make_room
    if how is not MakeRoom.NONE and (grant := _move_sharers(state, request, pool, cause)):
        _book(state, container, request, grant)
        make_room(state, cause)
        return
    if how is MakeRoom.EXCLUSIVE and _move_owners(state, container, request, pool):
        return
    raise _shortage(state, part, request, pool)


def _cut(
    state: State, request: Request, pool: Pool, *, with_preemptible: bool, own: CPUSet = EMPTY
) -> Grant | None:
    """Return a grant of *request* in just *pool*, its *own* CPUs first; None: there is no room."""
    supply = state.supply
    slack = supply.slack(pool.id, request.shared, request.shares, with_preemptible)
    grant = plain_grant(request, pool.id, EMPTY)
    if not request.exclusive:
        return grant if slack.permits(EMPTY) else None
    free = supply.free_cpus() & pool.cpus
    classes = state.layout.classes[request.steering.priority]
    if own:
        classes = (own, *(each - own for each in classes))
    try:
        cpus = take(state.layout, request, pool, free, classes, slack)
    except (ValueError, PlacementError):
        return None
    return replace(grant, exclusive=cpus)


def _book(state: State, container: Container, request: Request, grant: Grant) -> None:
    state.put(_explain(state, container, request, grant, DecisionKind.CLAIMED))


def _explain(
    state: State, container: Container, request: Request, grant: Grant, kind: DecisionKind
) -> Placed:
    """Return the holder of a part of a claim, with an explanation."""
    explanation = Explanation(
        container=container.full_name,
        kind=kind,
        request=request,
        tree=state.layout.tree,
        pool=grant.pool,
        scores=None,
    )
    return Placed(container=container, request=request, grant=grant, explanation=explanation)


def _move_sharers(state: State, request: Request, pool: Pool, cause: str) -> Grant | None:
    """Move the fewest small sharers up the tree that make room; return the grant, None if none."""

    def fits() -> bool:
        return _cut(state, request, pool, with_preemptible=False) is not None

    for member, above in last_resort(state, (), fits).items():
        move_up(state, member, above, cause)
    return _cut(state, request, pool, with_preemptible=False)


def _move_owners(state: State, container: Container, request: Request, pool: Pool) -> bool:
    """Move owners of exclusive CPUs out of *pool* and book the grant; False if that cannot be.

    The smallest that suffices alone, else as many as it takes, the largest first.
    """
    owners = [*_movable_owners(state, pool)][:MAX_OWNERS]
    groups = [[each] for each in owners]
    groups += [owners[-number:] for number in range(2, len(owners) + 1)]
    cause = f"{container.full_name} took its CPUs"
    for group in groups:
        before = state.snapshot()
        for each in group:
            state.drop(each.container.id, settle=False)
        try:
            grant = _cut(state, request, pool, with_preemptible=False)
            if grant is None:
                grant = _move_sharers(state, request, pool, cause)
            if grant is not None:
                _book(state, container, request, grant)
                _place_again(state, group, cause)
                make_room(state, cause)
                return True
        except PlacementError:
            pass
        state.restore(before)
        state.moved.clear()
    return False


def _place_again(state: State, owners: Iterable[Placed], cause: str) -> None:
    """Place owners that were taken out, where there is room now; PlacementError."""
    for each in owners:
        place(state, each.container, each.request, last=False)
        again = state.placed[each.container.id]
        below, now = (state.layout.tree.pools[it.grant.pool].name for it in (each, again))
        note = f"moved from {below} to {now}: {cause}"
        explanation = replace(again.explanation, notes=(*again.explanation.notes, note))
        state.enter(replace(again, explanation=explanation))
        state.moved[each.container.id] = note


def _movable_owners(state: State, pool: Pool) -> Iterator[Placed]:
    """Yield the containers with exclusive CPUs in *pool* that may move, the smallest first."""
    owners = [
        each
        for each in state.placed.values()
        if each.grant.exclusive & pool.cpus
        and each.request.movable
        and not (each.grant.tenant or each.grant.isolated)
        and not (each.request.steering.strict_hints and each.request.steering.hints)
        and each.container.id not in state.resizing
    ]
    yield from sorted(
        owners, key=lambda each: (len(each.grant.exclusive & pool.cpus), each.container.created)
    )


def _shortage(state: State, part: ClaimPart, request: Request, pool: Pool) -> PlacementError:
    """Return the error that *pool* has too little left for a part of a claim."""
    free = 1000 * len(state.supply.free_cpus() & pool.cpus) - state.supply.shared_milli_in(pool.id)
    holders = [
        each.container.full_name
        for each in (*state.placed.values(), *state.rooms.values(), *state.claims.values())
        if not each.grant.exclusive.isdisjoint(pool.cpus)
    ]
    names = f"; CPUs there are held by {some(holders)}" if holders else ""
    lacks = max(1, part.milli - max(0, free))
    text = (
        f"{part.full_name}: {part.device} lacks {count_cpus(lacks)}:"
        f" {format_cpu(max(0, free))} free, {format_cpu(part.milli)} asked{names}"
    )
    return PlacementError(Lack.CLAIM, request, pool=pool.name, available=free, detail=text)


# ---- claims that are held already


def stored_claim(part: ClaimPart, cpus: CPUSet, layout: Layout) -> StoredGrant:
    """Return the stored form of a part of a claim that holds *cpus*."""
    holder, request = stand_in(part), layout.requests.read_claim(part)
    return StoredGrant(
        pod_uid=holder.pod.uid,
        full_name=holder.full_name,
        resized=False,
        entitlement=request.entitlement,
        pool=part.pool,
        grant=replace(plain_grant(request, layout.tree.top.id, EMPTY), exclusive=cpus),
        deadline=None,
        resources=holder.resources,
        part=part,
    )


def recall_claims(state: State, stored: Iterable[StoredGrant]) -> list[Placed]:
    """Return the claims that are *stored*, and not held, on pools that are there."""
    pools = {each.name: each.id for each in state.layout.tree.pools}
    found = []
    for each in stored:
        if each.part is None or each.part.id in state.claims or each.pool not in pools:
            continue
        container = stand_in(each.part)
        grant = replace(each.grant, pool=pools[each.pool])
        request = state.layout.requests.read_claim(each.part)
        found.append(_explain(state, container, request, grant, DecisionKind.KEPT))
    return found


def hold_again(state: State, claims: Iterable[Placed]) -> None:
    """Hold claims before containers are placed, as far as the claims' CPUs still exist.

    The exclusive CPUs of all are set aside first: a fraction has its place beside them.
    """
    aside = []
    for each in claims:
        grant, pool = each.grant, state.layout.tree.pools[each.grant.pool]
        own = grant.exclusive & state.supply.free_cpus() & pool.cpus
        state.supply.take(own)
        aside.append((each, own))
    for each, own in aside:
        grant = each.grant
        shared = min(grant.shared, state.supply.allocatable_shared(grant.pool))
        shares = grant.shares and shared > 0
        kept = replace(grant, exclusive=own, shares=shares, shared=shared if shares else 0)
        state.supply.give(own)
        state.put(replace(each, grant=kept))


def complete(state: State) -> list[str]:
    """Replace CPUs that claims have lost by others of their device; return texts on shortages."""
    texts = []
    for now in [*state.claims.values()]:
        own = now.grant.exclusive
        if len(own) >= now.request.exclusive and now.grant.shared >= now.request.shared:
            continue
        pool = state.layout.tree.pools[now.grant.pool]
        state.drop(now.container.id, settle=False)
        whole = None
        if pool.name == now.container.claim_part.pool:
            whole = _cut(state, now.request, pool, with_preemptible=False, own=own)
        if whole is None:
            asked = format_cpu(now.request.milli)
            texts.append(f"{now.container.full_name}: it has {len(own)} of {asked} CPU now")
        grant = now.grant if whole is None else replace(whole, ending=now.grant.ending)
        state.put(replace(now, grant=grant))
    return texts
