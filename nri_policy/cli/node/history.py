"""`nri-policy history`: what happened on the node, to all containers or to those of one pod."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime, time, timedelta
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource
from rich.console import RenderableType
from rich.text import Text

from nri_policy.cli.daemon_option import daemon_client, socket_option
from nri_policy.cli.failure import Failure
from nri_policy.cli.node.holdings import short
from nri_policy.cli.node.journal_file import opened, store_in
from nri_policy.cli.node.name_completion import complete
from nri_policy.cli.options import form_option
from nri_policy.cli.output import print_document, print_drawing, shown_time
from nri_policy.cli.terminal.breakable_text import cpu_list, path
from nri_policy.cli.terminal.fitting import Columns
from nri_policy.cli.terminal.progress import progress
from nri_policy.control.container_names import DEFAULT, UnknownNameError, find_by_name
from nri_policy.daemon.paths import STATE_DIR, find_state_dir
from nri_policy.foundation.cpuset import EMPTY
from nri_policy.foundation.units import format_time, parse_duration
from nri_policy.foundation.wording import quoted, some
from nri_policy.report import JournalRecord, format_cpus
from nri_policy.store.folder import FILE
from nri_policy.store.history import list_documents

_MOST_CHANGES = 3  # of a row
_ZONE = len("22:13:20")  # where the zone begins in a time
_WORDS = {  # where there is no summary
    "stopped": "stopped",
    "pod-stopped": "the pod stopped",
    "synchronized": "the runtime listed all its containers",
    "reconfigured": "new settings or hardware",
    "prepared": "the claim got its CPUs",
    "unprepared": "the claim gave its CPUs back",
}

_REFUSED = {"resized": "resize refused", "reconfigured": "settings refused"}  # else `refused`


def _ago(text: str) -> datetime:
    return datetime.now(UTC) - timedelta(seconds=parse_duration(text))


def _today(text: str) -> datetime:
    return datetime.combine(datetime.now(UTC).astimezone().date(), time.fromisoformat(text))


class _Moment(click.ParamType[str]):
    """A moment in the format of `format_time`, in which texts sort by time."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        for read in (_ago, datetime.fromisoformat, _today):
            with suppress(ValueError, OverflowError):
                return format_time(read(value).timestamp())
        return self.fail(
            f"{value!r} is not a time: 2h (ago), 03:00 (today) or 2026-11-26T03:00", param, ctx
        )


def _find_journal(socket: Path, *, named: bool) -> Path | None:
    """Return the state folder to read; None if the daemon at *socket* has to be asked.

    A simulated node has its state beside its socket.
    """
    if (socket.parent / "store" / FILE).is_file():
        return socket.parent
    state = find_state_dir()
    return None if named or not os.access(state / "store" / FILE, os.R_OK) else state


@click.command
@click.argument("name", metavar="[POD]", required=False, shell_complete=complete)
@click.option("-n", "--namespace", help="Namespace of the pod; without POD, of all its pods.")
@click.option("--tail", type=click.IntRange(1), metavar="N", help="Only the latest N of these.")
@click.option("--since", type=_Moment(), help="Start: 2h (ago), 03:00 or 2026-11-26T03:00.")
@click.option("--until", type=_Moment(), help="Up to then, in the same forms.")
@click.option(
    "--journal",
    type=click.Path(exists=True, readable=False, path_type=Path),
    help="State folder of a daemon, running or not, or a copy of its file store/state.db."
    f" Default: {STATE_DIR}, if you may read it and name no socket.",
)
@socket_option
@form_option
@click.pass_context
def command(  # noqa: PLR0913, PLR0917 - one parameter an option
    context: click.Context,
    name: str | None,
    namespace: str | None,
    tail: int | None,
    since: str | None,
    until: str | None,
    journal: Path | None,
    control_socket: Path,
    form: str,
) -> None:
    """Show what happened on the node, to all containers or a pod.

    Lists the recorded events and decisions, oldest first. It reads the daemon's state folder, also
    while no daemon runs. Without the right to read it, or with --control-socket, it asks the
    daemon.

    With POD or POD/CONTAINER, and NAMESPACE/ before it or -n NAMESPACE if that is not `default`,
    only what concerned these containers: their own events, and those of others that changed them.
    Exits with 1 if the journal names none of them.
    """
    if since is not None and until is not None and since > until:
        raise click.UsageError("--since is after --until")
    if journal is None:
        source = context.get_parameter_source("control_socket")
        named = source is not ParameterSource.DEFAULT
        journal = _find_journal(control_socket, named=named)
    timely, names, latest = [], set[str](), ""
    for record in _ask(control_socket) if journal is None else _read(store_in(journal)):
        names |= {each for each in _names(record) if each}
        latest = max(latest, record.last or record.time)
        if (since or "") <= (record.last or record.time) and (
            until is None or record.time <= until
        ):
            timely.append(record)
    prefix = _prefix(name, namespace, names)
    found = [each for each in timely if _concerns(each, prefix)]
    if tail is not None:
        found = found[-tail:]
    if form == "table":
        print_drawing(*_draw(found, prefix, latest))
    else:
        print_document(found, form)


def _read(file: Path) -> Iterator[JournalRecord]:
    with opened(file) as journal, progress("reading", len(journal)) as step:
        for record in list_documents(journal):
            step()
            yield record


def _ask(control_socket: Path) -> Iterator[JournalRecord]:
    """Yield the records that the daemon has, a page at a time."""
    after, more = 0, True
    with daemon_client(control_socket) as client:
        while more:
            page = client.journal(after=after)
            yield from page.records
            more = page.more
            after = page.records[-1].seq if page.records else 0


def _prefix(name: str | None, namespace: str | None, names: Collection[str]) -> str:
    """Return how the *names* begin that are meant; Failure where there are none."""
    if name is None:
        return "" if namespace is None else _namespace_prefix(namespace, names)
    if namespace is not None:
        name = f"{namespace}/{name}"
    prefix = f"{name if '/' in name else f'{DEFAULT}{name}'}/"
    if any(f"{each}/".startswith(prefix) for each in names):
        return prefix
    try:
        return f"{find_by_name(name, [each for each in names if each.count('/') == 2])}/"
    except UnknownNameError as error:
        raise Failure(f"the journal names {error}") from error


def _namespace_prefix(namespace: str, names: Collection[str]) -> str:
    known = {each.partition("/")[0] for each in names}
    if namespace in known:
        return f"{namespace}/"
    latest = f"; for the latest {namespace} records: --tail {namespace}" * namespace.isdecimal()
    there = f"; it names {some(known)}" if known else ""
    raise Failure(f"the journal names no namespace {quoted(namespace)}{latest or there}")


def _names(record: JournalRecord) -> list[str | None]:
    return [record.container, *(each.container for each in record.changes)]


def _concerns(record: JournalRecord, prefix: str) -> bool:
    """Whether a record is about containers with names that begin with *prefix*."""
    if record.event == "base":  # repeats what there is
        return False
    names = [each.container for each in record.changes]
    if record.summary or record.event in _WORDS:
        names.append(record.container)
    return any(f"{each or ''}/".startswith(prefix) for each in names)


def _draw(records: Sequence[JournalRecord], prefix: str, latest: str) -> Iterator[RenderableType]:
    """Draw *records*; *latest* is the time of the journal's last one, empty if it has none."""
    if not records:
        last = f"; the latest record is of {shown_time(latest)}" if latest else ""
        yield Text(f"Nothing is recorded of that{last}.")
        return
    table, before = Columns("time", "container", "cpuset", "what", whole=("time",)), ""
    for record in records:
        date, at = shown_time(record.time).split(" ")
        if (day := f"{date} {at[_ZONE:]}") != before:
            table.add_row(Text(day, style="bold"), Text(), Text(), Text())
            before = day
        table.add_row(
            Text(at[:_ZONE]),
            path(short(record.container or "-")),
            cpu_list(record.cpus or EMPTY),
            Text("\n".join(_what(record, prefix))),
            style="red" if record.refused else "",
        )
    yield table


def _what(record: JournalRecord, prefix: str) -> Iterator[str]:
    """Describe a record: its summary, and a line per changed container, requested ones first."""
    what = record.summary or _WORDS.get(record.event, record.event)
    if record.refused:
        what = f"{_REFUSED.get(record.event, 'refused')}: {what}"
    if record.last is None:
        yield what
    else:
        yield f"{what} ({record.count} times, last at {shown_time(record.last)})"
    changes = sorted(record.changes, key=lambda each: not (each.container or "").startswith(prefix))
    for each in changes[:_MOST_CHANGES]:
        yield f"{short(each.container or each.container_id)} → {format_cpus(each.cpus) or '-'}"
    if len(changes) > _MOST_CHANGES:
        yield f"and {len(changes) - _MOST_CHANGES} more"
