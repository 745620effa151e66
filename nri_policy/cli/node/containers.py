"""`nri-policy containers`: what every container of the node holds."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import click
from rich.text import Text

from nri_policy.cli.daemon_option import daemon_client, socket_option
from nri_policy.cli.failure import Failure
from nri_policy.cli.node.holdings import DISPENSABLE, HEADINGS, cells, short
from nri_policy.cli.node.name_completion import complete
from nri_policy.cli.node.pinning import left_alone
from nri_policy.cli.options import form_option
from nri_policy.cli.output import print_document, print_drawing
from nri_policy.cli.terminal.fitting import Columns
from nri_policy.cli.terminal.watching import repeat, watch_option
from nri_policy.control.container_names import UnknownNameError, find_by_name
from nri_policy.foundation.wording import natural, some
from nri_policy.picture.mark import Mark, assign_marks
from nri_policy.picture.terminal import letter
from nri_policy.report import ContainerReport, Containers

_KEYS: dict[str, Callable[[tuple[str, ContainerReport]], Any]] = {
    "name": lambda named: named[0],
    "qos": lambda named: (named[1].qos or "", named[0]),
    "cpu": lambda named: (-_milli(named[1]), named[0]),
    "pool": lambda named: (natural(named[1].pool or ""), named[0]),
}


@click.command
@click.argument("name", metavar="[POD]", required=False, shell_complete=complete)
@click.option("-n", "--namespace", help="Only the containers of this namespace.")
@click.option(
    "--sort",
    "key",
    type=click.Choice(["placed", *_KEYS]),
    default="placed",
    show_default=True,
    help="Order: by time of placement, name, QoS class or pool, or most CPU first.",
)
@watch_option
@socket_option
@form_option
def command(  # noqa: PLR0913, PLR0917 - click names them; one for each option
    name: str | None,
    namespace: str | None,
    key: str,
    watch: bool,
    control_socket: Path,
    form: str,
) -> None:
    """Show what each container has, and which were refused.

    With POD or POD/CONTAINER, and NAMESPACE/ before it if that is not `default`, only those of this
    pod.
    """
    wanted = name if name is None or namespace is None else f"{namespace}/{name}"
    repeat(lambda: _show(wanted, namespace, key, control_socket, form), watch=watch)


def _wanted(every: Containers, name: str | None, namespace: str | None) -> Collection[str]:
    """Return the containers of a pod, or of a namespace, or all; Failure where there is no pod."""
    if name is None:
        return [each for each in every if namespace in {None, each.partition("/")[0]}]
    try:
        found = find_by_name(name, every)
    except UnknownNameError as error:
        raise Failure(str(error)) from error
    return [found] if isinstance(found, str) else found


def _show(
    name: str | None, namespace: str | None, key: str, control_socket: Path, form: str
) -> None:
    with daemon_client(control_socket) as client:
        every, note = client.containers(), left_alone(client.settings())
    marks = assign_marks(name for name, each in every.items() if each.exclusive)
    wanted = {*_wanted(every, name, namespace)}
    named = every.items() if key == "placed" else sorted(every.items(), key=_KEYS[key])
    containers = {name: each for name, each in named if name in wanted}
    if namespace is not None and not containers and every:
        there = some({each.partition("/")[0] for each in every})
        note = f"there are containers of: {there}"
    if form == "table":
        placed = {name: each for name, each in containers.items() if each.sort is not None}
        problems = [
            Text(f"{'error' if name in placed else 'refused'}: {short(name)}: {each.error}", "red")
            for name, each in containers.items()
            if each.error
        ]
        notes = [Text(f"\nnote: {note}")] if note else []
        print_drawing(_table(placed, marks), *_causes(placed), *problems, *notes)
    else:
        print_document(containers, form)


def _partition(container: ContainerReport) -> Text:
    """Return the kernel partition due for a container, marked if it is missing."""
    if container.partition is None:
        return Text("-")
    if container.partition_error:
        return Text(f"missing ({container.partition})", "yellow")
    return Text(container.partition)


def _milli(container: ContainerReport) -> int:
    return 1000 * len(container.exclusive or ()) + (container.shared_milli or 0)


def _table(containers: Containers, marks: Mapping[str, Mark]) -> Columns | Text:
    if not containers:
        return Text("no containers")
    in_classes = any(each.classes for each in containers.values())
    partitions = any(each.partition for each in containers.values())
    table = Columns(
        "",
        *HEADINGS,
        *(["partition"] if partitions else []),
        *(["classes"] if in_classes else []),
        "state",
        dispensable=DISPENSABLE,
    )
    for name, each in containers.items():
        table.add_row(
            letter(marks, name),
            *cells(name, each),
            *([_partition(each)] if partitions else []),
            *([Text(str(each.classes or ""))] if in_classes else []),
            Text(each.state),
        )
    return table


def _causes(containers: Containers) -> Iterator[Text]:
    """Yield what changed containers last, with all that it changed: many share CPUs."""
    changed: dict[str, list[str]] = {}
    for name, each in containers.items():
        for cause in each.updated_by or ():
            changed.setdefault(cause, []).append(short(name))
    for cause, names in changed.items():
        yield Text(f"last changed because {short(cause)}: {', '.join(names)}")
