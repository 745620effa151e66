"""Reconfiguration: prepares the engine's state for new settings or a changed machine.

Makes the new layout and the list of candidates with their grants; the engine then tries whether all
find a place. Changes nothing of the old state. A resize that has not ended goes on. A container
that has stopped stays where it is: the kernel keeps its CPUs from others.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from msgspec import Struct
from msgspec.structs import replace

from nri_policy.engine.event import Reconfigured
from nri_policy.engine.explanation import Explanation
from nri_policy.engine.placement.candidate import Candidate
from nri_policy.engine.placement.room_shares import rest_of, settle
from nri_policy.engine.state.layout import Layout, layout_of, successors
from nri_policy.engine.state.state import Placed, Resizing, State
from nri_policy.foundation.cpuset import EMPTY, CPUSet
from nri_policy.pools.capacity import CapacityError, Earlier
from nri_policy.pools.tree import PoolTree
from nri_policy.settings import Settings
from nri_policy.workload.pod import ContainerState
from nri_policy.workload.request import Sort


class Reconfiguration(Struct, frozen=True, kw_only=True):
    """A new layout without containers, and the containers to place there."""

    state: State
    candidates: list[Candidate]
    claims: list[Placed]  # parts of resource claims, which are placed first
    resizes: dict[str, Resizing]  # unfinished ones, by container id
    forced: bool  # the machine has changed, even if not all find a place
    cause: str  # in words


def reconfigure(old: State, event: Reconfigured, unheard: CPUSet) -> Reconfiguration:
    """Return what *event* makes of *old*; CapacityError where it asks the impossible.

    *unheard* are the exclusive CPUs of containers that no Synchronized has named yet.
    """
    # a machine that comes with settings is the same one as the settings see it
    forced = event.machine is not None and event.settings is None
    settings = event.settings or old.layout.settings
    holders = [*old.placed.values(), *old.rooms.values()]
    claims = [*old.claims.values()]
    owned = CPUSet.union(each.grant.exclusive for each in (*holders, *claims))
    owned |= CPUSet.union(each.kept for each in old.resizing.values())
    layout = layout_of(
        event.machine or old.layout.machine,
        settings,
        Earlier(reserved=old.layout.capacity.reserved, exclusive=owned | unheard),
        forced=forced or _asks_no_more(settings, old.layout),
    )
    new = State(layout)
    new.latest = old.latest
    new.sent, new.quotas = old.sent.copy(), old.quotas.copy()
    new.classes, new.equipment = old.classes.copy(), old.equipment
    places = successors(old.layout.tree, layout.tree)
    stuck = {e.container.pod.id for e in old.placed.values() if old.has_stopped(e.container.id)}
    candidates = [
        _remaining(each, old, layout, places, forced=forced)
        if _stays(each, stuck)
        else _candidate(each, old, layout, places, forced=forced)
        for each in holders
    ]
    resizes = {
        each: _resizing(resizing, old, layout, places, forced=forced)
        for each, resizing in old.resizing.items()
    }
    for each in resizes.values():
        new.supply.take(EMPTY if each.before.grant.tenant else each.kept)
    return Reconfiguration(
        state=new,
        candidates=candidates,
        claims=[_claim(each, layout, places) for each in claims],
        resizes=resizes,
        forced=forced,
        cause="the machine changed" if forced else "the settings changed",
    )


def _candidate(
    placed: Placed, old: State, layout: Layout, places: list[int | None], *, forced: bool
) -> Candidate:
    """Return what one container claims on the new *layout*."""
    request, _ = layout.requests.read(placed.container)
    normal = placed.grant.sort is Sort.NORMAL
    pool = places[placed.grant.pool] if normal else layout.tree.top.id
    home = None if placed.grant.home is None else places[placed.grant.home]
    held, degraded = None, None
    same = request.entitlement == placed.request.entitlement
    if pool is not None and (same or not forced):  # else nothing of its place is left
        held = replace(placed.grant, pool=pool, home=home)
    if held is not None and not same:
        entitled, _ = old.layout.requests.read(placed.container)
        if request.entitlement == entitled.entitlement:  # a machine that shrank left it less
            degraded = replace(placed.request, steering=request.steering)
    cpus, mems = old.sent.get(placed.container.id, (EMPTY, EMPTY))
    return Candidate(
        container=placed.container,
        request=request,
        cpus=cpus,
        mems=mems,
        held=held,
        same=same,
        degraded=degraded,
        there=layout.capacity.reserved == old.layout.capacity.reserved,
        explanation=_explanation(placed, layout.tree),
        moved_by="new hardware" if forced else "new settings",
    )


def _stays(placed: Placed, stuck: Collection[str]) -> bool:
    """Whether a holder has stopped, or is the room of one of the *stuck* pods, where one has."""
    container = placed.container
    if container.stands_for_pod:
        return container.id in stuck
    return container.state is ContainerState.STOPPED


def _remaining(
    placed: Placed, old: State, layout: Layout, places: list[int | None], *, forced: bool
) -> Candidate:
    """Return a holder that stays with what is left of its CPUs: all, unless *forced*.

    A stopped container gets no other CPU for a lost one. Raises CapacityError.
    """
    grant, request, capacity = placed.grant, placed.request, layout.capacity
    own = grant.exclusive & (capacity.isolated if grant.isolated else capacity.sharable)
    lost = grant.exclusive - own
    if lost and not forced:
        raise CapacityError(
            f"{placed.container.full_name}: CPUs {lost} cannot be taken from it while the cgroup of"
            " a container that has ended is a kernel partition"
        )
    if not (placed.container.stands_for_pod or placed.container.claims):
        request = replace(request, exclusive=min(request.exclusive, len(own)), movable=True)
    cpus, mems = old.sent.get(placed.container.id, (EMPTY, EMPTY))
    held, pool = None, places[grant.pool]
    if pool is not None and (own or not lost):
        home = None if grant.home is None else places[grant.home]
        held = replace(grant, exclusive=own, pool=pool, home=home)
    return Candidate(
        container=placed.container,
        request=request,
        cpus=cpus,
        mems=mems,
        held=held,
        explanation=_explanation(placed, layout.tree),
        moved_by="new hardware",
    )


def _resizing(
    resizing: Resizing, old: State, layout: Layout, places: list[int | None], *, forced: bool
) -> Resizing:
    """Return an unfinished resize on the new *layout*.

    The container may still run on the CPUs that it frees, so they are kept from others.
    """
    before, capacity = resizing.before, layout.capacity
    was = _candidate(before, old, layout, places, forced=forced)
    same = was.held is not None and (was.same or was.degraded is not None)
    grant = was.held or replace(before.grant, pool=layout.tree.top.id, home=None)
    request = before.request if same else was.request
    return replace(
        resizing,
        before=replace(before, request=request, grant=grant),
        kept=resizing.kept & (capacity.sharable | capacity.isolated),
        same=same,
    )


def await_resizes(state: State, resizes: Mapping[str, Resizing]) -> None:
    """Go on with the unfinished *resizes* of containers that are placed again."""
    for each, resizing in resizes.items():
        placed, grant = state.placed[each], resizing.before.grant
        kept, pod_id = resizing.kept, placed.container.pod.id
        if grant.tenant and placed.grant.tenant:
            kept &= rest_of(state, state.rooms[pod_id])
        elif grant.tenant:  # its pod has no room any more
            kept &= state.supply.free_cpus() | state.supply.free_isolated_cpus()
            state.supply.take(kept)
            grant = replace(grant, tenant=False)
        before = replace(resizing.before, grant=grant)
        state.resizing[each] = replace(resizing, before=before, kept=kept)
        settle(state, pod_id)


def _explanation(placed: Placed, tree: PoolTree) -> Explanation | None:
    """Return a container's explanation on another *tree*; None if the pools differ."""
    why = placed.explanation
    alike = [each.name for each in why.tree.pools] == [each.name for each in tree.pools]
    return replace(why, tree=tree) if alike else None


def _claim(placed: Placed, layout: Layout, places: list[int | None]) -> Placed:
    """Return a part of a claim with its pool on the new *layout*: that of its device, if any.

    Where nothing of its pool is left it holds nothing.
    """
    device_pool = placed.container.claim_part.pool
    named = (each.id for each in layout.tree.pools if each.name == device_pool)
    pool, grant = next(named, places[placed.grant.pool]), placed.grant
    if pool is None:
        pool, grant = layout.tree.top.id, replace(grant, exclusive=EMPTY, shared=0, shares=False)
    request, _ = layout.requests.read(placed.container)
    return replace(placed, request=request, grant=replace(grant, pool=pool))


def _asks_no_more(settings: Settings, layout: Layout) -> bool:
    """Whether *settings* want the same CPUs as those in force, which a machine could not give."""
    same = (settings.reserved, settings.available) == (
        layout.settings.reserved,
        layout.settings.available,
    )
    return bool(layout.shortages) and same
