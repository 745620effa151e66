"""`nri-policy replay`: a recorded journal again, as it was or under other circumstances."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
from msgspec.structs import asdict
from rich.console import RenderableType
from rich.text import Text

from nri_policy.cli.failure import Exit, Failure
from nri_policy.cli.fitting import Columns
from nri_policy.cli.holdings import short
from nri_policy.cli.options import Source, form_option, machine_options, settings_option
from nri_policy.cli.output import print_document, print_drawing
from nri_policy.cli.pieces import path as broken
from nri_policy.cli.progress import progress
from nri_policy.engine.tally import Fate, Tally
from nri_policy.pools.capacity import CapacityError
from nri_policy.settings import Settings
from nri_policy.store.errors import StoreError
from nri_policy.store.folder import FILE
from nri_policy.store.journal import Journal, open_journal
from nri_policy.store.replay import Alternative, Difference, Recorded
from nri_policy.units import format_bytes, format_time

_MOST_ROWS = 40
_MOST_DIFFERENCES = 1000

_Document = Mapping[str, Any]


@dataclass(slots=True)
class _Course:
    """What came of a replay."""

    recorded: Recorded = field(default_factory=Recorded)
    alternative: Alternative | None = None
    records: int = 0
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
    """Run a recorded journal again, and show what comes out otherwise.

    JOURNAL is the folder that a daemon keeps its state in, running or not, or a copy of its file
    store/state.db. As it was recorded, every decision has to come out again: it exits with 1 where
    one does not. With --settings or a machine, the same containers come and go under these instead:
    what that changes is shown, and both ways are scored.
    """
    file = _store_in(journal)
    machine = None
    if source != Source():
        machine = source.machine(settings.memory_kinds) if settings else source.machine()
    course = _Course()
    if settings or machine:
        course.alternative = Alternative(settings, machine)
    try:
        with open_journal(file) as opened:
            _run(opened, course)
    except StoreError as error:
        raise Failure(str(error)) from error
    except ValueError as error:
        raise Failure(f"{file}: {error}") from error
    except CapacityError as error:
        raise Failure(str(error), Exit.SETTINGS) from error
    if not course.recorded.tally.fates and course.recorded.engine is None:
        raise Failure(f"{file}: the journal has no record that a replay can start from")
    document = _document(file, course)
    if form == "table":
        print_drawing(*_drawn(document))
    else:
        print_document(document, form)
    context.exit(Exit.NO if course.differences and course.alternative is None else 0)


def _store_in(path: Path) -> Path:
    """Return the store's file that *path* means: itself, or the one in that state folder."""
    try:
        for inner in (path / "store" / FILE, path / FILE):
            if inner.is_file():
                return inner
        if path.is_dir():
            raise Failure(f"{path}: there is no store/{FILE} in it; is it a daemon's --state-dir?")
        path.open("rb").close()
    except OSError as error:
        raise Failure(
            f"{path}: {error.strerror}; the daemon's state is for root alone: try sudo, or a copy"
        ) from error
    return path


def _run(journal: Journal, course: _Course) -> None:
    with progress("replaying", len(journal)) as step:
        for record in journal.records():
            if not course.records:
                course.since = record.time
            course.records += 1
            course.until = record.time
            found = course.recorded.step(record)
            course.differences.extend(found)
            if course.alternative is not None:
                course.alternative.step(record)
            step()


def _document(file: Path, course: _Course) -> dict[str, Any]:
    """Return what `replay -o json` prints."""
    recorded = course.recorded.tally
    document: dict[str, Any] = {
        "journal": str(file),
        "records": course.records,
        "skipped": course.recorded.skipped,
        "since": format_time(course.since),
        "until": format_time(course.until),
        "reproduced": not course.differences,
        "differences": [
            {**asdict(each), "time": format_time(each.time)}
            for each in course.differences[:_MOST_DIFFERENCES]
        ],
        "recorded": asdict(recorded.score()),
    }
    if course.alternative is not None:
        replayed = course.alternative.tally
        document["replayed"] = asdict(replayed.score())
        document["changes"] = _changes(recorded, replayed)
    return document


def _changes(recorded: Tally, replayed: Tally) -> dict[str, Any]:
    """Return the containers that end up elsewhere, before and after."""
    pairs = {
        name: (recorded.fates.get(name), replayed.fates.get(name))
        for name in {**recorded.fates, **replayed.fates}
    }
    return {
        name: {"recorded": _shown(then), "replayed": _shown(now)}
        for name, (then, now) in pairs.items()
        if _shown(then) != _shown(now)
    }


def _shown(fate: Fate | None) -> dict[str, Any] | None:
    """Return a fate as plain values."""
    if fate is None:
        return None
    return {
        "pool": fate.pool,
        "cpus": str(fate.cpus),
        "exclusive": str(fate.exclusive),
        "mems": str(fate.mems),
        "aligned": fate.aligned,
        "spilled": fate.spilled,
        "error": fate.refusal,
    }


def _drawn(document: _Document) -> Iterator[RenderableType]:
    """Yield the document for people."""
    span = f"{document['records']} records, {document['since']} to {document['until']}"
    yield Text(span, style="bold")
    if document["skipped"]:
        yield Text(
            f"{document['skipped']} of them left out: after a start of the daemon, or a loss of"
            " records, it goes on from the next list of all containers"
        )
    yield ""
    replayed = document.get("replayed")
    yield _scores(document["recorded"], replayed)
    yield ""
    if document["differences"]:
        yield Text(
            f"{len(document['differences'])} parts of recorded decisions come out otherwise, with"
            " the recorded settings and machine: was it another version that recorded them?",
            style="red",
        )
        yield _otherwise(document["differences"][:_MOST_ROWS])
    elif replayed is None:
        yield Text("Every decision came out as it was recorded.")
    if replayed is not None:
        yield from _elsewhere(document["changes"])


_LINES: tuple[tuple[str, str], ...] = (
    ("placed", "containers placed"),
    ("refused", "containers refused"),
    ("refused_resizes", "resizes refused"),
    ("aligned", "aligned: inside one NUMA node, of those that ask for CPU"),
    ("spilled", "spilled: memory not all beside the CPUs"),
    ("moves", "moves of running containers"),
    ("updates", "other updates of running containers"),
)


def _scores(recorded: _Document, replayed: _Document | None) -> Columns:
    names = ("recorded",) if replayed is None else ("recorded", "replayed")
    table = Columns("", *names, right=names)
    for key, title in _LINES:
        cells = [_score(key, each) for each in (recorded, replayed) if each is not None]
        different = len(set(cells)) > 1
        table.add_row(title, *cells, style="bold" if different else "")
    return table


def _score(key: str, score: _Document) -> str:
    match key:
        case "aligned":
            return f"{score['aligned']} of {score['asking']}"
        case "spilled":
            amount = format_bytes(score["spilled_memory"])
            return f"{score['spilled']}, {amount}" if score["spilled"] else "0"
        case "updates":
            return str(score["updates"] - score["moves"])
    return str(score[key])


def _otherwise(differences: list[_Document]) -> Columns:
    table = Columns("record", "time", "part", "recorded", "replayed")
    for each in differences:
        table.add_row(
            str(each["seq"]),
            each["time"],
            each["what"],
            *(Text(each[side][:300]) for side in ("recorded", "replayed")),
        )
    return table


def _elsewhere(changes: Mapping[str, _Document]) -> Iterator[RenderableType]:
    if not changes:
        yield Text("Every container ends up where it was.")
        return
    yield Text(f"{len(changes)} containers fare otherwise:", style="bold cyan")
    table = Columns("container", "", "cpuset", "of its own", "mems", "pool")
    for name, change in [*changes.items()][:_MOST_ROWS]:
        for side, first in (("recorded", broken(short(name))), ("replayed", Text())):
            table.add_row(first, side, *_holding(change[side]))
    yield table
    if len(changes) > _MOST_ROWS:
        yield Text(f"and {len(changes) - _MOST_ROWS} more: see -o json", style="dim")


def _holding(held: _Document | None) -> tuple[Text, ...]:
    if held is None:
        return *(Text("-") for _ in range(3)), Text("not there")
    if held["error"]:
        return *(Text("-") for _ in range(3)), Text(f"refused: {held['error']}", style="red")
    lists = (Text(held[name] or "-") for name in ("cpus", "exclusive", "mems"))
    return *lists, Text(held["pool"])
