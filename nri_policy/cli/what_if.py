"""`nri-policy what-if`: where pods would go now, and who would have to change for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

import click
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from nri_policy.cli.asking import asking, socket_option
from nri_policy.cli.failure import Exit
from nri_policy.cli.holdings import HEADINGS, cells, columns, short
from nri_policy.cli.options import form_option
from nri_policy.cli.output import print_document, print_drawing
from nri_policy.cli.pieces import path
from nri_policy.engine.criteria import REASONS
from nri_policy.engine.explanation import Outcome

_LARGEST = 1 << 20  # characters; the daemon takes less, and says so

_Document = Mapping[str, Any]


@click.command
@click.option(
    "-f",
    "--filename",
    "file",
    type=click.File(encoding="utf-8-sig", lazy=True),
    required=True,
    help="Manifests of pods, or of what makes pods; - for stdin.",
)
@click.option(
    "--replicas",
    type=click.IntRange(1, 1000),
    help="How many of each.  [default: as the manifest says]",
)
@socket_option
@form_option
@click.pass_context
def command(
    context: click.Context, file: TextIO, replicas: int | None, control_socket: Path, form: str
) -> None:
    """Show where pods would go if they came now, and what that would change for others.

    Nothing is changed. Pods come in the order of the file, and of each so many until one does not
    fit. Exits with 1 if not all fit.
    """
    try:
        manifests = file.read(_LARGEST)
    except UnicodeDecodeError as error:
        raise click.UsageError(f"{file.name}: the text is not UTF-8") from error
    with asking(control_socket) as client:
        document = client.what_if(manifests, replicas or 0)
    if form == "table":
        print_drawing(*_drawn(document))
    else:
        print_document(document, form)
    context.exit(0 if document["fits"] else Exit.NO)


def _drawn(document: _Document) -> Iterator[RenderableType]:
    for pod in document["pods"]:
        yield Text(_sentence(pod), style="bold")
    if document["containers"]:
        yield ""
        yield _containers(document["containers"])
    yield ""
    if document["changes"]:
        yield Text("Others would change:", style="bold cyan")
        yield _changes(document["changes"])
    else:
        yield Text("Nobody else would have to change.")
    for warning in document["warnings"]:
        yield Text(f"warning: {warning}")


def _sentence(pod: _Document) -> str:
    name, fit, replicas = short(pod["pod"]), pod["fit"], pod["replicas"]
    if replicas == 1:
        return f"{name} would {'fit' if fit else 'be refused'}."
    return f"{fit} of {replicas} replicas of {name} would fit."


def _containers(containers: Mapping[str, _Document]) -> Table:
    table = columns(*HEADINGS, "why")
    for name, fields in containers.items():
        table.add_row(
            *cells(name, fields),
            Text("; ".join(_remarks(fields))),
            style="red" if fields["error"] else "",
        )
    return table


def _remarks(fields: _Document) -> Iterator[str]:
    if fields["error"]:
        yield fields["error"]
        return
    if fields["outcome"] != Outcome.PLACED:
        yield fields["outcome"]
    if fields["decided_by"]:
        yield f"{REASONS[fields['decided_by']]} ({fields['decided_by']})"
    if fields["state"] == "removed":
        yield "ends before the next one starts"


def _changes(changes: Mapping[str, _Document]) -> Table:
    table = columns("container", "", "cpuset", "mems", "pool")
    for name, change in changes.items():
        for when, whose in (("before", path(short(name))), ("after", Text())):
            held = change[when]
            table.add_row(
                whose, when, *(Text(held[field] or "-") for field in ("cpus", "mems", "pool"))
            )
    return table
