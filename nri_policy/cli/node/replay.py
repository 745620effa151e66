"""`nri-policy replay`: a recorded journal again, as it was or under other circumstances."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import click
from msgspec.structs import replace
from rich.console import RenderableType
from rich.text import Text

from nri_policy.cli.failure import Exit, Failure
from nri_policy.cli.node.holdings import short
from nri_policy.cli.node.journal_file import opened, store_in
from nri_policy.cli.options import Source, form_option, machine_options, settings_option
from nri_policy.cli.output import print_document, print_drawing, shown_time
from nri_policy.cli.terminal.breakable_text import path as broken
from nri_policy.cli.terminal.fitting import Columns
from nri_policy.cli.terminal.progress import progress
from nri_policy.foundation.units import format_bytes, format_time
from nri_policy.foundation.wording import counted
from nri_policy.node import Score, Statistics
from nri_policy.pools.capacity import CapacityError
from nri_policy.report import (
    DifferenceReport,
    FateReport,
    ReplayReport,
    TwoFates,
    fate_report,
)
from nri_policy.settings import Settings
from nri_policy.store.journal import Journal
from nri_policy.store.replay import AlternativeReplay, Difference, RecordedReplay

_MOST_ROWS = 40
_MOST_DIFFERENCES = 1000


@dataclass(slots=True)
class _Course:
    """What came of a replay."""

    recorded: RecordedReplay = field(default_factory=RecordedReplay)
    alternative: AlternativeReplay | None = None
    records: int = 0
    repeats: int = 0  # resizes counted in an earlier record
    since: float = 0.0  # of the first and the last record, seconds since the epoch
    until: float = 0.0
    differences: list[Difference] = field(default_factory=list)


@click.command
@click.argument("journal", type=click.Path(exists=True, readable=False, path_type=Path))
@settings_option
@machine_options
@form_option
@click.pass_context
def command(
    context: click.Context, journal: Path, settings: Settings | None, source: Source, form: str
) -> None:
    """Repeat recorded decisions, also with other settings.

    JOURNAL is the state folder of a daemon, running or not, or a copy of its file store/state.db.
    Without other options every decision must come out as recorded; exits with 1 if one does not.
    With --settings or a machine, the same containers start and end under these: shows what changes,
    and compares both with counts.
    """
    file = store_in(journal)
    machine = None
    if source != Source():
        machine = source.machine(settings.memory_kinds) if settings else source.machine()
    course = _Course()
    if settings or machine:
        course.alternative = AlternativeReplay(settings, machine)
    try:
        with opened(file) as records:
            _run(records, course)
    except ValueError as error:
        raise Failure(f"{file}: {error}") from error
    except CapacityError as error:
        raise Failure(str(error), Exit.SETTINGS) from error
    if not course.recorded.statistics.outcomes and course.recorded.engine is None:
        raise Failure(f"{file}: the journal has no record that a replay can start from")
    report = _report(file, course)
    if form == "table":
        print_drawing(*_draw(report))
    else:
        print_document(report, form)
    context.exit(Exit.NO if course.differences and course.alternative is None else 0)


def _run(journal: Journal, course: _Course) -> None:
    with progress("replaying", len(journal)) as step:
        for record in journal.records():
            if not course.records:
                course.since = record.time
            course.records += 1
            course.until = max(record.time, record.repeats.last if record.repeats else 0)
            course.repeats += record.count - 1
            found = course.recorded.step(record)
            course.differences.extend(found)
            if course.alternative is not None:
                course.alternative.step(record)
            step()


def _report(file: Path, course: _Course) -> ReplayReport:
    """Return what is shown of a replay."""
    recorded = course.recorded.statistics
    report = ReplayReport(
        journal=str(file),
        records=course.records,
        skipped=course.recorded.skipped,
        since=format_time(course.since),
        until=format_time(course.until),
        reproduced=not course.differences,
        differences=tuple(
            DifferenceReport(
                seq=each.seq,
                time=format_time(each.time),
                what=each.what,
                recorded=each.recorded,
                replayed=each.replayed,
            )
            for each in course.differences[:_MOST_DIFFERENCES]
        ),
        recorded=recorded.score(),
        repeats=course.repeats,
    )
    if course.alternative is None:
        return report
    replayed = course.alternative.statistics
    return replace(report, replayed=replayed.score(), changes=_changes(recorded, replayed))


def _changes(recorded: Statistics, replayed: Statistics) -> dict[str, TwoFates]:
    """Return the containers that end up elsewhere, before and after."""
    pairs = {
        name: TwoFates(
            recorded=fate_report(recorded.outcomes.get(name)),
            replayed=fate_report(replayed.outcomes.get(name)),
        )
        for name in {**recorded.outcomes, **replayed.outcomes}
    }
    return {name: each for name, each in pairs.items() if each.recorded != each.replayed}


def _draw(report: ReplayReport) -> Iterator[RenderableType]:
    """Yield the report for people."""
    time = f"{shown_time(report.since)} to {shown_time(report.until)}"
    yield Text(f"{counted(report.records, 'record')}, {time}", style="bold")
    if report.repeats:
        yield Text(
            f"{counted(report.repeats, 'more resize')} came to the same as one before: counted in"
            " its record, and replayed once"
        )
    if report.skipped:
        yield Text(
            f"{report.skipped} of them left out, as no record before them lists all containers:"
            " the journal begins there, the daemon was off, or records were lost. The replay"
            " continues at the next record that does"
        )
    yield ""
    yield _scores(report.recorded, report.replayed)
    yield ""
    if report.differences:
        parts = counted(len(report.differences), "part")
        yield Text(
            f"{parts} of the recorded decisions came out differently with the recorded settings and"
            " machine: did another version record them?",
            style="red",
        )
        yield _otherwise(report.differences[:_MOST_ROWS])
    elif report.replayed is None:
        yield Text("Every decision came out as it was recorded.")
    if report.changes is not None:
        yield from _elsewhere(report.changes)


def _align(score: Score) -> str:
    return f"{score.aligned} of {score.asking}"


def _spill_note(score: Score) -> str:
    return f"{score.spilled}, {format_bytes(score.spilled_memory)}" if score.spilled else "0"


_LINES: tuple[tuple[str, Callable[[Score], str]], ...] = (
    ("containers placed", lambda score: str(score.placed)),
    ("containers refused", lambda score: str(score.refused)),
    ("resizes refused", lambda score: str(score.refused_resizes)),
    ("aligned: inside one NUMA node, of those that ask for CPU", _align),
    ("spilled: memory not all beside the CPUs", _spill_note),
    ("moves of running containers", lambda score: str(score.moves)),
    ("other updates of running containers", lambda score: str(score.updates - score.moves)),
)


def _scores(recorded: Score, replayed: Score | None) -> Columns:
    names = ("recorded",) if replayed is None else ("recorded", "replayed")
    table = Columns("", *names, right=names)
    for title, shown in _LINES:
        cells = [shown(each) for each in (recorded, replayed) if each is not None]
        different = len(set(cells)) > 1
        table.add_row(title, *cells, style="bold" if different else "")
    return table


def _otherwise(differences: Sequence[DifferenceReport]) -> Columns:
    table = Columns("record", "time", "part", "recorded", "replayed")
    for each in differences:
        table.add_row(
            str(each.seq),
            shown_time(each.time),
            each.what,
            *(Text(side[:300]) for side in (each.recorded, each.replayed)),
        )
    return table


def _elsewhere(changes: Mapping[str, TwoFates]) -> Iterator[RenderableType]:
    if not changes:
        yield Text("Every container ends up where it was.")
        return
    yield Text(f"{counted(len(changes), 'container')} ended up elsewhere:", style="bold cyan")
    table = Columns("container", "", "cpuset", "of its own", "mems", "pool")
    for name, change in [*changes.items()][:_MOST_ROWS]:
        table.add_row(broken(short(name)), "recorded", *_format_holding(change.recorded))
        table.add_row(Text(), "replayed", *_format_holding(change.replayed))
    yield table
    if len(changes) > _MOST_ROWS:
        yield Text(f"and {len(changes) - _MOST_ROWS} more: see -o json", style="dim")


def _format_holding(held: FateReport | None) -> tuple[Text, ...]:
    if held is None:
        return *(Text("-") for _ in range(3)), Text("not there")
    if held.pool is None:
        return *(Text("-") for _ in range(3)), Text(f"refused: {held.error}", style="red")
    lists = (Text(str(cpus) or "-") for cpus in (held.cpus, held.exclusive, held.mems))
    return *lists, Text(held.pool)
