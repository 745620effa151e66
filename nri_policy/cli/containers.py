"""`nri-policy containers`: what every container of the node holds."""

from __future__ import annotations

from pathlib import Path

import click
from rich.text import Text

from nri_policy.cli.asking import asking, socket_option
from nri_policy.cli.fitting import Columns
from nri_policy.cli.holdings import HEADINGS, cells
from nri_policy.cli.options import form_option
from nri_policy.cli.output import print_document, print_drawing
from nri_policy.cli.pinning import left_alone
from nri_policy.picture.mark import marked
from nri_policy.picture.terminal import letter
from nri_policy.report import Containers


@click.command
@socket_option
@form_option
def command(control_socket: Path, form: str) -> None:
    """Show what every container holds, and which were refused."""
    with asking(control_socket) as client:
        containers, note = client.containers(), left_alone(client)
    if form == "table":
        print_drawing(_table(containers), *([Text(f"\nnote: {note}")] if note else []))
    else:
        print_document(containers, form)


def _table(containers: Containers) -> Columns | Text:
    if not containers:
        return Text("no containers")
    table = Columns(
        "",
        *HEADINGS,
        "state",
        "last changed because",
        dispensable=("class", "mems", "pool", "last changed because", "own + shared"),
    )
    marks = marked(name for name, each in containers.items() if each.exclusive)
    for name, each in containers.items():
        table.add_row(
            letter(marks, name),
            *cells(name, each),
            Text("refused" if each.error else each.state),
            Text(each.error or "; ".join(each.updated_by or ())),
            style="red" if each.error else "",
        )
    return table
