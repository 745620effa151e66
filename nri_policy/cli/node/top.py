"""`nri-policy top`: which containers run where, live."""

from __future__ import annotations

from contextlib import closing, suppress
from datetime import datetime
from pathlib import Path

import click

from nri_policy.cli.daemon_option import socket_option
from nri_policy.cli.failure import Exit, Failure
from nri_policy.cli.node.live import DaemonWatcher, show
from nri_policy.cli.output import Canvas
from nri_policy.cli.terminal.keyboard import moments, single_keys


@click.command
@socket_option
def command(control_socket: Path) -> None:
    """Show which containers run where, live, and the latest decisions.

    Keys: q quits; ? lists the keys; / filters containers by name; p, n, c and u sort them by time
    of placement, name, CPU, and CPU in use; j, k, the arrows and the page keys scroll. While the
    daemon is away, top waits for it.
    """
    console = Canvas(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        raise Failure("top needs a terminal; `pools` prints the same once", Exit.USAGE)
    with (
        closing(DaemonWatcher(control_socket, _now)) as feed,
        single_keys(),
        suppress(KeyboardInterrupt),
    ):
        show(feed.look, console, moments())


def _now() -> datetime:
    return datetime.now().astimezone()
