"""`nri-policy config`: what settings say, before they are used and while they are in force."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from nri_policy.cli.asking import asking, socket_option
from nri_policy.cli.failure import Exit, Failure
from nri_policy.cli.fitting import Columns
from nri_policy.cli.options import Source, form_option, machine_options, read_settings
from nri_policy.cli.output import print_document, print_drawing
from nri_policy.engine.layout import Layout, layout_of
from nri_policy.pools.capacity import CapacityError
from nri_policy.settings import Problem, Settings, SettingsError, effective, place_of
from nri_policy.units import format_time
from nri_policy.yamltext import Mark

_Document = Mapping[str, Any]
_NONE = {"instrumentation.httpEndpoint": "off"}  # what no value means, if not all there is


@click.group
def command() -> None:
    """Check settings, show those in force, or have them read again."""


@command.command
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@machine_options
@form_option
@click.pass_context
def check(context: click.Context, file: Path, source: Source, form: str) -> None:
    """Say all that is wrong with settings, or what they come to.

    With a machine, also whether the daemon would start on it. Exits with 78 if anything is wrong.
    """
    document: dict[str, Any] = {"valid": False, "errors": [], "notices": [], "settings": []}
    layout = None
    try:
        settings = read_settings(file)
        document |= {"notices": [*settings.notices], "settings": effective(settings)}
        layout = _started(settings, source)
        document["valid"] = True
    except SettingsError as error:
        document["errors"] = [*map(_error, error.problems)]
    except CapacityError as error:
        document["errors"] = [_error(_capacity_problem(error, file))]
    if layout is not None:
        document["machine"] = _machine(layout)
    if form == "table":
        print_drawing(*_checked(file, document))
    else:
        print_document(document, form)
    context.exit(0 if document["valid"] else Exit.SETTINGS)


@command.command
@socket_option
@form_option
def show(control_socket: Path, form: str) -> None:
    """Show the settings that the running daemon goes by, and who set each."""
    with asking(control_socket) as client:
        document = client.settings()
    if form == "table":
        print_drawing(*_shown(document))
    else:
        print_document(document, form)


@command.command
@socket_option
def reload(control_socket: Path) -> None:
    """Have the running daemon read its settings again, as SIGHUP does, and say what came of it.

    Exits with 1 if they are refused: then the old ones stay in force.
    """
    with asking(control_socket) as client:
        outcome = client.reload()
    if not outcome.accepted:
        raise Failure(f"{outcome.origin}: refused, the old settings stay: {outcome.reason}")
    click.echo(f"{outcome.origin}: in force")


def _started(settings: Settings, source: Source) -> Layout | None:
    """Return what a daemon would start with on the machine, None where none is given."""
    if source == Source():
        return None
    return layout_of(source.machine(settings.memory_kinds), settings)


def _capacity_problem(error: CapacityError, file: Path) -> Problem:
    """Return an error of the settings on a machine, whose text begins with the field's path."""
    path, _, text = str(error).partition(": ")
    return Problem(f"spec.{path}", text, place_of(f"spec.{path}", file.read_bytes()))


def _error(problem: Problem) -> dict[str, Any]:
    line, column = problem.mark or (None, None)
    return {"path": problem.path, "text": problem.text, "line": line, "column": column}


def _machine(layout: Layout) -> dict[str, Any]:
    capacity = layout.capacity
    return {
        "online": str(layout.machine.online),
        "reserved": str(capacity.reserved),
        "isolated": str(capacity.isolated),
        "sharable": str(capacity.sharable),
        "pools": len(layout.tree.pools),
        "notes": [*layout.machine.notes, *layout.tree.notes],
    }


def _checked(file: Path, document: _Document) -> Iterator[RenderableType]:
    errors = document["errors"]
    if errors:
        count = "1 error" if len(errors) == 1 else f"{len(errors)} errors"
        yield Text(f"{file}: {count}", style="bold red")
        for error in errors:
            mark = Mark(error["line"], error["column"]) if error["line"] else None
            yield Text(f"  {Problem(error['path'], error['text'], mark)}")
    else:
        yield Text(f"{file}: these settings are good", style="bold")
    yield from _remarks(document["notices"])
    if machine := document.get("machine"):
        yield ""
        yield Text("The daemon would start on this machine:", style="bold cyan")
        table = Table.grid(padding=(0, 2, 0, 0))
        for name in ("online", "reserved", "isolated", "sharable"):
            table.add_row(f"CPUs {name}", Text(machine[name] or "-"))
        table.add_row("pools", str(machine["pools"]))
        yield table
        yield from _remarks(machine["notes"])
    elif not errors:
        yield Text("not held against a machine: --host-root / takes this one", style="dim")
    if document["settings"] and not errors:
        yield ""
        yield _table(document["settings"])


def _shown(document: _Document) -> Iterator[RenderableType]:
    yield Text(f"from {document['origin']}", style="bold")
    latest = document["latest_reload"]
    if latest is not None and not latest["accepted"]:
        when = format_time(latest["time"])
        yield Text(f"reload of {when} refused: {latest['reason']}", style="red")
    yield from _remarks(document["notices"])
    yield ""
    yield _table(document["settings"])


def _remarks(texts: Sequence[str]) -> Iterator[RenderableType]:
    for text in texts:
        yield Text(f"note: {text}")


def _table(settings: Sequence[_Document]) -> Columns:
    table = Columns("field", "value", "set by")
    for each in settings:
        given = each["origin"] != "default"
        value = each["value"]
        shown = value if isinstance(value, str) and value else json.dumps(value)
        table.add_row(
            Text(each["field"]),
            Text(_NONE.get(each["field"], "all") if value is None else shown),
            Text(each["origin"]),
            style="" if given else "dim",
        )
    return table
