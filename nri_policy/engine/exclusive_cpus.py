"""Exclusive CPUs: which ones a grant gets of its pool; spec placement.md §3, §8."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from nri_policy.engine.grant import Held
from nri_policy.engine.layout import Layout
from nri_policy.engine.shortage import Lack, PlacementError
from nri_policy.engine.state import State
from nri_policy.engine.topology_hints import per_place
from nri_policy.foundation.cpuset import EMPTY, CPUSet
from nri_policy.pools.picker import Picker
from nri_policy.pools.supply import Slack
from nri_policy.pools.tree import Pool
from nri_policy.settings import FullCores
from nri_policy.workload.request import Isolation, Request


class Cut(Struct, frozen=True):
    """Exclusive CPUs picked for one request."""

    cpus: CPUSet
    isolated: bool  # whether they are kernel-isolated ones
    beside: bool = True  # whether what is kept for preemptible containers was left to them


NOTHING_CUT = Cut(EMPTY, False)


def cut_cpus(
    state: State, request: Request, pool_id: int, held: Held | None, looks: tuple[bool, ...]
) -> Cut:
    """Return the exclusive CPUs of a request for some, in a pool that can hold it.

    Of two *looks* at it the one without preemptible containers is taken where the CPUs touch fewer
    packages, then NUMA nodes, then L3 domains (§2).
    """
    layout = state.layout
    pool = layout.tree.pools[pool_id]
    if held is not None and held.covers(request):
        own = held.grant.exclusive
        if request.exclusive < len(own):
            free = state.supply.free_cpus() & pool.cpus
            classes = [own & each for each in layout.classes[request.steering.priority]]
            rest = own - CPUSet.union(classes)
            own = take(layout, request, pool, own | free, (*classes, rest), None)
        return Cut(own, held.grant.isolated)
    with_preemptible, *again = looks
    picked = _pick(state, request, pool, held, with_preemptible=with_preemptible)
    touched = layout.picker.domains.touched
    if again and (domains := touched(picked.cpus)) != (1, 1, 1):
        other = _pick(state, request, pool, held, with_preemptible=False)
        if touched(other.cpus) < domains:
            return other
    return picked


def _pick(
    state: State, request: Request, pool: Pool, held: Held | None, *, with_preemptible: bool
) -> Cut:
    """Return exclusive CPUs of *pool*: as many as possible that were held, and others."""
    layout, supply, steering = state.layout, state.supply, request.steering
    shares = request.shares
    candidates, slack = supply.free_isolated_cpus() & pool.cpus, None
    isolated = steering.isolated is not Isolation.NO and len(candidates) >= request.exclusive
    if not isolated:
        candidates = supply.free_cpus() & pool.cpus
        slack = supply.slack(pool.id, request.shared, shares, with_preemptible)
    if steering.strict_hints:
        candidates &= layout.topology_hints.bounds(steering.hints).cpus
    classes = layout.classes[steering.priority]
    own = held.grant.exclusive if held else EMPTY
    whole_cores = steering.full_cores is FullCores.REQUIRE
    if own and whole_cores:  # §6: it has the cores of the threads that it keeps to itself
        own = CPUSet.union(
            core.cpus for core in layout.machine.cores if not core.cpus.isdisjoint(own)
        )
    if own:
        classes = (own, *(each - own for each in classes))
    exclusive = None
    if steering.pick_by_hints and not own and not whole_cores:
        places = layout.topology_hints.localities(steering.hints)
        exclusive = pick_near(layout.picker, request.exclusive, candidates, places, classes, slack)
        if exclusive is None and slack is not None:  # used up by the attempt
            slack = supply.slack(pool.id, request.shared, shares, with_preemptible)
    if exclusive is None:
        exclusive = take(layout, request, pool, candidates, classes, slack)
    return Cut(exclusive, isolated, with_preemptible)


def take(  # noqa: PLR0913, PLR0917 - for whom, where, and from what
    layout: Layout,
    request: Request,
    pool: Pool,
    candidates: CPUSet,
    classes: tuple[CPUSet, ...],
    slack: Slack | None,
) -> CPUSet:
    """Return exclusive CPUs of *pool*, of the first of *classes* as far as possible.

    ValueError where the *candidates*, or what *slack* leaves of them, are too few; PlacementError
    where only the strict hints or whole cores make them so.
    """
    whole_cores = request.steering.full_cores is FullCores.REQUIRE
    try:
        return layout.picker.pick(
            request.exclusive,
            candidates,
            classes,
            slack,
            spare_cores=request.steering.full_cores is FullCores.PREFER,
            whole_cores=whole_cores,
        )
    except ValueError as error:
        if request.steering.strict_hints:
            lack = Lack.HINTS
        elif whole_cores:
            lack = Lack.FULL_CORES
        else:
            raise
        available = 1000 * len(candidates)
        raise PlacementError(lack, request, pool=pool.name, available=available) from error


def pick_near(  # noqa: PLR0913, PLR0917 - what a pick needs, and the localities
    picker: Picker,
    n: int,
    candidates: CPUSet,
    localities: Sequence[CPUSet],
    classes: Sequence[CPUSet] = (),
    slack: Slack | None = None,
) -> CPUSet | None:
    """Return *n* of *candidates* spread over the *localities* (§8); None where that cannot be.

    As many at each if *n* can be divided, else one at each and the rest anywhere. *slack* is used
    up, also where the outcome is None.
    """
    if not 0 < len(localities) <= n:
        return None
    share = per_place(n, len(localities))
    taken = EMPTY
    try:
        # where the choice is small first
        for near in sorted(localities, key=lambda cpus: len(cpus & candidates)):
            taken |= picker.pick(share, (candidates - taken) & near, classes, slack)
        rest = n - len(taken)
        return taken | picker.pick(rest, candidates - taken, classes, slack, beside=taken)
    except ValueError:
        return None
