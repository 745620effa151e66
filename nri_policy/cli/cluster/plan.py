"""`nri-policy cluster plan`: which pods would have to move so that a group that waits fits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
from rich.table import Table
from rich.text import Text

from nri_policy.cli.cluster.documents import (
    document_errors,
    documents_option,
    exit_code,
    require_one,
    the_group,
)
from nri_policy.cli.cluster.source import ClusterSource, cluster_options, service_settings_option
from nri_policy.cli.options import form_option
from nri_policy.cli.output import print_document, print_drawing
from nri_policy.cluster.planning.moves import MOST_MOVES, MovePlan, plan_moves
from nri_policy.cluster.planning.pods_alone import single_out
from nri_policy.cluster.requests.annotations import MOVABLE
from nri_policy.foundation.wording import counted


@click.command
@click.argument("name", required=False)
@documents_option
@click.option(
    "--moves",
    "most",
    type=click.IntRange(1, 100),
    default=MOST_MOVES,
    show_default=True,
    help="How many pods may move at most.",
)
@cluster_options
@service_settings_option
@form_option
@click.pass_context
def plan(  # noqa: PLR0913, PLR0917 - click names them; one for each option
    context: click.Context,
    source: ClusterSource,
    name: str | None,
    asked: tuple[Path, ...],
    most: int,
    form: str,
) -> None:
    """Show which pods would have to move so that a group fits.

    Pods with the annotation placement.nri/movable: "true" may move if a node elsewhere has room for
    them, and as far as PodDisruptionBudgets allow. NUMA zones count as for "cluster place". Nothing
    is moved. With --service, the settings are those of the running service; the rest is read from
    the cluster. The group is in a file, or in the cluster: NAME, or NAMESPACE/NAME. If a file
    has several groups, NAME names one. Exits with 1 if there is no such plan.
    """
    require_one(name, asked)
    engine, snapshot = source.load(budgets=True)
    with document_errors():
        group = the_group(engine, name, asked, snapshot.classes)
        engine, group, notes = single_out(engine, group)
        found = plan_moves(engine, group, snapshot, most)
        found.notes[:0] = notes
    if form == "table":
        print_drawing(*_draw(found, most))
    else:
        print_document(found, form)
    context.exit(exit_code(fits=found.status.state == "Placed", malformed=found.malformed))


def _draw(found: MovePlan, most: int) -> Iterator[Table | Text]:
    group = found.full_name
    if found.moves:
        pods = counted(len(found.moves), "pod")
        yield Text(f"Moving {pods} would let {group} start:")
        table = Table(box=None, pad_edge=False)
        for head in ("pod", "of", "from", "to"):
            table.add_column(head)
        for each in found.moves:
            table.add_row(each.full_name, each.owner, each.source, each.to)
        yield table
    elif found.status.state == "Placed":
        yield Text(f"{group} fits without any move")
    elif found.malformed:
        yield Text(f"{group}: {found.status.message}")
    else:
        yield Text(f"{group}: no plan with at most {counted(most, 'move')} would let it start")
        yield Text(found.status.message)
        if found.movable or found.staying:
            yield Text(f"{counted(found.movable, 'pod')} could move")
        else:
            yield Text(f'no pod may move: none has {MOVABLE}: "true"')
    for why, number in found.staying.items():
        yield Text(f"{counted(number, 'movable pod')} must stay: {why}")
    yield from (Text(f"note: {each}") for each in found.notes)
