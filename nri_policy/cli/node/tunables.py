"""`nri-policy tunables`: what the tuner has set, and the original values."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import click
from rich.text import Text

from nri_policy.cli.failure import Exit, Failure
from nri_policy.cli.node.tuner_options import tuner_socket_option
from nri_policy.cli.options import form_option
from nri_policy.cli.output import print_document, print_drawing
from nri_policy.cli.terminal.fitting import Columns
from nri_policy.tuning.protocol import Tunable, TunerError, ask


@click.command
@tuner_socket_option
@form_option
def command(tuner_socket: Path, form: str) -> None:
    """Show kernel tunables that are set, and their originals."""
    try:
        tunables = ask(tuner_socket).tunables
    except TunerError as error:
        left = "nri-policy restore --dry-run shows what an earlier tuner has left set"
        raise Failure(f"{error}; {left}", Exit.UNREACHABLE) from error
    if form == "table":
        print_drawing(draw(tunables) if tunables else Text("Nothing is set."))
    else:
        print_document(tunables, form)


def draw(tunables: Iterable[Tunable]) -> Columns:
    """Return a table of tunables."""
    table = Columns("item", "state", "wished", "found", "original", "for", "why")
    for each in tunables:
        wished = "the original" if each.wished is None else each.wished
        table.add_row(
            Text(str(each.item)),
            Text(each.state.value),
            Text(wished),
            Text(each.found or "-"),
            Text(each.original or "-"),
            Text(", ".join(each.origin)),
            Text(each.why),
        )
    return table
