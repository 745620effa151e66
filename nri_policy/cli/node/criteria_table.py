"""The table of criteria: how the pools compared when a container was placed.

Made from an explanation's document. The best pool comes first; criteria on which all pools that fit
are equal are only named, the cell that decided is in brackets. A value of which less is better is
negative in the document, and shown without the sign.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from nri_policy.cli.node.holdings import short
from nri_policy.cli.output import shown_time
from nri_policy.cli.terminal.breakable_text import cpu_list, path
from nri_policy.cli.terminal.fitting import Columns
from nri_policy.engine.choice.criteria import CRITERIA, LACKS
from nri_policy.engine.explanation import DecisionKind
from nri_policy.foundation.units import count_cpus, format_cpu
from nri_policy.foundation.wording import counted
from nri_policy.report import (
    CandidateReport,
    ChangeReport,
    ClassItemReport,
    ExplanationReport,
    Value,
    describe_outcome,
    device_name,
    opening_lines,
)

_MOST_ROWS = 5
_CRITERIA = {criterion.name: criterion for criterion in CRITERIA}
_YES_OR_NO = {"isolated_fit", "memory_kind", "cpu_class", "undisturbed_memory"}
_ASKED_AGAIN = (
    "The kubelet asks again every second, until there is room or the pod asks for another size."
    " Until then the pod's allocatedResources have the refused size;"
    " its memory limit and its pod's cgroup can have it, too."
)


def explain(
    explanation: ExplanationReport, *, why: bool = False, all_pools: bool = False
) -> Iterator[RenderableType]:
    """Draw one container's explanation: the opening lines, and with *why* the tables."""
    yield from _open(explanation, why=why)
    if why:
        yield from _tables(explanation, all_pools=all_pools)
    if explanation.classes:
        yield ""
        yield Text("Classes", style="bold cyan")
        yield Padding(_classes(explanation.classes), (0, 0, 0, 2))
    for title, lines in (
        ("Affinities", explanation.affinity),
        ("Notes", explanation.notes),
        ("Annotations", explanation.annotations),
    ):
        if lines and lines != (explanation.summary,):  # a refusal's note is its summary
            yield from _title(title, *map(Text, lines))
    if explanation.changes:
        yield from _title("Changed by others, the latest first", _changes(explanation.changes))
    for title, note, other in (
        ("How it came there", "", explanation.placed_before if why else None),
        ("A later resize was refused", _ASKED_AGAIN, explanation.refused_resize),
    ):
        if other is not None:
            yield ""
            yield Text(title, style="bold cyan")
            if note:
                yield Text(note)
            yield from explain(other, why=why, all_pools=all_pools)


def _tables(explanation: ExplanationReport, *, all_pools: bool) -> Iterator[RenderableType]:
    if explanation.devices:
        yield from _title("Devices", *_devices(explanation))
    if explanation.candidates:
        yield ""
        yield from _comparison(explanation, all_pools=all_pools)


def _open(explanation: ExplanationReport, *, why: bool) -> Iterator[RenderableType]:
    """Draw the heading and the opening lines."""
    heading = describe_outcome(explanation)
    if explanation.outcome is DecisionKind.REFUSED and not heading.startswith("refused"):
        heading = f"refused: {heading}"
    yield Text.assemble((short(explanation.container), "bold"), f": {heading}")
    lines = Table.grid(padding=(0, 2))
    for label, line in opening_lines(explanation):
        more = "" if why or label != "why here" else " (more: --why)"
        lines.add_row(Text(label, style="cyan"), Text(f"{line}{more}"))
    if lines.row_count:
        yield Padding(lines, (0, 0, 0, 2))
    if explanation.answer is None and explanation.because:
        yield Text(explanation.because)
    if explanation.decided_at is not None:
        yield Text(_past(explanation), style="yellow")


def _title(title: str, *parts: RenderableType) -> Iterator[RenderableType]:
    yield ""
    yield Text(title, style="bold cyan")
    for part in parts:
        yield Padding(part, (0, 0, 0, 2))


def _devices(explanation: ExplanationReport) -> Iterator[RenderableType]:
    """Yield where each device and mount is, and how many of the container's CPUs are there."""
    table = Columns("device or mount", "NUMA nodes", "CPUs near it", "CPUs granted near it")
    for each in explanation.devices:
        granted = f"{each.granted} of {each.granted_of}"
        nodes, cpus = cpu_list(each.nodes), cpu_list(each.cpus)
        table.add_row(Text(device_name(each, each.source)), nodes, cpus, granted)
    yield table


def _past(explanation: ExplanationReport) -> str:
    """Return a note that the container ended or was refused, and when."""
    assert explanation.decided_at is not None, "an explanation from the journal has its time"
    decided, ended = shown_time(explanation.decided_at), explanation.ended_at
    if explanation.outcome is DecisionKind.REFUSED:
        if explanation.last is None:
            return f"From the journal: it was refused at {decided}."
        return (
            f"From the journal: it was refused {explanation.count} times, from {decided} to"
            f" {shown_time(explanation.last)}."
        )
    return f"From the journal: it was decided at {decided}, and the container " + (
        f"stopped at {shown_time(ended)}." if ended else "is gone."
    )


def _classes(items: Sequence[ClassItemReport]) -> Columns:
    table = Columns("class", "by", "what", "wanted", "found", "state")
    for each in items:
        table.add_row(
            Text(f"{each.kind} {each.name}"),
            Text(each.origin),
            Text(each.item or "-"),
            Text(each.wanted),
            Text(each.found or "-"),
            Text(each.state),
        )
    return table


def _changes(changes: Sequence[ChangeReport]) -> Columns:
    table = Columns("when", "cpuset", "mems", "because")
    for each in changes:
        held = (Text(str(each.cpus) or "-"), Text(str(each.mems) or "-"))
        table.add_row(shown_time(each.time), *held, Text(each.cause))
    return table


def _comparison(explanation: ExplanationReport, *, all_pools: bool) -> Iterator[RenderableType]:
    candidates = sorted(explanation.candidates, key=_rank)
    winner = next((each for each in candidates if each.pool == explanation.pool), None)
    if not all_pools and len(candidates) > _MOST_ROWS:
        others = [each for each in candidates if each is not winner]
        shown = [*([winner] if winner else []), *others][:_MOST_ROWS]
    else:
        shown = candidates
    criteria = _different(explanation)
    yield _table(explanation, shown, winner, criteria)
    if more := len(candidates) - len(shown):
        yield Text(f"and {counted(more, 'pool')} more: --all shows them", style="dim")
    if criteria:
        yield ""
        yield Text("Compared from left to right; the cell in [ ] decided.", style="dim")
        for name in criteria:
            heading = _heading(name) if _heading(name) == name else f"{_heading(name)} ({name})"
            yield Padding(Text(f"{heading}: {_CRITERIA[name].doc}", style="dim"), (0, 0, 0, 2))
    if explanation.room is not None:
        whole = counted(explanation.room.exclusive, "CPU")
        yield Text(f"The pools were compared for its pod's room of {whole}.", style="dim")
    equal = [_heading(name) for name in explanation.criteria if name not in {*criteria, "id"}]
    if equal and any(each.fits for each in candidates):
        yield Text(f"Equal in all pools with room: {', '.join(equal)}.", style="dim")


def _heading(name: str) -> str:
    return _CRITERIA[name].heading


def _table(
    explanation: ExplanationReport,
    candidates: Sequence[CandidateReport],
    winner: CandidateReport | None,
    criteria: list[str],
) -> Columns:
    headings = [_heading(name) for name in criteria]
    rest = [_heading(name) for name in criteria if name != explanation.decided_by]
    table = Columns("", "pool", *headings, "why not", right=headings, dispensable=rest)
    for each in candidates:
        marks = {explanation.decided_by} if each is winner else {each.lost_on}
        values = [", ".join(_values(explanation, each, name)) * each.fits for name in criteria]
        table.add_row(
            "*" if each is winner else "",
            path(each.pool),
            *(
                Text(f"[{value}]" if each is winner else value, "bold")
                if name in marks
                else Text(value)
                for name, value in zip(criteria, values, strict=True)
            ),
            Text(why_not(explanation, each)),
            style="" if each.fits else "dim",
        )
    return table


def _different(explanation: ExplanationReport) -> list[str]:
    """Return the criteria on which pools that fit differ; the last resort only if it decided."""
    fitting = [each for each in explanation.candidates if each.fits]
    return [
        name
        for column, name in enumerate(explanation.criteria)
        if name == explanation.decided_by
        or (name != "id" and len({str(each.values[column]) for each in fitting}) > 1)
    ]


def _rank(candidate: CandidateReport) -> tuple[bool, bool, bool, int, list[float]]:
    """Return a key that sorts the best first; those that do not fit last, the closest first.

    Among these, known shortages sort first, pools far from strict hints last.
    """
    parts = [part for value in candidate.values for part in _parts(value)]
    short = candidate.shortfall
    unknown = not candidate.fits and not short
    return (not candidate.fits, bool(candidate.far), unknown, short, [-part for part in parts])


def why_not(explanation: ExplanationReport, candidate: CandidateReport) -> str:
    """Return why a pool was not chosen; empty for the chosen pool, or if none was chosen."""
    if candidate.far:
        return f"not near {candidate.far}"
    if not candidate.fits:
        if candidate.shortfall:
            return f"{count_cpus(candidate.shortfall)} short"
        strict = any(each.far for each in explanation.candidates)
        near = "too few CPUs, or too little memory, near its strict hints"
        return near if strict else "no memory left, or wider than alignment allows"
    winner = next((each for each in explanation.candidates if each.pool == explanation.pool), None)
    lost_on = candidate.lost_on
    if lost_on is None or winner is None:
        return ""
    if lost_on == "id":
        return LACKS[lost_on]
    parts = (_values(explanation, each, lost_on) for each in (candidate, winner))
    different = [pair for pair in zip(*parts, strict=True) if pair[0] != pair[1]]
    return f"{LACKS[lost_on]}: " + ", ".join(f"{own}, not {best}" for own, best in different[:1])


def _parts(value: Value) -> tuple[float, ...]:
    return value if isinstance(value, tuple) else (value,)


def _values(explanation: ExplanationReport, candidate: CandidateReport, name: str) -> list[str]:
    """Return the parts of a candidate's value of a criterion, as people count."""
    column, request = explanation.criteria.index(name), explanation.room or explanation.request
    first, *rest = _parts(candidate.values[column])
    assert request is not None, "pools are compared only for a request"
    shown = [f"{abs(part):g}" for part in (first, *rest)]
    match name:
        case _ if name in _YES_OR_NO:
            shown = ["yes" if first else "no"]
        case "affinity":
            shown = [f"{first:+g}"]
        case "hints":
            every = [_parts(each.values[column]) for each in explanation.candidates]
            both = any(len({*parts}) > 1 for parts in every)
            shown = [f"{part:.2f}" for part in ((first, *rest) if both else (first,))]
        case "capacity" if request.exclusive:
            shown = [f"{shown[0]} CPU{'' if shown[0] == '1' else 's'}"]
        case "capacity":
            shown = [counted(int(-first), "other"), *map(_milli, rest)]
        case "cpu_burst" if request.cpu_limit_milli is not None:
            shown = [f"{_milli(-part)} missing" for part in rest]
        case "cpu_burst":
            shown = [f"{counted(int(-first), 'level')} off", *map(_milli, rest)]
        case "memory_burst":
            shown = [_memory_burst(explanation, first, column)]
        case _:
            pass  # plain numbers
    return shown


def _memory_burst(explanation: ExplanationReport, value: float, column: int) -> str:
    """Return whether memory can grow to its limit; without a limit, levels off the preferred."""
    if any(part < 0 for each in explanation.candidates for part in _parts(each.values[column])):
        return f"{counted(int(abs(value)), 'level')} off"
    return "yes" if value else "no"


def _milli(amount: float) -> str:
    return format_cpu(int(amount))
