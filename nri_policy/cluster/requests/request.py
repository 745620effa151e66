"""What a pod set asks for, made into a plan for one topology; spec cluster.md §3 and §5.

| case | level | |
|---|---|---|
| `required`, `preferred` | that one | |
| slices alone | the topmost | unconstrained |
| `unconstrained`, nothing | the last | unconstrained; nothing: all pod sets of the group are |

`Unplaceable` is what depends on the cluster; `rules` has what is wrong with the request alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property

from msgspec import Struct, field
from msgspec.structs import replace

from nri_policy.cluster.objects.document import join
from nri_policy.cluster.objects.node import HOSTNAME
from nri_policy.cluster.objects.settings import ClusterSettings
from nri_policy.cluster.requests.annotations import (
    is_together,
    read_exclusive_level,
    read_together,
    request_of,
    with_constraints,
)
from nri_policy.cluster.requests.group import (
    PlacementGroup,
    PlacementRequest,
    PodSet,
    Slice,
    Together,
)
from nri_policy.cluster.requests.rules import (
    check_leader_group,
    check_request,
    check_together,
    check_whole_slices,
    require_one_together,
)

_COARSE = ("topology.kubernetes.io/region", "topology.kubernetes.io/zone")
NO_LEVEL = "topology level not specified"
MAX_UNITS = 4096  # pod sets of groups of which the units are kept


class Unplaceable(Exception):  # noqa: N818 - an answer, not a fault
    """A pod set cannot be placed; the text says why, and is made when it is asked for."""

    def __init__(self, text: str | Callable[[], str]) -> None:
        super().__init__(text)
        self._text = text

    def __str__(self) -> str:
        return self._text if isinstance(self._text, str) else self._text()


class Unit(Struct, frozen=True, kw_only=True, dict=True):
    """Pod sets that are placed in one step: workers, and perhaps a leader."""

    workers: PodSet
    leader: PodSet | None = None

    @property
    def pod_sets(self) -> tuple[PodSet, ...]:
        """Both."""
        return (self.workers,) if self.leader is None else (self.workers, self.leader)

    @property
    def names(self) -> tuple[str, ...]:
        """Their names."""
        return tuple(each.name for each in self.pod_sets)

    @cached_property
    def named_levels(self) -> Sequence[str]:
        """The levels that its request names."""
        return named_levels(self.workers.request)

    @cached_property
    def requests_nothing(self) -> bool:
        """Whether neither pod set names where its pods are to go."""
        return not any(requests_topology(each.request) or is_spread(each) for each in self.pod_sets)

    @cached_property
    def plans(self) -> dict[object, PlacementPlan]:
        """What `plan` has returned: each attempt to place a group asks again."""
        return {}


# By the identity of the pod sets, which are kept beside: each attempt to place a group asks again.
_units: dict[int, tuple[tuple[PodSet, ...], Sequence[Unit]]] = {}


class PlacementPlan(Struct, frozen=True, kw_only=True):
    """A request on one topology; levels by index."""

    level: int
    slice_level: int
    size: int = 1
    inner: dict[int, int] = field(default_factory=dict)  # level -> size of the layer there
    layers: tuple[Slice, ...] = ()
    required: bool = False
    unconstrained: bool = False
    ascending: bool = False  # LeastFree
    compact: bool = False  # below the slice level
    balanced: bool = False
    most: int | None = None  # on a host
    apart: int = -1  # level of which each domain takes one pod
    capped: int = -1  # level where `apart` is counted; finer if all pods share a finer domain


def requests_topology(request: PlacementRequest | None) -> bool:
    """Return whether a request names where its pods are to go."""
    return request is not None and bool(
        request.required or request.preferred or request.unconstrained or request.slices
    )


def with_slices(request: PlacementRequest, slices: list[Slice]) -> PlacementRequest:
    """Return *request* with some of its *slices*: unconstrained if it names no level then."""
    if slices == request.slices:
        return request
    fewer = replace(request, slices=slices)
    return fewer if requests_topology(fewer) else replace(fewer, unconstrained=True)


def prefer_level(unit: Unit, level: str) -> Unit:
    """Return *unit*, with its pods in one domain of *level* if they can be and name no other."""
    request = unit.workers.request or PlacementRequest()
    if request.required or request.preferred or request.slices or is_spread(unit.workers):
        return unit
    request = replace(request, preferred=level, unconstrained=False)
    workers = replace(unit.workers, request=request)
    return replace(unit, workers=workers)


def named_levels(request: PlacementRequest | None) -> list[str]:
    """Return the levels that a request names."""
    if request is None:
        return []
    slices = (each.level for each in request.slices)
    levels = (request.required, request.preferred, request.exclusive, *slices)
    return [each for each in levels if each is not None]


def is_spread(pod_set: PodSet) -> bool:
    """Return whether a pod set is to be spread."""
    return bool(spread_labels(pod_set.request))


def spread_labels(request: PlacementRequest | None) -> list[str]:
    """Return over which labels pods are spread, as in `spreadOver`.

    Without `spreadOver`, the labels of spread constraints; pods of slices are not spread.
    """
    if request is None or request.spread_over or request.slices:
        return [] if request is None else request.spread_over
    return sorted(request.max_skew, key=_coarseness)


def _coarseness(label: str) -> int:
    return _COARSE.index(label) if label in _COARSE else len(_COARSE) + (label == HOSTNAME)


def resolve_requests(group: PlacementGroup) -> list[PodSet]:
    """Return the pod sets, each with the request that its template makes, if any.

    Raises DocumentError for requests that break a rule.
    """
    found = []
    for number, each in enumerate(group.pod_sets):
        path, pod_set = f"spec.podSets[{number}]", each
        if pod_set.request is None:
            request = request_of(pod_set.template, join(path, "template.metadata"))
        else:
            request = with_constraints(pod_set.request, pod_set.template)
        if request != pod_set.request:
            pod_set = replace(pod_set, request=request)
        if pod_set.request is not None:
            check_request(pod_set.request, join(path, "request"))
            if pod_set.request.leader_group is None:
                check_whole_slices(pod_set, path)
        found.append(pod_set)
    return found


def units_of(group: PlacementGroup) -> Sequence[Unit]:
    """Return the pod sets of *group* in the order in which they are placed.

    Raises DocumentError for requests that break a rule.
    """
    known = _units.get(id(group.pod_sets))
    if known is not None and known[0] is group.pod_sets:
        return known[1]
    found = _find_units(group)
    if len(_units) >= MAX_UNITS:
        _units.clear()
    _units[id(group.pod_sets)] = group.pod_sets, found
    return found


def _find_units(group: PlacementGroup) -> Sequence[Unit]:
    found: dict[str, list[PodSet]] = {}
    for number, pod_set in enumerate(resolve_requests(group)):
        name = pod_set.request.leader_group if pod_set.request else None
        found.setdefault(f"group {name}" if name else f"set {number}", []).append(pod_set)
    out = []
    names = [each.name for each in group.pod_sets]
    for key, members in found.items():
        if key.startswith("set "):
            out.append(Unit(workers=members[0]))
            continue
        check_leader_group(key.removeprefix("group "), members)
        first, second = members
        if not first.count or not second.count:  # no leader, or no workers
            out += [Unit(workers=first), Unit(workers=second)]
            continue
        leader, workers = (second, first) if second.count <= first.count else (first, second)
        at = names.index(workers.name)  # slices are of workers
        check_whole_slices(workers, f"spec.podSets[{at}]")
        out.append(Unit(workers=workers, leader=leader))
    return out


def together_of(group: PlacementGroup) -> Together | None:
    """Return the level of which all pod sets of a group share a domain, None without one.

    The group names it, or any template. Raises DocumentError for two of them.
    """
    if not names_shared_level(group):
        return None  # mostly
    found: dict[str, Together] = {}
    if group.together is not None:
        check_together(group.together, "spec.together")
        found["spec.together"] = group.together
    for number, each in enumerate(group.pod_sets):
        template = each.template
        if is_together(template):
            path = f"spec.podSets[{number}].template.metadata"
            found[path] = read_together(template.annotations, template.labels, path)
    return require_one_together(found)


def names_shared_level(group: PlacementGroup) -> bool:
    """Whether a group, or any of its templates, names a level of which all share a domain."""
    return group.together is not None or any(is_together(each.template) for each in group.pod_sets)


def job_set_sharing(group: PlacementGroup | None) -> str:
    """Return the uid of the JobSet whose steps a group shares a domain with; empty without one.

    The steps are groups that name a level to share.
    """
    if group is None or not group.job_set or not names_shared_level(group):
        return ""  # mostly
    return group.job_set


def exclusive_of(pod_sets: Iterable[PodSet]) -> str | None:
    """Return the level of which the group of *pod_sets* has a domain to itself, None without one.

    The first that names a level decides.
    """
    for each in pod_sets:
        request = each.request
        if request is not None and request.exclusive:
            return request.exclusive
        if request is None and (level := read_exclusive_level(each.template.annotations)):
            return level
    return None


def make_plan(
    unit: Unit,
    *,
    implied: bool,
    levels: tuple[str, ...],
    settings: ClusterSettings,
    inside: int = 0,
) -> PlacementPlan:
    """Return what *unit* asks for on a tree of *levels*; raises Unplaceable.

    *implied*: the unit names no level, and is not constrained. All pods go into one domain of the
    level *inside*.
    """
    asked = implied, levels, settings.algorithm, settings.balanced, inside
    found = unit.plans.get(asked)
    if found is None:
        found = unit.plans[asked] = _plan(
            unit, implied=implied, levels=levels, settings=settings, inside=inside
        )
    return found


def _plan(
    unit: Unit, *, implied: bool, levels: Sequence[str], settings: ClusterSettings, inside: int
) -> PlacementPlan:
    request = unit.workers.request or PlacementRequest()
    if inside:
        request = _inside(request, levels[:inside])
    slices_alone = bool(request.slices) and not (request.required or request.preferred)
    unconstrained = request.unconstrained or implied or slices_alone
    name = request.required or request.preferred
    if name is None:
        name = _level_without_a_name(request, unit, levels, implied=implied)
    level = max(_index(name, levels, "topology level"), inside)
    apart = min(map(levels.index, {*request.apart_over} & {*levels}), default=-1)
    outer = request.slices[0] if request.slices else None
    slice_level = len(levels) - 1
    if outer is not None:
        slice_level = _index(outer.level, levels, "topology level for slices")
        if level > slice_level:
            raise Unplaceable(
                f"podset slice topology {outer.level} is above the podset topology {name}"
            )
    balanced = request.algorithm == "Balanced" or (request.algorithm is None and settings.balanced)
    algorithm = settings.algorithm
    if request.algorithm is not None and request.algorithm != "Balanced":
        algorithm = request.algorithm
    if apart >= 0:  # each of its domains takes one, and is filled by itself
        level = max(min(level, apart), inside)
        slice_level = max(min(slice_level, apart), level)
    return PlacementPlan(
        level=level,
        slice_level=slice_level,
        size=outer.size if outer else 1,
        inner=_inner(request.slices, levels, slice_level),
        layers=tuple(request.slices) if len(request.slices) > 1 else (),
        required=request.required is not None,
        unconstrained=unconstrained,
        ascending=algorithm == "LeastFree" or (algorithm in {"Compact", "Mixed"} and unconstrained),
        compact=algorithm == "Compact",
        balanced=balanced and request.required is None and not unconstrained,
        most=request.max_per_host,
        apart=apart,
        capped=max(apart, inside) if apart >= 0 else -1,
    )


def _inside(request: PlacementRequest, coarser: Sequence[str]) -> PlacementRequest:
    """Return *request* without slices of *coarser* levels: inside one domain they are whole."""
    return with_slices(request, [each for each in request.slices if each.level not in coarser])


def _level_without_a_name(
    request: PlacementRequest, unit: Unit, levels: Sequence[str], *, implied: bool
) -> str:
    if request.slices:
        return levels[0]
    mate = unit.leader is not None and requests_topology(unit.leader.request)
    if request.unconstrained or (implied and not mate):
        return levels[-1]
    raise Unplaceable(NO_LEVEL)


def _inner(slices: Sequence[Slice], levels: Sequence[str], above: int) -> dict[int, int]:
    """Return the size of the inner layer at every level below the outer one down to the innermost.

    Levels between two layers have the next inner one's.
    """
    sizes: dict[int, int] = {}
    for each in slices[1:]:
        level = _index(each.level, levels, "topology level for additional slice layer")
        if level <= above:
            raise Unplaceable(
                f"additional slice layer topology {each.level} must be at a lower level than"
                f" {levels[above]}"
            )
        sizes |= dict.fromkeys(range(above + 1, level + 1), each.size)
        above = level
    return sizes


def _index(name: str, levels: Sequence[str], what: str) -> int:
    if name in levels:
        return levels.index(name)
    raise Unplaceable(f"no requested {what}: {name}")
