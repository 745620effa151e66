"""The table of criteria: how the pools compared when a container was placed.

Made from an explanation's document. The best pool comes first; criteria on which all pools that fit
are alike are only named, the cell that decided is in brackets.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from nri_policy.cli.fitting import Columns
from nri_policy.cli.holdings import short
from nri_policy.cli.pieces import path
from nri_policy.engine.criteria import CRITERIA, LACKS
from nri_policy.engine.explanation import Outcome
from nri_policy.report import CandidateReport, ChangeReport, ExplanationReport, Value
from nri_policy.units import format_bytes, format_cpu

_MOST_ROWS = 20
_DOCS = {criterion.name: criterion.doc for criterion in CRITERIA}


def explained(explanation: ExplanationReport) -> Iterator[RenderableType]:
    """Yield what there is to say of one container: a sentence, the table, who drew it, notes."""
    name, summary = short(explanation.container), explanation.summary
    if explanation.outcome is Outcome.REFUSED:
        summary = f"refused: {summary}"
    yield Text.assemble((name, "bold"), f": {summary}")
    if explanation.because:
        yield Text(explanation.because)
    if explanation.decided_at is not None:
        yield Text(_past(explanation), style="yellow")
    if explanation.candidates:
        yield ""
        yield from _comparison(explanation)
    for title, lines in (
        ("Drawn", explanation.affinity),
        ("Notes", explanation.notes),
        ("Annotations", explanation.annotations),
    ):
        if lines and lines != (explanation.summary,):  # a refusal's note is its summary
            yield ""
            yield Text(title, style="bold cyan")
            for line in lines:
                yield Padding(Text(line), (0, 0, 0, 2))
    if explanation.changes:
        yield ""
        yield Text("Changed by others, the latest first", style="bold cyan")
        yield Padding(_changes(explanation.changes), (0, 0, 0, 2))
    yield from _other("How it came there", explanation.placed_before)
    yield from _other("A later resize was refused", explanation.refused_resize)


def _other(title: str, explanation: ExplanationReport | None) -> Iterator[RenderableType]:
    if explanation is not None:
        yield ""
        yield Text(title, style="bold cyan")
        yield from explained(explanation)


def _past(explanation: ExplanationReport) -> str:
    """Say that and when it was."""
    decided, ended = explanation.decided_at, explanation.ended_at
    if explanation.outcome is Outcome.REFUSED:
        return f"This is of the past: it was refused at {decided}."
    return f"This is of the past: it was decided at {decided}, and the container " + (
        f"stopped at {ended}." if ended else "is gone."
    )


def _changes(changes: Sequence[ChangeReport]) -> Columns:
    table = Columns("when", "cpuset", "mems", "because")
    for each in changes:
        held = (Text(str(each.cpus) or "-"), Text(str(each.mems) or "-"))
        table.add_row(each.time, *held, Text(each.cause))
    return table


def _comparison(explanation: ExplanationReport) -> Iterator[RenderableType]:
    candidates = sorted(explanation.candidates, key=_rank)
    shown = _telling(explanation)
    yield _table(explanation, candidates[:_MOST_ROWS], shown)
    if len(candidates) > _MOST_ROWS:
        yield Text(f"and {len(candidates) - _MOST_ROWS} pools more: see -o json", style="dim")
    if shown:
        yield ""
        yield Text("Compared from left to right, higher is better; [ ] decided.", style="dim")
        for name in shown:
            yield Text(f"  {name}: {_DOCS.get(name, '')}", style="dim")
    alike = [name for name in explanation.criteria if name not in {*shown, "id"}]
    if alike and any(each.fits for each in candidates):
        yield Text(f"Alike wherever it fits: {', '.join(alike)}.", style="dim")


def _table(
    explanation: ExplanationReport, candidates: Sequence[CandidateReport], shown: list[str]
) -> Columns:
    winner = next((each for each in candidates if each.pool == explanation.pool), None)
    rest = [name for name in shown if name != explanation.decided_by]
    table = Columns("", "pool", *shown, "why not", right=shown, dispensable=rest)
    for each in candidates:
        marks = {explanation.decided_by} if each is winner else {each.lost_on}
        values = [_cell(explanation, each, name) for name in shown]
        table.add_row(
            "*" if each is winner else "",
            path(each.pool),
            *(
                Text(_marked(value, each is winner), "bold") if name in marks else Text(value)
                for name, value in zip(shown, values, strict=True)
            ),
            Text(_why_not(explanation, each, winner)),
            style="" if each.fits else "dim",
        )
    return table


def _marked(value: str, winner: bool) -> str:
    return f"[{value}]" if winner else value


def _telling(explanation: ExplanationReport) -> list[str]:
    """Return the criteria on which pools that fit differ; the last resort only if it decided."""
    fitting = [each for each in explanation.candidates if each.fits]
    return [
        name
        for column, name in enumerate(explanation.criteria)
        if name == explanation.decided_by
        or (name != "id" and len({str(each.values[column]) for each in fitting}) > 1)
    ]


def _rank(candidate: CandidateReport) -> tuple[bool, int, list[float]]:
    """Return a key that sorts the best first; those that do not fit last, the closest first."""
    parts = [part for value in candidate.values for part in _parts(value)]
    return (not candidate.fits, candidate.shortfall, [-part for part in parts])


def _why_not(
    explanation: ExplanationReport, candidate: CandidateReport, winner: CandidateReport | None
) -> str:
    if not candidate.fits:
        missing = candidate.shortfall
        return f"{format_cpu(missing)} CPU short" if missing else "no memory left, or too wide"
    lost_on = candidate.lost_on
    if lost_on is None or winner is None:
        return ""
    if lost_on == "id":
        return LACKS[lost_on]
    parts = (_with_units(explanation, each, lost_on) for each in (candidate, winner))
    own, best = next(pair for pair in zip(*parts, strict=True) if pair[0] != pair[1])
    return f"{LACKS.get(lost_on, lost_on)}: {own} < {best}"


def _parts(value: Value) -> tuple[float, ...]:
    return value if isinstance(value, tuple) else (value,)


def _cell(explanation: ExplanationReport, candidate: CandidateReport, name: str) -> str:
    """Return a candidate's value of a criterion."""
    return ", ".join(_with_units(explanation, candidate, name))


def _with_units(explanation: ExplanationReport, candidate: CandidateReport, name: str) -> list[str]:
    """Return the one or two parts of a candidate's value of a criterion."""
    first, *rest = _parts(candidate.values[explanation.criteria.index(name)])
    request = explanation.request
    assert request is not None, "pools were compared for it"
    match name:
        case "capacity" if request.exclusive:
            return [f"{first:g} CPU"]
        case "capacity":
            return [f"{first:g} others", *map(_cpu, rest)]
        case "cpu_burst" if request.cpu_limit_milli is not None:
            return [*map(_cpu, rest)]
        case "cpu_burst":
            return [f"{first:g} levels", *map(_cpu, rest)]
        case "memory_burst" if first > 1:  # there is no limit: how much there is
            return [format_bytes(int(first))]
    return [f"{part:g}" for part in (first, *rest)]


def _cpu(milli: float) -> str:
    return f"{milli / 1000:g} CPU"
