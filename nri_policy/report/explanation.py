"""Explanations: why a container is where it is, or why it was refused (`explain`).

Owns the sentences. Made from what the engine recorded with the decision.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from msgspec import UNSET, Struct, UnsetType

from nri_policy.engine.choice.criteria import CRITERIA, REASONS
from nri_policy.engine.choice.placement_notes import lacks_cpus
from nri_policy.engine.choice.shortage import describe_cpus
from nri_policy.engine.explanation import DecisionKind, Explanation
from nri_policy.engine.grant import Grant
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.foundation.units import count_cpus, format_cpu
from nri_policy.foundation.wording import counted, some
from nri_policy.manifests.quality_of_service import QoS
from nri_policy.pools.supply import Column, Table
from nri_policy.pools.tree import PoolTree
from nri_policy.report.amount import cpu_amount
from nri_policy.report.answer import AnswerReport
from nri_policy.report.classes import ClassItemReport
from nri_policy.report.hint import HintReport
from nri_policy.workload.amounts import AmountSource
from nri_policy.workload.annotation_values import ASSIGNED_HINTS, HintKind
from nri_policy.workload.hints import Hint
from nri_policy.workload.peers import Pulls
from nri_policy.workload.request import Request, Sort

_MOST_NAMED = 4  # pools in a sentence

Number = int | float  # whole ones without a point
Value = Number | tuple[Number, ...]  # of a criterion: a number, or two


class RequestReport(Struct, frozen=True, kw_only=True):
    """What a container asks for."""

    sort: Sort
    qos: QoS
    exclusive: int  # CPUs
    shared_milli: int
    isolated: str  # no, preferred, required
    cpu_limit_milli: int | None
    source: AmountSource = AmountSource.ESTIMATE  # of these amounts


class CandidateReport(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A pool that was compared."""

    pool: str
    fits: bool
    shortfall: int  # milli-CPU
    values: tuple[Value, ...]  # by criterion
    lost_on: str | None  # criterion
    far: str = ""  # strict hints without a device near the pool; they exclude it


class ChangeReport(Struct, frozen=True, kw_only=True):
    """A change of a container by another container's event."""

    time: str
    cause: str
    cpus: CPUSet
    mems: CPUSet


class ExplanationReport(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A decision about a container."""

    container: str  # namespace/pod/name
    outcome: DecisionKind
    summary: str
    why: str | None  # reason for the pool; None if no pools were compared
    because: str | None  # reason why it has no exclusive CPUs
    request: RequestReport | None  # None if its annotations are invalid
    criteria: tuple[str, ...]
    candidates: tuple[CandidateReport, ...]
    decided_by: str | None  # criterion
    pool: str | None
    affinity: tuple[str, ...]  # attracting and repelling containers, strongest first
    notes: tuple[str, ...]
    room: RequestReport | None = None  # the pod's request, if pools were compared for its room
    granted: str | None = None  # granted CPUs in words; None if unknown
    answer: AnswerReport | None = None  # present state; only of containers on the node
    devices: tuple[HintReport, ...] = ()  # and mounts that counted; only of containers on the node
    classes: tuple[ClassItemReport, ...] | None = None  # what they give it
    # of a container that is gone, or a refused resize
    decided_at: str | None = None
    count: int = 1  # how often it was refused, and
    last: str | None = None  # when last, of more than once
    # of a container that is gone
    ended_at: str | UnsetType | None = UNSET  # None if unknown
    unset: bool = False  # its CPUs were decided and not set: pinCPU was false
    changes: tuple[ChangeReport, ...] | None = None  # by others, the latest first
    placed_before: ExplanationReport | None = (
        None  # of a container that ran before the daemon's start
    )
    refused_resize: ExplanationReport | None = None  # a later one
    annotations: tuple[str, ...] | None = None  # remarks about unknown keys and bad values


def explanation_report(explanation: Explanation, grant: Grant | None) -> ExplanationReport:
    """Return what is shown of an explanation, and of its *grant*; None: refused, or not known."""
    table = explanation.table
    decided = against_others = None
    candidates: tuple[CandidateReport, ...] = ()
    if table is not None:
        # where the container was to stay, or made room later, the comparison did not decide
        best = table.best() if table.best() == explanation.pool else None
        rivals = [p for p in range(table.count) if table.fits(p) and p != best]
        decided = _find_decider(table, best, rivals)
        against_others = _find_decider(table, best, _not_around(explanation.tree, best, rivals))
        candidates = tuple(_candidate(explanation, table, p, best) for p in range(table.count))
    reason = against_others or decided
    why, because = _why(explanation, candidates, reason), _because(explanation)
    if explanation.room is not None and table is None:
        why = "its pod's room was there already"
    if grant is not None and lacks_cpus(explanation, grant):
        asked = "" if explanation.request is None else describe_cpus(explanation.request)
        because = f"It has less than it asks for because there was no room for {asked}."
        if table is not None and table.best() is None:
            why = f"no pool has room for {asked}{_closest(explanation)}"
    granted = _granted(explanation, grant)
    return ExplanationReport(
        container=explanation.container,
        outcome=explanation.kind,
        summary=_summary(explanation, granted, why),
        why=why,
        because=because,
        request=None if explanation.request is None else _request(explanation.request),
        criteria=tuple(criterion.name for criterion in CRITERIA),
        candidates=candidates,
        decided_by=decided,
        pool=explanation.pool_name,
        affinity=tuple(_pulls(explanation)),
        notes=explanation.notes,
        room=None if explanation.room is None else _request(explanation.room),
        granted=granted,
    )


def _request(request: Request) -> RequestReport:
    return RequestReport(
        sort=request.sort,
        qos=request.qos,
        exclusive=request.exclusive,
        shared_milli=request.shared,
        isolated=request.steering.isolated.name.lower(),
        cpu_limit_milli=request.cpu_limit,
        source=request.steering.source,
    )


def _pulls(explanation: Explanation) -> Iterator[str]:
    """List containers that attracted or repelled it, strongest first; or that none matched."""
    if unmatched := explanation.unmatched:
        yield unmatched
    pulls = explanation.pulls or ()
    for pull in pulls.named() if isinstance(pulls, Pulls) else pulls:
        verb = "pulled by" if pull.weight > 0 else "pushed by"
        where = explanation.tree.pools[pull.pool].name
        yield f"{verb} {pull.full_name} ({pull.weight:+d}) on {where}"


def _candidate(
    explanation: Explanation, table: Table, pool: int, best: int | None
) -> CandidateReport:
    row = table.row(pool)
    fits = table.fits(pool)
    lost_on = None
    if fits and best is not None and pool != best:
        lost_on = _first_difference(table, best, pool)
    return CandidateReport(
        pool=explanation.tree.pools[pool].name,
        fits=fits,
        shortfall=table.missing(pool),
        values=tuple(_value([row[column] for column in c.columns]) for c in CRITERIA),
        lost_on=lost_on,
        far="" if fits else _far(explanation, pool),
    )


def _far(explanation: Explanation, pool: int) -> str:
    """Return the strict hints that have no device near a pool: of one source, one is enough."""
    request, where = explanation.compared, explanation.tree.pools[pool]
    if request is None or not request.steering.strict_hints:
        return ""
    nodes = CPUSet.union(where.memory.values())
    sources: dict[str, list[Hint]] = {}
    for hint in request.steering.hints:
        sources.setdefault(hint.source, []).append(hint)
    return some(
        {
            hint.place
            for hints in sources.values()
            for hint in hints
            if all(
                each.cpus.isdisjoint(where.cpus) if each.cpus else each.nodes.isdisjoint(nodes)
                for each in hints
            )
        }
    )


def _not_around(tree: PoolTree, best: int | None, rivals: Sequence[int]) -> list[int]:
    """Return the *rivals* that do not contain the best pool: why it is there, and not elsewhere.

    Against those around it some later criterion may have decided, such as memory on fewer nodes.
    """
    if best is None:
        return []
    return [rival for rival in rivals if not tree.pools[best].cpus <= tree.pools[rival].cpus]


def _find_decider(table: Table, best: int | None, rivals: list[int]) -> str | None:
    """Return the criterion that beat the last rival: the latest one on which any rival lost."""
    if best is None:
        return None
    names = [criterion.name for criterion in CRITERIA]
    lost = [_first_difference(table, best, rival) for rival in rivals]
    return max(lost, key=names.index, default=None)


def _first_difference(table: Table, one: int, other: int) -> str:
    a, b = table.row(one), table.row(other)
    column = next(column for column in Column if a[column] != b[column])
    return next(criterion.name for criterion in CRITERIA if column in criterion.columns)


def _closest(explanation: Explanation) -> str:
    """Name the closest pool that lacked CPUs, and how many CPUs it lacked."""
    table = explanation.table
    lacking = [] if table is None else [p for p in range(table.count) if table.missing(p)]
    if table is None or not lacking:
        return ""
    pool = min(lacking, key=lambda p: (table.missing(p), p))
    return f": {explanation.tree.pools[pool].name} is {count_cpus(table.missing(pool))} short"


def _because(explanation: Explanation) -> str | None:
    """Say why a container has no exclusive CPUs; None if it has some."""
    request = explanation.request
    if request is None or explanation.kind is DecisionKind.REFUSED:
        return None
    because = request.steering.because
    if not because:
        return None
    match request.sort:
        case Sort.RESERVED:
            return f"It is on the reserved CPUs because {because}."
        case Sort.PRESERVE:
            return f"Its CPUs are left as they are because {because}."
        case Sort.NORMAL:
            if explanation.kind in {DecisionKind.TENANT, DecisionKind.CLAIMED}:
                return None
            return None if request.exclusive else f"It shares CPUs because {because}."


def _kinds_of_hints(hints: Iterable[Hint]) -> str:
    """Return what the *hints* are of."""
    kinds = {hint.kind in {HintKind.DEVICES, *ASSIGNED_HINTS} for hint in hints}
    return "devices and mounts" if len(kinds) > 1 else "devices" if True in kinds else "mounts"


def _by_hints(tree: PoolTree, pool: int, hints: Iterable[Hint], decided: str) -> str | None:
    """Return why hints decided for *pool*; None where others did, or some are elsewhere."""
    nodes = CPUSet.union(tree.pools[pool].memory.values())
    places = {(hint.cpus, hint.nodes) for hint in hints}
    inside = all(
        cpus <= tree.pools[pool].cpus if cpus else where <= nodes for cpus, where in places
    )
    if decided not in {"hints", "hint_depth"} or not places or not inside:
        return None
    what = _kinds_of_hints(hints)
    if len(places) == 1:
        return f"it is the smallest pool with room that contains its {what.removesuffix('s')}"
    count = "both" if len(places) == 2 else f"all {len(places)}"
    return f"it is the smallest pool with room that contains {count} {what}"


def _value(parts: list[float]) -> Value:
    plain = tuple(int(part) if part == int(part) else part for part in parts)
    return plain[0] if len(plain) == 1 else plain


def _why(
    explanation: Explanation, candidates: Iterable[CandidateReport], decided: str | None
) -> str | None:
    """Give the reason for the chosen pool; None if no pools were compared.

    What *decided* is what the last pool elsewhere lost on, or where none had room, one around it.
    """
    request, pool = explanation.compared, explanation.pool
    if pool is None or request is None or request.sort is not Sort.NORMAL:
        return None
    name = explanation.tree.pools[pool].name
    if decided == "id":
        equal = [name, *(each.pool for each in candidates if each.lost_on == "id")]
        return f"{_enumerate(equal)} are equally good, and the lowest number wins"
    if decided:
        reason = _by_hints(explanation.tree, pool, request.steering.hints, decided)
        if decided == "isolated_fit":
            reason = f"only {name} has enough isolated CPUs"
        return reason or _by_room(request, candidates, name, decided) or REASONS[decided]
    if [each.pool for each in candidates if each.fits] == [name]:
        if request.steering.strict_hints and request.steering.hints:
            near = _kinds_of_hints(request.steering.hints)
            return f"its hints are strict, and no other pool near its {near} has room"
        return f"no other pool has room{_closest(explanation)}"
    return None


def _by_room(
    request: Request, candidates: Iterable[CandidateReport], pool: str, decided: str
) -> str | None:
    """Say how remaining capacity decided for *pool*; None if another criterion decided."""
    if decided != "capacity":
        return None
    index = next(i for i, criterion in enumerate(CRITERIA) if criterion.name == decided)
    first = {each.pool: _first(each.values[index]) for each in candidates}
    if request.exclusive:  # counted down where less is better
        return None if first[pool] > 0 else "fewest CPUs are left there (packing: tight)"
    lost = [each.pool for each in candidates if each.lost_on == decided]
    fewest, equal = "fewest containers share CPUs there", first[pool]
    if all(first[each] != equal for each in lost):
        return fewest
    most = "most CPU is left to share there"
    return most if all(first[each] == equal for each in lost) else f"{fewest}, then {most}"


def _first(value: Value) -> float:
    return value[0] if isinstance(value, tuple) else value


def _enumerate(pools: Sequence[str]) -> str:
    """Return names as a sentence has them: `NUMA nodes #0, #1 and #3`."""
    if len(pools) > _MOST_NAMED:
        return f"{len(pools)} pools"
    stems, _, numbers = zip(*(name.rpartition(" ") for name in pools), strict=True)
    alike = len({*stems}) == 1
    *first, last = numbers if alike else pools
    listed = f"{', '.join(first)} and {last}"
    return f"{stems[0]}s {listed}" if alike else listed


def _summary(explanation: Explanation, granted: str | None, why: str | None) -> str:
    """Return one sentence in plain words."""
    request = explanation.request
    if explanation.kind is DecisionKind.REFUSED or request is None:
        return "; ".join(explanation.notes) or "refused"
    if request.sort is not Sort.NORMAL:
        amount = cpu_amount(request.sort, request.exclusive, request.shared)
        return f"{explanation.kind.value}: {amount}"
    if explanation.pool is None:
        return explanation.kind.value
    if explanation.kind is DecisionKind.CLAIMED:
        return f"{explanation.kind.value}: {'; '.join(explanation.notes)}"
    name = explanation.tree.pools[explanation.pool].name
    because = f", because {why}" if why else ""
    return f"{explanation.kind.value}: {granted or count_cpus(request.milli)} on {name}{because}"


def _granted(explanation: Explanation, grant: Grant | None) -> str | None:
    """Return what CPUs a *grant* gives for what was asked for."""
    request = explanation.request
    if request is None or grant is None:
        return None
    if grant.sort is not Sort.NORMAL:
        return cpu_amount(grant.sort, len(grant.exclusive), grant.shared)
    parts, own = [], len(grant.exclusive)
    if own:
        cores = " (whole cores)" if own > request.exclusive else ""
        kind = "isolated" if grant.isolated else "exclusive"
        parts.append(f"{own} {kind} CPU{'s' * (own > 1)}{cores}")
    if grant.claimed:
        parts.append(f"{counted(len(grant.claimed), 'CPU')} of its claims")
    if grant.rest:
        parts.append(f"a share of {counted(len(grant.rest), 'CPU')}")
    if grant.shares:
        parts.append(_shared(request, grant))
    return " and ".join(parts)


def _shared(request: Request, grant: Grant) -> str:
    asked, shared = request.milli - 1000 * len(grant.own), format_cpu(grant.shared)
    if grant.shared < asked and not grant.tenant:
        return f"shared CPUs ({shared} of {format_cpu(asked)} requested)"
    return f"shared CPUs (requests {shared})" if grant.shared else "shared CPUs"
