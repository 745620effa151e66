"""`nri-policy what-if`: where pods would go, and which containers pods or settings would change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import IO, Any, TextIO

import click
from msgspec.structs import replace
from rich.console import RenderableType
from rich.text import Text

from nri_policy.cli.daemon_option import daemon_client, socket_option
from nri_policy.cli.failure import Exit, Failure
from nri_policy.cli.node.current_scene import CurrentScene, read_current_scene
from nri_policy.cli.node.holdings import HEADINGS, cells, short
from nri_policy.cli.options import name_of, picture_form_option, read_settings
from nri_policy.cli.output import print_document, print_drawing, print_page
from nri_policy.cli.terminal.breakable_text import cpu_list, path
from nri_policy.cli.terminal.fitting import Columns
from nri_policy.control.client import DeclinedError
from nri_policy.engine.explanation import DecisionKind
from nri_policy.foundation.wording import counted
from nri_policy.foundation.yamltext import YAMLTextError, read_all
from nri_policy.picture import svg
from nri_policy.picture.markup import Element
from nri_policy.picture.page import containers, page, picture_parts, render_list, section, table
from nri_policy.picture.scene import Scene
from nri_policy.picture.svg import Strip
from nri_policy.picture.terminal import Drawing
from nri_policy.report import (
    Fit,
    HeldResources,
    Misfit,
    NewSettingsReport,
    TriedReport,
    TunableChange,
    TwoHoldings,
    WhatIfReport,
)
from nri_policy.settings import SettingsError, find_settings

_LARGEST = 1 << 20  # characters; the daemon takes less, and says so

_MOST_ROWS = 40
_MOST_REPLICAS = 1000

_WHOLE = 1000  # milli-CPU: requests from here on can get exclusive CPUs

_MAX = 0
_ORIGINAL = "the original"
_HEADINGS = tuple(heading for heading in HEADINGS if heading != "QoS")


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
        try:
            return click.IntRange(1, _MOST_REPLICAS).convert(value, param, ctx)
        except click.BadParameter:
            self.fail(
                f"{value!r} is neither a number from 1 to {_MOST_REPLICAS} nor max", param, ctx
            )


@click.command
@click.option(
    "-f",
    "--filename",
    "files",
    type=click.File(encoding="utf-8-sig", lazy=True),
    multiple=True,
    help="Manifests of pods, Deployments, Jobs and so on; - for stdin. May be repeated.",
)
@click.option(
    "--settings",
    "settings_files",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path),
    multiple=True,
    help="Try these settings first: a TopologyAwarePolicy document, a ConfigMap with one, or values"
    " of the Helm chart; - for stdin.",
)
@click.option(
    "--replicas",
    type=_Replicas(),
    help="Replicas of each manifest, or as many as fit.  [default: as in the manifest]",
)
@socket_option
@picture_form_option
@click.pass_context
def command(  # noqa: PLR0913, PLR0917 - one parameter an option
    context: click.Context,
    files: tuple[TextIO, ...],
    settings_files: tuple[Path, ...],
    replicas: int | None,
    control_socket: Path,
    form: str,
) -> None:
    """Show where new pods would go, or what new settings would do.

    The daemon tries it on a copy and changes nothing. Pods are tried in the order of the file, the
    replicas of each until one does not fit.

    With --settings, shows which containers would move under these settings. If the daemon does not
    pin now (pinCPU, pinMemory), they are compared with where the kernel has the containers.

    Exits with 1 if not all pods fit (--replicas max: if none fits), or if the settings would be
    refused. With pinCPU and pinMemory off, pods that do not fit start all the same: then with 0.
    """
    if not files and not settings_files:
        raise click.UsageError("give pods by -f, settings by --settings, or both")
    if not files and replicas is not None:
        raise click.UsageError("--replicas is about pods: give them by -f")
    if len(settings_files) > 1:
        raise click.UsageError(f"{len(settings_files)} files with --settings; one is tried")
    manifests = _manifests(files)
    settings = "".join(map(_settings, settings_files))
    with daemon_client(control_socket) as client, _blame(files):
        now = None if form in {"json", "yaml"} else read_current_scene(client)
        report = client.what_if(manifests, replicas or 0, most=replicas == _MAX, settings=settings)
    if now is None:
        print_document(report, form)
    else:
        _picture(now, report, form)
    context.exit(0 if report.fits or _start_unplaced(report) else Exit.NO)


@contextmanager
def _blame(files: Sequence[IO[str]]) -> Iterator[None]:
    """Name the files of manifests in which the daemon finds no sense; the settings make some."""
    try:
        yield
    except DeclinedError as error:
        if not files or not error.invalid:
            raise
        names = ", ".join(name_of(file.name) for file in files)
        raise DeclinedError(f"{names}: {error}", invalid=True) from error


def _manifests(files: Sequence[IO[str]]) -> str:
    """Return the documents of all *files*; UsageError where one of several is no YAML."""
    texts = [_text(file) for file in files]
    for file, text in zip(files, texts, strict=True) if len(files) > 1 else ():
        try:
            read_all(text)
        except YAMLTextError as error:  # in the joined text its line number would differ
            raise click.UsageError(f"{name_of(file.name)}: {error}") from error
    return "\n---\n".join(texts)


def _text(file: IO[str]) -> str:
    try:
        return file.read(_LARGEST)
    except UnicodeDecodeError as error:
        raise click.UsageError(f"{name_of(file.name)}: the text is not UTF-8") from error


def _settings(path: Path) -> str:
    """Return a document of settings that makes sense; Failure says what is wrong with it."""
    text = read_settings(path)
    try:
        find_settings(text, name_of(path)).load()
    except SettingsError as error:
        raise Failure(str(error), Exit.SETTINGS) from error
    return text.decode("utf-8-sig")


def _compare(now: CurrentScene, report: WhatIfReport) -> tuple[Scene, Scene]:
    """Return the pictures of now and of what would be, those CPUs marked that change hands."""
    changed = {
        name: replace(
            now.containers[name],
            pool=change.after.pool,
            exclusive=change.after.exclusive,
            shared_milli=change.after.shared_milli,
            isolated=change.after.isolated,
            cpus=change.after.cpus,
            mems=change.after.mems,
        )
        for name, change in report.changes.items()
        if name in now.containers  # it may have come since
    }
    new = {name: each for name, each in report.containers.items() if each.state != "removed"}
    before = now.scene()
    pools = now.pools if report.settings is None else report.settings.pools
    containers = {**now.containers, **changed, **new}
    after = replace(now, pools=pools, containers=containers).scene(before)
    return replace(before, moved=after.moved), after


def _picture(now: CurrentScene, report: WhatIfReport, form: str) -> None:
    before, after = _compare(now, report)
    match form:
        case "svg":
            sentences = " ".join(_sentences(report))
            strips = (
                Strip(heading=f"{_before(now, report)}: {sentences}", scene=before),
                Strip(heading="After", scene=after),
            )
            print_page(svg.document(strips))
        case "html":
            print_page(page("What if", *_sections(now, before, after, report)))
        case _:
            print_drawing(*_draw(now, before, after, report))


def _before(now: CurrentScene, report: WhatIfReport) -> str:
    """Name the picture of now: it shows decisions, which are not set where pinning is off."""
    unset = any(
        name in now.containers
        and (each.before.cpus, each.before.mems)
        != (now.containers[name].cpus, now.containers[name].mems)
        for name, each in report.changes.items()
    )
    return "Before, as decided" if unset else "Before"


def _sections(
    now: CurrentScene, before: Scene, after: Scene, report: WhatIfReport
) -> Iterator[Element]:
    yield render_list(_sentences(report))
    yield section(_before(now, report), *picture_parts(before, "before-"))
    yield section("After", *picture_parts(after, "after-"), containers(after))
    whys = [(short(name), "; ".join(_remarks(each))) for name, each in report.containers.items()]
    if whys:
        yield section("Why there", table(["container", "why"], whys))
    if report.warnings:
        yield section("Warnings", render_list(report.warnings))
    if report.notes:
        yield section("Notes", render_list(report.notes))


def _draw(
    now: CurrentScene, before: Scene, after: Scene, report: WhatIfReport
) -> Iterator[RenderableType]:
    if report.settings is not None:
        yield Text(_verdict(report.settings), style="bold")
    for pod in report.pods:
        yield Text(_sentence(pod), style="bold")
        if pod.misfits:
            yield Text(_misfits(pod, pod.misfits), style="yellow")
    for warning in report.warnings:
        yield Text(f"warning: {warning}", style="yellow")
    yield from (Text(f"note: {note}") for note in report.notes)
    if report.settings is not None:
        yield from _consequences(report, len(now.placed))
    if after.changes:
        for title, scene in ((_before(now, report), before), ("After", after)):
            yield Text(f"\n{title}", style="bold cyan")
            yield Drawing(scene)
    if report.containers:
        yield ""
        yield _containers(report.containers)
    if report.settings is None:
        yield ""
        yield from _consequences(report, len(now.placed))


def _consequences(report: WhatIfReport, placed: int) -> Iterator[RenderableType]:
    shown = {
        name: each
        for name, each in report.changes.items()
        if _visible(each.before) != _visible(each.after)
    }
    report = replace(report, changes=shown)
    yield Text(_consequence(report, placed), style="bold cyan" if report.changes else "")
    if report.changes:
        yield _changes(report.changes)
    if report.tunables:
        number = counted(len(report.tunables), "kernel tunable")
        yield Text(f"\n{number} would change (see nri-policy tunables):")
        yield _tunables(report.tunables)


def _sentences(report: WhatIfReport) -> Iterator[str]:
    if report.settings is not None:
        yield _verdict(report.settings)
    yield from map(_sentence, report.pods)


def _verdict(settings: NewSettingsReport) -> str:
    if settings.accepted:
        return "These settings would be accepted."
    return f"These settings would be refused: {settings.reason}"


def _consequence(report: WhatIfReport, placed: int) -> str:
    """Say for how many of the *placed* containers something would change."""
    if report.settings is None:
        return "Others would change:" if report.changes else "Nobody else would have to change."
    if not report.settings.accepted:
        return "Nobody would move."
    moved = sum(
        (each.before.cpus, each.before.mems) != (each.after.cpus, each.after.mems)
        for each in report.changes.values()
    )
    limited = sum(_limits(each.before) != _limits(each.after) for each in report.changes.values())
    also = f", {limited} other limits of I/O" if limited else ""
    kinds = sum(each.before.partition != each.after.partition for each in report.changes.values())
    also += f", {kinds} another kernel partition or none" if kinds else ""
    colon = ":" if report.changes else "."
    return f"{moved} of {placed} containers would get other CPUs or memory nodes{also}{colon}"


def _sentence(pod: Fit) -> str:
    """Say how many replicas fit, and why the next one does not."""
    name = short(pod.pod)
    if pod.replicas == 1:
        return f"{name} would fit." if pod.fit else f"{name} {_refusal(pod)}"
    if pod.replicas is not None:
        fit = f"{pod.fit} of {pod.replicas} replicas"
    else:
        fit = f"{'At least ' * pod.more}{counted(pod.fit, 'replica')}" if pod.fit else "No replica"
    also = "" if pod.more else f" Replica {pod.fit + 1} {_refusal(pod)}"
    return f"{fit} of {name} would fit.{also}"


def _refusal(pod: Fit) -> str:
    if pod.starts_unplaced:
        starts = "It would start, but with pinning on it would be refused."
        return f"would not fit: {pod.refusal}. {starts}"
    return f"would be refused: {pod.refusal}."


def _start_unplaced(report: WhatIfReport) -> bool:
    """Whether pods start although they do not fit, because nothing is pinned."""
    accepted = report.settings is None or report.settings.accepted
    return accepted and any(pod.starts_unplaced for pod in report.pods)


def _misfits(pod: Fit, misfits: Sequence[Misfit]) -> str:
    """Say which replicas would be split, and why."""
    first = misfits[0]
    if pod.fit == 1:
        return f"It would be split: {first.why}."
    more = f" (and {len(misfits) - 1} after it)" if len(misfits) > 1 else ""
    return f"Replica {first.replica}{more} would be split: {first.why}."


def _containers(containers: Mapping[str, TriedReport]) -> Columns:
    table = Columns(*_HEADINGS, "why", dispensable=("mems", "pool", "amount", "cpuset"))
    left_out = len(containers) - _MOST_ROWS
    for number, (name, each) in enumerate(containers.items()):
        # keep the last row: the refused container
        if number >= _MOST_ROWS - 1 and number + 1 < len(containers):
            if number == _MOST_ROWS - 1:
                table.add_row(Text(f"… {left_out} more: see -o json", style="dim"))
            continue
        table.add_row(
            *(
                cell
                for at, cell in zip(HEADINGS, cells(name, each), strict=True)
                if at in _HEADINGS
            ),
            Text("; ".join(_remarks(each))),
            style="red" if each.error else "yellow" if each.misfit else "",
        )
    return table


def _remarks(container: TriedReport) -> Iterator[str]:
    if container.error:
        yield container.error
        return
    if container.outcome is not DecisionKind.PLACED:
        yield container.outcome
    if container.because and (container.shared_milli or 0) >= _WHOLE:
        yield f"shared: {container.because}"
    if container.why:
        yield container.why
    if container.classes:
        yield f"in classes {container.classes}"
    if container.partition:
        yield f"kernel partition, {container.partition}"
    if container.misfit:
        yield container.misfit
    if container.state == "removed":
        yield "ends before the next one starts"


def _visible(held: HeldResources) -> tuple[object, ...]:
    """Return what the table of changes shows; amounts of shared CPUs are only in the document."""
    return held.cpus, held.mems, held.pool, held.exclusive, held.partition, _limits(held)


def _changes(changes: Mapping[str, TwoHoldings]) -> Columns:
    limited = any(_limits(each.before) != _limits(each.after) for each in changes.values())
    partitions = any(e.before.partition != e.after.partition for e in changes.values())
    # where the cpuset does not show them
    exclusive = any(
        each.before.cpus == each.after.cpus and each.before.exclusive != each.after.exclusive
        for each in changes.values()
    )
    more = (*(["partition"] if partitions else []), *(["I/O"] if limited else []))
    headings = (
        *("container", "", *(["exclusive"] if exclusive else []), "cpuset", "mems", "pool"),
        *more,
    )
    table = Columns(*headings, dispensable=("pool", "mems"))
    for name, change in changes.items():
        for when, whose, held in (
            ("before", path(short(name)), change.before),
            ("after", Text(), change.after),
        ):
            own = [cpu_list(held.exclusive)] if exclusive else []
            cells = [*own, cpu_list(held.cpus), cpu_list(held.mems), path(held.pool or "-")]
            kind = [held.partition or "-"] if partitions else []
            table.add_row(whose, when, *cells, *kind, *([_limits(held)] if limited else []))
    return table


def _tunables(changes: Mapping[str, TunableChange]) -> Columns:
    table = Columns("item", "before", "after", "for", dispensable=("for",))
    for item, each in islice(changes.items(), _MOST_ROWS):
        values = [_ORIGINAL if value is None else value for value in (each.before, each.after)]
        table.add_row(Text(item), *map(Text, values), Text(", ".join(map(short, each.origin))))
    if len(changes) > _MOST_ROWS:
        table.add_row(Text(f"… {len(changes) - _MOST_ROWS} more: see -o json", style="dim"))
    return table


def _limits(held: HeldResources) -> str:
    """Return a container's class of I/O and what that comes to, line by line."""
    if held.blockio is None:
        return ""
    texts = (f"{file} {line}" for file, text in held.limits.items() for line in text.split("\n"))
    return "\n".join([held.blockio, *texts])
