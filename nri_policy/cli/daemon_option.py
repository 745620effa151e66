"""The option that names the daemon's socket, a client for it, and its errors as Failures."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from nri_policy.cli.failure import Exit, Failure
from nri_policy.control.client import ControlClient, DeclinedError, UnreachableError, connected
from nri_policy.daemon.paths import CONTROL_SOCKET, SOCKET_VARIABLE

socket_option = click.option(
    "--control-socket",
    type=click.Path(path_type=Path, readable=False),  # the connection says whether we may
    default=CONTROL_SOCKET,
    show_default=True,
    envvar=SOCKET_VARIABLE,
    help="The daemon's socket.",
)


@contextmanager
def daemon_client(control_socket: Path) -> Iterator[ControlClient]:
    """Yield a client of the daemon; what it raises becomes a Failure."""
    try:
        with connected(control_socket) as client:
            yield client
    except UnreachableError as error:
        raise Failure(str(error), Exit.UNREACHABLE) from error
    except DeclinedError as error:
        raise Failure(str(error), Exit.USAGE if error.invalid else Exit.NO) from error
