"""`nri-policy what-if`: where pods would go now, and who would have to change for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

import click
from rich.console import RenderableType
from rich.text import Text

from nri_policy.cli.asking import asking, socket_option
from nri_policy.cli.failure import Exit
from nri_policy.cli.fitting import Columns
from nri_policy.cli.holdings import HEADINGS, cells, short
from nri_policy.cli.options import picture_form_option
from nri_policy.cli.output import print_document, print_drawing, print_page
from nri_policy.cli.pieces import cpu_list, path
from nri_policy.cli.running import Running, running
from nri_policy.cpuset import CPUSet
from nri_policy.engine.criteria import REASONS
from nri_policy.engine.explanation import Outcome
from nri_policy.picture import svg
from nri_policy.picture.markup import Element
from nri_policy.picture.page import containers, listed, page, pictured, section, table
from nri_policy.picture.scene import Scene
from nri_policy.picture.svg import Strip
from nri_policy.picture.terminal import Drawing

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
@picture_form_option
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
        now = None if form in {"json", "yaml"} else running(client)
        document = client.what_if(manifests, replicas or 0)
    if now is None:
        print_document(document, form)
    else:
        _picture(_compared(now, document), document, form)
    context.exit(0 if document["fits"] else Exit.NO)


def _compared(now: Running, document: _Document) -> tuple[Scene, Scene]:
    """Return the pictures of now and of what would be, those CPUs marked that change hands."""
    changed = {
        name: {**now.containers[name], **change["after"]}
        for name, change in document["changes"].items()
        if name in now.containers  # it may have come since
    }
    new = {
        name: fields
        for name, fields in document["containers"].items()
        if fields["state"] != "removed"
    }
    before = now.scene()
    after = replace(now, containers={**now.containers, **changed, **new}).scene(before)
    return replace(before, moved=after.moved), after


def _picture(scenes: tuple[Scene, Scene], document: _Document, form: str) -> None:
    before, after = scenes
    match form:
        case "svg":
            sentences = " ".join(map(_sentence, document["pods"]))
            strips = (
                Strip(heading=f"Before: {sentences}", scene=before),
                Strip(heading="After", scene=after),
            )
            print_page(svg.document(strips))
        case "html":
            print_page(page("What if", *_sections(before, after, document)))
        case _:
            print_drawing(*_drawn(before, after, document))


def _sections(before: Scene, after: Scene, document: _Document) -> Iterator[Element]:
    yield listed(map(_sentence, document["pods"]))
    yield section("Before", *pictured(before, "before-"))
    yield section("After", *pictured(after, "after-"), containers(after))
    whys = [
        (short(name), "; ".join(_remarks(fields)))
        for name, fields in document["containers"].items()
    ]
    if whys:
        yield section("Why there", table(["container", "why"], whys))
    if document["warnings"]:
        yield section("Warnings", listed(document["warnings"]))


def _drawn(before: Scene, after: Scene, document: _Document) -> Iterator[RenderableType]:
    for pod in document["pods"]:
        yield Text(_sentence(pod), style="bold")
    if after.changes:
        for title, scene in (("Before", before), ("After", after)):
            yield Text(f"\n{title}", style="bold cyan")
            yield Drawing(scene)
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


def _containers(containers: Mapping[str, _Document]) -> Columns:
    table = Columns(*HEADINGS, "why", dispensable=("mems", "pool", "own + shared", "cpuset"))
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


def _changes(changes: Mapping[str, _Document]) -> Columns:
    table = Columns("container", "", "cpuset", "mems", "pool", dispensable=("pool", "mems"))
    for name, change in changes.items():
        for when, whose in (("before", path(short(name))), ("after", Text())):
            held = change[when]
            table.add_row(
                whose,
                when,
                cpu_list(CPUSet.parse(held["cpus"])),
                cpu_list(CPUSet.parse(held["mems"])),
                path(held["pool"]),
            )
    return table
