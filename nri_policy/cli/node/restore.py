"""`nri-policy restore`: puts the original values of all tunables back."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import click
from rich.text import Text

from nri_policy.cli.failure import Exit, Failure
from nri_policy.cli.node.host_options import host_root_option
from nri_policy.cli.node.tunables import draw
from nri_policy.cli.node.tuner_options import journal_dir_option
from nri_policy.cli.output import print_drawing
from nri_policy.cli.terminal.fitting import Columns
from nri_policy.foundation.singleton import AlreadyRunningError
from nri_policy.foundation.wording import counted
from nri_policy.observability.logs import show_warnings
from nri_policy.tuning.server import Restoration, open_tuner, preview_restore


@click.command
@host_root_option("Folder with the host's /sys and /proc.")
@journal_dir_option
@click.option("--dry-run", is_flag=True, help="Only show what would be restored.")
@click.pass_context
def command(context: click.Context, host_root: Path, journal_dir: Path, *, dry_run: bool) -> None:
    """Put the original values of all kernel tunables back.

    It needs neither the daemon nor the tuner, which must be stopped. A value that something else
    has changed meanwhile is left as it is. Exits with 1 if an original cannot be written.
    """
    show_warnings()
    try:
        shown = preview_restore(host_root, journal_dir)
        if dry_run or not shown:
            print_drawing(_draw(shown) if shown else Text("Nothing is to be restored."))
            return
        with open_tuner(host_root, journal_dir) as tuner:
            tuner.set({}, repair=False)
            left = tuner.list_tunables()
    except AlreadyRunningError as error:
        text = f"the tuner runs (process {error.holder}): stop the daemon, then the tuner"
        raise Failure(text) from error
    except ValueError as error:
        raise Failure(f"the journal in {journal_dir} is damaged: {error}") from error
    except OSError as error:
        raise Failure(str(error)) from error
    print_drawing(Text(f"{counted(len(shown) - len(left), 'tunable')} restored or left alone."))
    if left:
        print_drawing(draw(left))
        context.exit(Exit.NO)


def _draw(restorations: Iterable[Restoration]) -> Columns:
    table = Columns("item", "found", "original", "it would be")
    for each in restorations:
        table.add_row(*map(Text, (str(each.item), each.found or "-", each.original, each.then)))
    return table
