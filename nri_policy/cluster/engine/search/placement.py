"""Placing one pod set, or workers with their leader, on one tree; spec cluster.md §5."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from types import MappingProxyType

from msgspec import Struct
from msgspec.structs import replace

from nri_policy.cluster.engine.search.unfit_message import describe_empty_tree, describe_lack
from nri_policy.cluster.engine.state.filter import Filter
from nri_policy.cluster.engine.state.host_limits import Limits
from nri_policy.cluster.engine.state.shape import Path
from nri_policy.cluster.engine.state.tree import Demand, Tree
from nri_policy.cluster.objects.assignment import Assignment
from nri_policy.cluster.objects.settings import ClusterSettings
from nri_policy.cluster.requests.request import PlacementPlan, Unit, Unplaceable, make_plan
from nri_policy.native._counts import Counts
from nri_policy.native._packing import Places, Refusal, pack


class PackedUnit(Struct, frozen=True):
    """Where a unit is packed."""

    places: Places  # leaves and workers
    leader: int  # its leaf, -1 without one
    level: int  # of the domain that was asked for


def find_packing(  # noqa: PLR0913 - keywords: what counts beside what is free
    tree: Tree,
    unit: Unit,
    settings: ClusterSettings,
    *,
    held: Mapping[int, int],
    limits: Limits,
    implied: bool,
    within: Path,
) -> PackedUnit:
    """Return where *unit* is packed; raises Unplaceable.

    *held* are pods of the same group by leaf, which count for its most per host. *limits* are how
    many pods of a pod set nodes take at most. A path *within* limits the search to its domain.
    """
    inside = max(0, len(within) - 1)
    wanted = make_plan(
        unit, implied=implied, levels=tree.shape.levels, settings=settings, inside=inside
    )
    counts, kind = count(tree, unit, wanted, settings, held, limits)
    places, leader = search(tree, counts, kind, wanted, unit, find_domain_within(tree, within))
    return PackedUnit(places, leader, wanted.level)


def find_domain_within(tree: Tree, path: Path) -> int:
    """Return the domain of a path, -1 for none; raises Unplaceable if the tree has none there."""
    domain = tree.shape.domain(path) if path else -1
    if domain is None:
        raise Unplaceable(describe_empty_tree(tree, tree.shape.levels[len(path) - 1]))
    return domain


def make_assignments(tree: Tree, unit: Unit, found: PackedUnit) -> dict[str, Assignment]:
    """Return the assignment of each pod set of *unit*, by name."""
    out = {unit.workers.name: make_assignment(tree, unit.workers.name, found.places)}
    if unit.leader is not None:
        out[unit.leader.name] = make_assignment(tree, unit.leader.name, [(found.leader, 1)])
    return out


def count(  # noqa: PLR0913, PLR0917 - what is counted, and what limits it
    tree: Tree,
    unit: Unit,
    wanted: PlacementPlan,
    settings: ClusterSettings,
    held: Mapping[int, int],
    limits: Limits = MappingProxyType({}),
) -> tuple[Counts, Filter]:
    """Return how many pods and slices of *unit* fit where; raises Unplaceable for an empty tree."""
    demand = make_demand(tree, unit, wanted, settings, held)
    if limits:
        demand = replace(
            demand,
            limits=tree.by_leaf(limits.get(unit.workers.name, {})),
            leader_limits=tree.by_leaf(limits.get(unit.leader.name, {})) if unit.leader else {},
            beside=tree.by_leaf(limits.get(unit.names, {})),
        )
    return tree.counts(demand), demand.kind


def make_demand(
    tree: Tree,
    unit: Unit,
    wanted: PlacementPlan,
    settings: ClusterSettings,
    held: Mapping[int, int],
) -> Demand:
    """Return what to count for *unit*, without limits; raises Unplaceable for an empty tree."""
    if tree.is_empty():
        raise Unplaceable(describe_empty_tree(tree, tree.shape.levels[wanted.level]))
    leader, scored = unit.leader, settings.preferred_node_affinity
    return Demand(
        plan=wanted,
        pod=unit.workers.amounts,
        kind=tree.filter(unit.workers.template.spec, scored=scored),
        leader=leader.amounts if leader else None,
        leader_kind=tree.filter(leader.template.spec, scored=scored) if leader else None,
        held=held,
    )


def search(  # noqa: PLR0913, PLR0917 - what is searched for, and where
    tree: Tree, counts: Counts, kind: Filter, wanted: PlacementPlan, unit: Unit, within: int = -1
) -> tuple[Places, int]:
    """Return leaves and pods, and the leader's leaf; raises Unplaceable with the reason.

    For workers with a required level the reason names how many fit without their leader, as Kueue's
    does; beside the leader, too, if fewer fit there.
    """
    levels = tree.shape.levels
    try:
        return pack_as_wanted(counts, wanted, unit.workers.count, within)
    except Refusal as refusal:
        beside = None
        if unit.leader is not None and wanted.required:
            found = map(counts.of, tree.shape.below(within, refusal.level))
            beside = max((slices for *_, slices, leaders, _ in found if leaders), default=0)
        why = partial(
            describe_lack,
            tree.shape.topology.name,
            levels,
            wanted,
            counts,
            kind,
            count=unit.workers.count,
            fits=refusal.fits,
            beside=beside,
            level=refusal.level,
        )
        raise Unplaceable(why) from None


def pack_as_wanted(
    counts: Counts, wanted: PlacementPlan, count: int, within: int = -1
) -> tuple[Places, int]:
    """Return what `pack` does for a plan, *within* a domain if it is given; raises Refusal."""
    return pack(
        counts,
        count,
        level=wanted.level,
        required=wanted.required,
        unconstrained=wanted.unconstrained,
        ascending=wanted.ascending,
        balanced=wanted.balanced,
        compact=wanted.compact,
        within=within,
    )


def make_assignment(tree: Tree, name: str, places: Iterable[tuple[int, int]]) -> Assignment:
    """Return where a pod set is, as groups store it."""
    return Assignment(
        pod_set=name, levels=tree.shape.named_levels, domains=tree.shape.entries(places)
    )
