"""`nri-policy what-if`: where pods would go now, and who would have to change for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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

_MOST_ROWS = 40

_Document = Mapping[str, Any]


_MAX = 0


class _Replicas(click.ParamType[int]):
    """A number of replicas; _MAX for `max`."""

    name = "replicas"

    def get_metavar(
        self,
        param: click.Parameter,  # noqa: ARG002 - click's signature
        ctx: click.Context,  # noqa: ARG002 - click's signature
    ) -> str:
        return "N|max"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if value == "max":
            return _MAX
        return click.IntRange(1, 1000).convert(value, param, ctx)


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
    type=_Replicas(),
    help="How many of each, or as many as fit.  [default: as the manifest says]",
)
@socket_option
@picture_form_option
@click.pass_context
def command(
    context: click.Context, file: TextIO, replicas: int | None, control_socket: Path, form: str
) -> None:
    """Show where pods would go if they came now, and what that would change for others.

    Nothing is changed. Pods come in the order of the file, and of each so many until one does not
    fit. Exits with 1 if not all fit, with --replicas max if none does.
    """
    try:
        manifests = file.read(_LARGEST)
    except UnicodeDecodeError as error:
        raise click.UsageError(f"{file.name}: the text is not UTF-8") from error
    with asking(control_socket) as client:
        now = None if form in {"json", "yaml"} else running(client)
        document = client.what_if(manifests, replicas or 0, most=replicas == _MAX)
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
        if misfits := pod["misfits"]:
            yield Text(_misfits(pod, misfits), style="yellow")
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
    if replicas is None:
        return f"{'At least ' * pod['more']}{fit} replicas of {name} would fit."
    if replicas == 1:
        return f"{name} would {'fit' if fit else 'be refused'}."
    return f"{fit} of {replicas} replicas of {name} would fit."


def _misfits(pod: _Document, misfits: Sequence[_Document]) -> str:
    """Say which replicas come to lie badly, and why."""
    first = misfits[0]
    if pod["fit"] == 1:
        return f"It comes to lie badly: {first['why']}."
    more = f" (and {len(misfits) - 1} after it)" if len(misfits) > 1 else ""
    return f"Replica {first['replica']}{more} comes to lie badly: {first['why']}."


def _containers(containers: Mapping[str, _Document]) -> Columns:
    table = Columns(*HEADINGS, "why", dispensable=("mems", "pool", "own + shared", "cpuset"))
    left_out = len(containers) - _MOST_ROWS
    for number, (name, fields) in enumerate(containers.items()):
        # the last is the one that was refused
        if number >= _MOST_ROWS - 1 and number + 1 < len(containers):
            if number == _MOST_ROWS - 1:
                table.add_row(Text(f"… {left_out} more: see -o json", style="dim"))
            continue
        table.add_row(
            *cells(name, fields),
            Text("; ".join(_remarks(fields))),
            style="red" if fields["error"] else "yellow" if fields["misfit"] else "",
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
    if fields["misfit"]:
        yield fields["misfit"]
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
