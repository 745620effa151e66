"""`nri-policy history`: what happened on the node, to all containers or to those of one pod."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime, time, timedelta
from pathlib import Path
from typing import Any

import click
from rich.console import RenderableType
from rich.text import Text

from nri_policy.cli.node.holdings import short
from nri_policy.cli.node.journal_file import opened, store_in
from nri_policy.cli.node.names import complete
from nri_policy.cli.options import form_option
from nri_policy.cli.output import local_time, print_document, print_drawing
from nri_policy.cli.terminal.breakable_text import cpu_list, path
from nri_policy.cli.terminal.fitting import Columns
from nri_policy.cli.terminal.progress import progress
from nri_policy.daemon.places import STATE_DIR, find_state_dir
from nri_policy.foundation.cpuset import EMPTY
from nri_policy.foundation.units import format_time, parse_duration
from nri_policy.report import JournalChange, JournalRecord, format_cpus
from nri_policy.store.history import documents

_MOST_CHANGES = 3  # of a row
_WORDS = {  # where there is no summary
    "stopped": "stopped",
    "pod-stopped": "the pod stopped",
    "synchronized": "the runtime listed all its containers",
    "reconfigured": "new settings or hardware",
    "prepared": "the claim got its CPUs",
    "unprepared": "the claim gave its CPUs back",
}


def _ago(text: str) -> datetime:
    return datetime.now(UTC) - timedelta(seconds=parse_duration(text))


def _today(text: str) -> datetime:
    return datetime.combine(datetime.now(UTC).astimezone().date(), time.fromisoformat(text))


class _Moment(click.ParamType[str]):
    """A moment, as `format_time` has it: they are compared as texts."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        for read in (_ago, datetime.fromisoformat, _today):
            with suppress(ValueError, OverflowError):
                return format_time(read(value).timestamp())
        return self.fail(
            f"{value!r} is not a time: 2h (ago), 03:00 (today) or 2026-11-26T03:00", param, ctx
        )


@click.command
@click.argument("name", metavar="[POD]", required=False, shell_complete=complete)
@click.option("--since", type=_Moment(), help="From then on: 2h (ago), 03:00 or 2026-11-26T03:00.")
@click.option("--until", type=_Moment(), help="Up to then, in the same forms.")
@click.option(
    "--journal",
    type=click.Path(exists=True, readable=False, path_type=Path),
    default=find_state_dir,
    show_default=str(STATE_DIR),
    help="State folder of a daemon, running or not, or a copy of its file store/state.db.",
)
@form_option
def command(
    name: str | None, since: str | None, until: str | None, journal: Path, form: str
) -> None:
    """Show what happened on the node, to all containers or a pod.

    Lists the recorded events and decisions, oldest first.

    With [NAMESPACE/]POD or NAMESPACE/POD/CONTAINER only what concerned these containers: their own
    events, and those of others that changed them.
    """
    prefix = "" if name is None else f"{name if '/' in name else f'default/{name}'}/"
    found = []
    with opened(store_in(journal)) as records, progress("reading", len(records)) as step:
        for record in documents(records):
            step()
            timely = (since or "") <= record.time and (until is None or record.time <= until)
            if timely and _concerns(record, prefix):
                found.append(record)
    if form == "table":
        print_drawing(*_draw(found))
    else:
        print_document(found, form)


def _concerns(record: JournalRecord, prefix: str) -> bool:
    """Whether something happened, to those whose names begin with *prefix*."""
    if record.event == "base":  # repeats what there is
        return False
    names = [each.container for each in record.changes]
    if record.summary or record.event in _WORDS:
        names.append(record.container)
    return any(f"{each or ''}/".startswith(prefix) for each in names)


def _draw(records: Sequence[JournalRecord]) -> Iterator[RenderableType]:
    if not records:
        yield Text("Nothing is recorded of that.")
        return
    table = Columns(
        "time", "container", "cpuset", "what", "others", whole=("time",), dispensable=("cpuset",)
    )
    for record in records:
        table.add_row(
            Text(local_time(datetime.fromisoformat(record.time).timestamp())),
            path(short(record.container or "-")),
            cpu_list(record.cpus or EMPTY),
            Text(record.summary or _WORDS.get(record.event, record.event)),
            Text("\n".join(_others(record.changes))),
            style="red" if record.refused else "",
        )
    yield table


def _others(changes: Sequence[JournalChange]) -> Iterator[str]:
    for each in changes[:_MOST_CHANGES]:
        yield f"{short(each.container or each.container_id)} → {format_cpus(each.cpus) or '-'}"
    if len(changes) > _MOST_CHANGES:
        yield f"and {len(changes) - _MOST_CHANGES} more"
