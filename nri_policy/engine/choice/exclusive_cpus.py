"""Exclusive CPUs: which ones a grant gets of its pool; spec placement.md §3, §8."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from nri_policy.engine.choice.cpu_shares import Share, device_shares, even_shares, pick_shares
from nri_policy.engine.choice.shortage import Lack, PlacementError
from nri_policy.engine.grant import HeldGrant
from nri_policy.engine.state.layout import Layout
from nri_policy.engine.state.state import State
from nri_policy.foundation.cpuset import EMPTY, CPUSet
from nri_policy.pools.supply import Slack
from nri_policy.pools.tree import Pool
from nri_policy.settings import FullCores
from nri_policy.workload.request import Isolation, Request


class Cut(Struct, frozen=True):
    """Exclusive CPUs picked for one request."""

    cpus: CPUSet
    isolated: bool  # whether they are kernel-isolated
    beside: bool = True  # whether preemptible containers keep their CPUs


NOTHING_CUT = Cut(EMPTY, False)


def cut_cpus(
    state: State, request: Request, pool_id: int, held: HeldGrant | None, looks: tuple[bool, ...]
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
    state: State, request: Request, pool: Pool, held: HeldGrant | None, *, with_preemptible: bool
) -> Cut:
    """Return exclusive CPUs of *pool*: as many held ones as possible, and others."""
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
    if own and whole_cores:  # §6: add the other threads of its cores
        own = CPUSet.union(
            core.cpus for core in layout.machine.cores if not core.cpus.isdisjoint(own)
        )
    if own:
        classes = (own, *(each - own for each in classes))
    exclusive = take(layout, request, pool, candidates, classes, slack)
    if (steering.hints or steering.distribute) and not own and not whole_cores:
        for area, shared_out in _find_shares(layout, request, candidates, exclusive):
            if not isolated:  # the other one is used up
                slack = supply.slack(pool.id, request.shared, shares, with_preemptible)
            other = pick_shares(layout.picker, area, shared_out, classes, slack)
            if other is not None:
                return Cut(other, isolated, with_preemptible)
    return Cut(exclusive, isolated, with_preemptible)


def _find_shares(
    layout: Layout, request: Request, candidates: CPUSet, picked: CPUSet
) -> Iterator[tuple[CPUSet, list[Share]]]:
    """Yield better ways to divide *candidates* than the *picked* ones, the best first (§6).

    Near devices on several nodes in proportion to their number, if the CPUs are on several nodes or
    the container asks for that; else on one node with more of the hints; or evenly.
    """
    steering, n, hints = request.steering, request.exclusive, layout.topology_hints
    _, nodes, caches = layout.picker.domains.touched(picked)
    devices = [each for each in hints.localities(steering.hints) if each & candidates]
    near = [cpus for hint in steering.hints if (cpus := hints.cpus(hint))]
    if 0 < len(devices) <= n and (steering.pick_by_hints or (nodes > 1 < len({*devices}))):
        yield candidates, device_shares(devices, n)
    elif nodes == 1 < len({*near}):
        scores = {
            node: sum(len(cpus & node) / len(cpus) for cpus in near) for node in layout.numa_nodes
        }
        has = max(score for node, score in scores.items() if node & picked)
        for node in sorted(scores, key=lambda node: -scores[node]):
            if scores[node] > has and len(candidates & node) >= n:
                yield candidates & node, [(node, n)]
    if steering.distribute and caches > 1:
        used = [node for node in layout.numa_nodes if node & picked]
        area = CPUSet.union(used) & candidates
        threads = max(len(core.cpus) for core in layout.machine.cores if core.cpus & area)
        yield area, even_shares(area, n, threads, (used, layout.l3_domains))


def take(  # noqa: PLR0913, PLR0917 - the request, the place and the CPUs to take
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
