"""`nri-policy config`: what settings say, before they are used and while they are in force."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
from msgspec.structs import replace
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from nri_policy.cli.daemon_option import daemon_client, socket_option
from nri_policy.cli.failure import Exit, Failure
from nri_policy.cli.options import Source, form_option, machine_options, name_of, read_settings
from nri_policy.cli.output import local_time, print_document, print_drawing
from nri_policy.cli.terminal.fitting import Columns
from nri_policy.engine.state.layout import Layout, layout_of
from nri_policy.foundation.shipped import shipped
from nri_policy.foundation.units import format_bytes
from nri_policy.foundation.wording import printable
from nri_policy.foundation.yamltext import TextPosition
from nri_policy.hardware.discovery import discover
from nri_policy.hardware.power import Power, power_of
from nri_policy.hardware.resctrl import Resctrl, resctrl_of
from nri_policy.pools.capacity import CapacityError
from nri_policy.report import (
    CheckReport,
    CPUClassReport,
    ErrorReport,
    NodeCapacity,
    RDTShareReport,
    SettingsReport,
    cpu_class_reports,
    format_cpus,
    rdt_reports,
)
from nri_policy.settings import (
    Document,
    EffectiveSetting,
    Problem,
    Settings,
    SettingsError,
    SettingsText,
    documents_of,
    effective,
    find_settings,
)
from nri_policy.tuning.cpu_classes import find_faults
from nri_policy.tuning.rdt import resolve

_NONE = {"instrumentation.httpEndpoint": "off"}  # meaning of an empty value, other than `all`
_TWICE = "in a cluster it replaces the document above it that has the same kind and name"
_NOTHING_LEFT = (
    "no CPU is left for pods: reservedResources.cpu takes all CPUs of availableResources.cpu"
)

_all_option = click.option("--all", "every", is_flag=True, help="Show every field, also defaults.")


@click.group
def command() -> None:
    """Check, show, reload or begin settings."""


@command.command
@click.argument(
    "file", type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path)
)
@machine_options
@_all_option
@form_option
@click.pass_context
def check(context: click.Context, file: Path, source: Source, every: bool, form: str) -> None:
    """Check settings, and show what differs from the defaults.

    FILE is a document, a ConfigMap with one, or values of the Helm chart; - is stdin. A file
    may have several documents; other objects among them are skipped. All errors are reported at
    once. If you name a machine, and there are none, also says whether the daemon would start on
    it. Exits with 78 if anything is wrong.
    """
    documents = documents_of(read_settings(file), name_of(file))
    settings = [each for each in documents if not each.other]
    others = ", ".join(f"{each.other} {each.name}".strip() for each in documents if each.other)
    if not settings:
        raise Failure(printable(f"{name_of(file)}: no settings in it: {others}"), Exit.SETTINGS)
    reports = [_check_document(document, source) for document in settings]
    if form == "table":
        for number, (origin, report) in enumerate(reports):
            if number:
                print_drawing("")
            print_drawing(*_render_check(origin, report, every=every))
        if others:
            text = f"skipped, because they are no settings: {others}"
            print_drawing("", Text(printable(text), style="dim"))
    else:
        every_report = tuple(report for _, report in reports)
        print_document(every_report if len(documents) > 1 else every_report[0], form)
    context.exit(0 if all(report.valid for _, report in reports) else Exit.SETTINGS)


@command.command
def sample() -> None:
    """Print settings with every field, to start from."""
    click.echo((shipped() / "configs" / "settings.yaml").read_text(), nl=False)


@command.command
@_all_option
@socket_option
@form_option
def show(every: bool, control_socket: Path, form: str) -> None:
    """Show the settings in force, and where each was set."""
    with daemon_client(control_socket) as client:
        report = client.settings()
    if form == "table":
        print_drawing(*_render_settings(report, every=every))
    else:
        print_document(report, form)


@command.command
@socket_option
def reload(control_socket: Path) -> None:
    """Reload the daemon's settings, as SIGHUP does.

    Exits with 1 if they are refused; the old ones then stay in force.
    """
    with daemon_client(control_socket) as client:
        outcome = client.reload()
    if not outcome.accepted:
        raise Failure(f"{outcome.origin}: refused, the old settings stay: {outcome.reason}")
    click.echo(f"{outcome.origin}: in force")


def _check_document(document: Document, source: Source) -> tuple[str, CheckReport]:
    """Return what names the settings in a document, and what is wrong with them."""
    try:
        given = find_settings(document.text, document.origin, document.above)
    except SettingsError as error:
        return error.origin, replace(_refuse(error), name=document.name)
    report = _check(given, source)
    twice = (_TWICE,) if document.replaces else ()
    return given.origin, replace(report, name=document.name, notices=(*report.notices, *twice))


def _check(given: SettingsText, source: Source) -> CheckReport:
    """Return what is wrong with settings, or what they come to on the machine."""
    try:
        settings = given.load()
    except SettingsError as error:
        return _refuse(error)
    tuned = ", ".join(settings.list_tuned())
    tuner = (f"{tuned}: no effect without the tuner: start it (docs/tuning.md)",) if tuned else ()
    report = CheckReport(
        valid=False,
        errors=(),
        notices=(*settings.notices, *settings.list_unreferenced(), *tuner),
        settings=effective(settings),
    )
    if source == Source():
        nothing_left = (_NOTHING_LEFT,) if settings.reserves_all else ()
        return replace(report, valid=True, notices=(*report.notices, *nothing_left))
    with source.root() as root:
        return _check_on(given, settings, report, root)


def _check_on(
    given: SettingsText, settings: Settings, report: CheckReport, root: Path
) -> CheckReport:
    """Return the report on settings with what they come to on the machine below *root*."""
    machine = discover(root, memory_kinds=settings.memory_kinds)
    try:
        layout = layout_of(machine, settings)
    except CapacityError as error:
        path, _, text = str(error).partition(": ")  # it begins with the field
        return replace(report, errors=(_error(given.problem(path, text)),))
    power = power_of(root, machine) if settings.cpu_classes else Power()
    resctrl = resctrl_of(root)
    rdt, rdt_faults = resolve(settings.control.rdt, resctrl)
    faults = [*find_faults(settings.cpu_classes, power), *rdt_faults]
    if errors := [given.problem(each.path, each.text) for each in faults if each.fatal]:
        return replace(report, errors=tuple(map(_error, errors)))
    return replace(
        report,
        valid=True,
        notices=(*report.notices, *(f"{each.path}: {each.text}" for each in faults)),
        machine=_machine(layout),
        cpu_classes=cpu_class_reports(settings.cpu_classes, layout.tree.top.cpus, power),
        rdt=rdt_reports(rdt, resctrl or Resctrl()),
    )


def _refuse(error: SettingsError) -> CheckReport:
    errors = tuple(map(_error, error.problems))
    return CheckReport(valid=False, errors=errors, notices=(), settings=())


def _error(problem: Problem) -> ErrorReport:
    line, column = problem.mark or (None, None)
    return ErrorReport(path=problem.path, text=problem.text, line=line, column=column)


def _machine(layout: Layout) -> NodeCapacity:
    capacity = layout.capacity
    return NodeCapacity(
        online=layout.machine.online,
        reserved=capacity.reserved,
        isolated=capacity.isolated,
        sharable=capacity.sharable,
        pools=len(layout.tree.pools),
        notes=layout.notes,
    )


def _render_check(origin: str, report: CheckReport, *, every: bool) -> Iterator[RenderableType]:
    errors = report.errors
    if errors:
        count = "1 error" if len(errors) == 1 else f"{len(errors)} errors"
        yield Text(f"{origin}: {count}", style="bold red")
        for error in errors:
            mark = None if error.line is None else TextPosition(error.line, error.column or 0)
            yield Text(f"  {Problem(error.path, error.text, mark)}")
    else:
        yield Text(f"{origin}: these settings are valid", style="bold")
    yield from _remarks(report.notices)
    if machine := report.machine:
        yield ""
        yield Text("The daemon would start on this machine:", style="bold cyan")
        table = Table.grid(padding=(0, 2, 0, 0))
        for name, cpus in (
            ("online", machine.online),
            ("reserved", machine.reserved),
            ("isolated", machine.isolated),
            ("sharable", machine.sharable),
        ):
            table.add_row(f"CPUs {name}", Text(str(cpus) or "-"))
        table.add_row("pools", str(machine.pools))
        yield table
        yield from _remarks(machine.notes)
        yield from _cpu_classes(report.cpu_classes)
        yield from _rdt(report.rdt)
    elif not errors:
        yield Text(
            "not checked against a machine: --host-root / checks against this one", style="dim"
        )
    if report.settings and not errors:
        yield ""
        yield from _table(report.settings, every=every)


def _cpu_classes(reports: Sequence[CPUClassReport]) -> Iterator[RenderableType]:
    if not reports:
        return
    yield ""
    table = Columns("CPU class", "CPUs", "sets")
    for each in reports:
        values = ", ".join(_value(*item) for item in each.values.items())
        table.add_row(Text(each.name), Text(format_cpus(each.cpus)), Text(values))
    yield table


def _rdt(reports: Sequence[RDTShareReport]) -> Iterator[RenderableType]:
    if not reports:
        return
    yield ""
    table = Columns("RDT class", "resource", "caches", "share", "size")
    for each in reports:
        size = "" if each.bytes is None else format_bytes(each.bytes)
        cells = (each.name, each.resource, format_cpus(each.ids), each.share, size)
        table.add_row(*map(Text, cells))
    yield table


def _value(attribute: str, value: str) -> str:
    """Return a value that a class sets, with its unit."""
    if attribute.endswith("_freq"):
        return f"{attribute} {int(value) / 10**6:g} GHz"
    return f"{attribute} {value}{' µs' if attribute == 'resume_latency' and value != 'n/a' else ''}"


def _render_settings(report: SettingsReport, *, every: bool) -> Iterator[RenderableType]:
    yield Text(f"from {report.origin}", style="bold")
    latest = report.latest_reload
    if latest is not None and not latest.accepted:
        when = local_time(latest.time)
        yield Text(f"reload of {when} refused: {latest.reason}", style="red")
    yield from _remarks(report.notices)
    yield ""
    yield from _table(report.settings, every=every)


def _remarks(texts: Sequence[str]) -> Iterator[RenderableType]:
    for text in texts:
        yield Text(f"note: {text}")


def _table(settings: Sequence[EffectiveSetting], *, every: bool) -> Iterator[RenderableType]:
    """Yield the table of what differs from the defaults, or of *every* field."""
    table = Columns("field", "value", *(["set by"] if every else []))
    shown_settings = [each for each in settings if every or not each.is_default]
    for each in shown_settings:
        value = each.value
        shown = value if isinstance(value, str) and value else json.dumps(value)
        table.add_row(
            Text(each.field),
            Text(_NONE.get(each.field, "all") if value is None else shown),
            *([Text(each.origin)] if every else []),
            style="dim" if each.is_default else "",
        )
    if shown_settings:
        yield table
    if left := len(settings) - len(shown_settings):
        yield Text(f"{left} other fields have their defaults: --all shows them", style="dim")
