"""The smallest changes, each by itself, that would make a group fit. Each was tried in a fork."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import product
from math import prod

from msgspec import Struct
from msgspec.structs import replace

from nri_policy.cluster.engine.bisection import smallest_fitting
from nri_policy.cluster.engine.engine import Engine
from nri_policy.cluster.engine.preemption import find_fewest, find_lower_groups
from nri_policy.cluster.engine.unit_placement import tree_of
from nri_policy.cluster.objects.matching import find_untolerated, tolerate
from nri_policy.cluster.objects.metadata import Key
from nri_policy.cluster.objects.node import Taint
from nri_policy.cluster.objects.pod import Pod
from nri_policy.cluster.requests.group import PlacementGroup, PlacementRequest, PodSet
from nri_policy.cluster.requests.request import Unit

MAX_TRIES = 40  # trials of smaller pod counts
_MAX_COMBINATIONS = 100  # of such numbers of several pod sets
_SHARES = 16  # that are tried instead, where there are more
_MAX_TAINTS = 8  # that are tried, those of most nodes
_OF_KUBERNETES = "node.kubernetes.io/"  # keys of taints that say what is wrong with a node
COMES_BACK = ("DaemonSet", "Node")  # owners of pods that return to their node at once


class SuggestedChange(Struct, frozen=True, rename="camel", omit_defaults=True):
    """A change that would make a group fit."""

    counts: dict[str, int] = {}  # pods of these pod sets
    slices: dict[str, int] = {}  # the same in slices of several pods
    most: bool = True  # whether it would fit with no larger *counts*, as far as these were tried
    pod_sets: list[str] = []  # whose request would be another
    level: str | None = None  # use this level instead of the requested level
    slice_level: str | None = None  # the same for its slices
    max_per_host: int | None = None  # so many pods on a host
    taints: list[Taint] = []  # that its pods would have to tolerate
    leaving: list[str] = []  # groups that would have to leave, as namespace/name
    leaving_pods: list[str] = []  # pods of no group that would have to leave, in the same way
    hosts: int = 0  # so many more that are empty
    like: str = ""  # host that new hosts copy, with pods of its DaemonSets only


def find_changes(
    engine: Engine,
    group: PlacementGroup,
    steps: Sequence[Unit],
    room: Mapping[str, int],
    pods: Iterable[Pod],
) -> list[SuggestedChange]:
    """Return what would make *group*, placed in *steps*, fit into *engine*.

    By pod set, *room* is how many slices there is room for at most. *pods* are evictable pods of
    the cluster.
    """
    changes: list[SuggestedChange] = []
    if not group.status.assignments:  # else only those on failed nodes are placed
        changes += _fewer(engine, group, [unit.workers for unit in steps], room)
    for unit in steps:
        changes += _coarser(engine, group, unit)
        changes += _coarser_slices(engine, group, unit)
        changes += _more_per_host(engine, group, unit.workers)
    return [*changes, *_tolerating(engine, group), *_leaving(engine, group, pods)]


def _with(group: PlacementGroup, *changed: PodSet) -> PlacementGroup:
    new = {each.name: each for each in changed}
    return replace(group, pod_sets=tuple(new.get(each.name, each) for each in group.pod_sets))


def _fits(engine: Engine, group: PlacementGroup) -> bool:
    return engine.place(group, explain=False).state == "Placed"


def _fewer(
    engine: Engine, group: PlacementGroup, pod_sets: Sequence[PodSet], room: Mapping[str, int]
) -> Iterator[SuggestedChange]:
    """Yield the most pods of each pod set with which the group fits; else of several at once."""
    wanted = [each.count // _size(each) for each in pod_sets]
    most = [min(room[each.name], number) for each, number in zip(pod_sets, wanted, strict=True)]
    if not all(most):
        return

    def fits(numbers: Sequence[int]) -> bool:
        changed = (
            replace(each, count=number * _size(each))
            for each, number in zip(pod_sets, numbers, strict=True)
        )
        return _fits(engine, _with(group, *changed))

    found = False
    for at, number in enumerate(wanted):
        others = zip(most[:at] + most[at + 1 :], wanted[:at] + wanted[at + 1 :], strict=True)
        if any(one < all_ for one, all_ in others):
            continue  # another pod set lacks room whatever the size of this set
        less, exact = _largest_at(fits, wanted, at, min(most[at], number - 1))
        if less:
            found = True
            yield _smaller({at: less}, pod_sets, exact=exact)
    if not found and len(pod_sets) > 1:
        numbers, exact = _largest_together(fits, most)
        less_of = {at: each for at, each in enumerate(numbers) if each < wanted[at]}
        if less_of:
            yield _smaller(less_of, pod_sets, exact=exact)


def _size(pod_set: PodSet) -> int:
    """Return how many pods of a pod set come and go together."""
    return pod_set.request.slices[0].size if pod_set.request and pod_set.request.slices else 1


def _smaller(
    numbers: Mapping[int, int], pod_sets: Sequence[PodSet], *, exact: bool
) -> SuggestedChange:
    sizes = {pod_sets[at].name: (number, _size(pod_sets[at])) for at, number in numbers.items()}
    return SuggestedChange(
        counts={name: number * size for name, (number, size) in sizes.items()},
        slices={name: number for name, (number, size) in sizes.items() if size > 1},
        most=exact,
    )


def _largest_at(
    fits: Callable[[Sequence[int]], bool], numbers: Sequence[int], at: int, high: int
) -> tuple[int, bool]:
    """Return the result of `_largest` for one of *numbers*, with fixed others."""
    return _largest(lambda number: fits([*numbers[:at], number, *numbers[at + 1 :]]), high)


def _largest(fits: Callable[[int], bool], high: int) -> tuple[int, bool]:
    """Return the largest number up to *high* that *fits*, 0 for none; and whether it is sure.

    Usually, where a number fits, all smaller ones fit too, but not always. So numbers above the one
    found by bisection are tried one by one, unless there are more than MAX_TRIES.
    """
    low = 0
    if high > MAX_TRIES:
        low = smallest_fitting(0, high + 1, lambda number: not fits(number)) - 1
    if high - low > MAX_TRIES:
        return low, False
    return next((each for each in range(high, low, -1) if fits(each)), low), True


def _largest_together(
    fits: Callable[[Sequence[int]], bool], most: Sequence[int]
) -> tuple[list[int], bool]:
    """Return numbers up to *most* that fit together, with most in sum; nothing if none are found.

    Where there are too many, only equal shares of all, of which each is then made as large as it
    can be. Also returns whether all were tried.
    """
    if prod(most) <= _MAX_COMBINATIONS:
        every = sorted(product(*(range(1, each + 1) for each in most)), key=sum, reverse=True)
        return [*next((each for each in every if fits(each)), ())], True
    for share in range(_SHARES, 0, -1):
        numbers = [max(1, each * share // _SHARES) for each in most]
        if fits(numbers):
            for at, each in enumerate(most):
                numbers[at] = max(numbers[at], _largest_at(fits, numbers, at, each)[0])
            return numbers, False
    return [], False


def _coarser(engine: Engine, group: PlacementGroup, unit: Unit) -> list[SuggestedChange]:
    """Return the finest level above a required one at which the group fits."""
    request = unit.workers.request
    if request is None or request.required is None:
        return []
    levels = tree_of(engine.state, unit).shape.levels
    asking = [each for each in unit.pod_sets if each.request and each.request.required is not None]
    for level in reversed(levels[: levels.index(request.required)]):
        changed = [_requesting(each, required=level) for each in asking]
        if _fits(engine, _with(group, *changed)):
            return [SuggestedChange(pod_sets=[each.name for each in asking], level=level)]
    return []


def _requesting(pod_set: PodSet, **asked: object) -> PodSet:
    """Return a pod set whose request asks for something else."""
    own = replace(pod_set.request or PlacementRequest(), **asked)
    return replace(pod_set, request=own)


def _coarser_slices(engine: Engine, group: PlacementGroup, unit: Unit) -> list[SuggestedChange]:
    """Return the finest level above that of the outer slices at which the group fits."""
    pod_set, request = unit.workers, unit.workers.request
    if request is None or not request.slices:
        return []
    levels = tree_of(engine.state, unit).shape.levels
    top = request.required or request.preferred or levels[0]
    outer, *inner = request.slices
    for level in reversed(levels[levels.index(top) : levels.index(outer.level)]):
        slices = [replace(outer, level=level), *inner]
        if _fits(engine, _with(group, _requesting(pod_set, slices=slices))):
            return [SuggestedChange(pod_sets=[pod_set.name], slice_level=level)]
    return []


def _more_per_host(engine: Engine, group: PlacementGroup, pod_set: PodSet) -> list[SuggestedChange]:
    """Return the fewest pods on a host, over those allowed, with which the group fits."""
    request = pod_set.request
    if request is None or request.max_per_host is None:
        return []
    low, high = request.max_per_host, pod_set.count  # low is refused; if high is, too, all are

    def fits(most: int) -> bool:
        return _fits(engine, _with(group, _requesting(pod_set, max_per_host=most)))

    if high <= low or not fits(high):
        return []
    most = smallest_fitting(low, high, fits)
    return [SuggestedChange(pod_sets=[pod_set.name], max_per_host=most)]


def _tolerating(engine: Engine, group: PlacementGroup) -> list[SuggestedChange]:
    """Return each taint of nodes with whose toleration the group fits; else the fewest together."""
    taints = _find_repelling(engine, group)

    def fits(tolerated: Sequence[Taint]) -> bool:
        return _fits(engine, _with(group, *(_bearing(each, tolerated) for each in group.pod_sets)))

    enough = [each for each in taints if fits([each])]
    if not enough and len(taints) > 1:
        together = find_fewest(taints, fits)
        return [SuggestedChange(taints=together)] if together else []
    return [SuggestedChange(taints=[each]) for each in enough]


def _find_repelling(engine: Engine, group: PlacementGroup) -> list[Taint]:
    """Return the taints that keep pods of a group off most nodes, as long as these are well."""
    state = engine.state
    found: Counter[Taint] = Counter()
    for pod_set in group.pod_sets:
        topology = state.topology_of(pod_set)
        tolerations = (
            *pod_set.template.spec.tolerations,
            *(topology.tolerations if topology else ()),
        )
        for node in state.nodes.values():
            found.update(
                each
                for each in node.taints
                if not each.key.startswith(_OF_KUBERNETES) and find_untolerated([each], tolerations)
            )
    return [taint for taint, _ in found.most_common(_MAX_TAINTS)]


def _bearing(pod_set: PodSet, taints: Iterable[Taint]) -> PodSet:
    """Return a pod set whose pods tolerate *taints*."""
    spec = pod_set.template.spec
    spec = replace(spec, tolerations=(*spec.tolerations, *map(tolerate, taints)))
    return replace(pod_set, template=replace(pod_set.template, spec=spec))


def _leaving(engine: Engine, group: PlacementGroup, pods: Iterable[Pod]) -> list[SuggestedChange]:
    """Return the groups, and the pods of none, of lower priority whose leaving makes room.

    Both at once only where neither is enough.
    """
    known = engine.state.pods()
    lower = [
        each
        for each in pods
        if each.priority < group.priority
        and each.key in known
        and not any(owner.kind in COMES_BACK for owner in each.owners)
    ]
    lower.sort(key=lambda each: each.key)
    lower.sort(key=lambda each: each.created, reverse=True)
    lower.sort(key=lambda each: each.priority)
    search = _Leaving(engine, group)
    groups = find_lower_groups(engine.state.groups.values(), group.priority)
    found = [*search.find(groups, ()), *search.find((), lower)]
    return found or search.find(groups, lower)


class _Leaving:
    """Searches for victims whose eviction lets a group fit."""

    def __init__(self, engine: Engine, group: PlacementGroup) -> None:
        self._engine = engine
        self._group = group
        self._without_groups = engine.fork()  # of which groups are taken out, and put back

    def find(self, groups: Sequence[Key], pods: Sequence[Pod]) -> list[SuggestedChange]:
        """Return the fewest of *groups* and *pods* whose leaving makes the group fit."""
        if not groups and not pods:
            return []
        order: list[Key | Pod] = [*self._in_the_way(groups, pods), *groups]
        gone = find_fewest(order, self._fits_without)
        pods_gone = sorted(each.full_name for each in _pods_of(gone))
        groups_gone = sorted("/".join(each) for each in _groups_of(gone))
        return [SuggestedChange(leaving=groups_gone, leaving_pods=pods_gone)] if gone else []

    def _in_the_way(self, groups: Sequence[Key], pods: Sequence[Pod]) -> Sequence[Pod]:
        """Return those of *pods* at the places that the group gets without all of them."""
        status = self._without([*groups, *pods]).place(self._group)
        hosts = {
            value for each in status.assignments for one in each.domains for value in one.values
        }
        some = [each for each in pods if self._host(each) in hosts]
        return some if self._fits_without([*groups, *some]) else pods

    def _host(self, pod: Pod) -> str:
        node = self._engine.state.nodes.get(pod.node)
        return pod.node if node is None else node.host

    def _fits_without(self, gone: Sequence[Key | Pod]) -> bool:
        return _fits(self._without(gone), self._group)

    def _without(self, gone: Sequence[Key | Pod]) -> Engine:
        """Return a fork without these."""
        trial = self._without_groups
        trial.state.take_out(_groups_of(gone))
        if pods := _pods_of(gone):
            trial = trial.fork()
            trial.state.end(pods)
        return trial


def _groups_of(gone: Iterable[Key | Pod]) -> list[Key]:
    return [each for each in gone if not isinstance(each, Pod)]


def _pods_of(gone: Iterable[Key | Pod]) -> list[Pod]:
    return [each for each in gone if isinstance(each, Pod)]
