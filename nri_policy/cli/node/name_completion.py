"""Completion of pod and container names in a shell, from the running daemon.

Completion must be quick: without an immediate answer it offers nothing, and reports no error.
"""

from __future__ import annotations

import click

from nri_policy.cli.node.holdings import short
from nri_policy.control.client import DeclinedError, UnreachableError, connected
from nri_policy.daemon.paths import CONTROL_SOCKET

_PATIENCE = 1.0  # seconds


def complete(
    context: click.Context,
    parameter: click.Parameter,  # noqa: ARG001 - click's signature
    incomplete: str,
) -> list[str]:
    """Return the names of pods and containers that begin with *incomplete*."""
    socket = context.params.get("control_socket") or CONTROL_SOCKET
    try:
        with connected(socket, patience=_PATIENCE) as client:
            every = client.containers()
    except (UnreachableError, DeclinedError):
        return []
    namespace = context.params.get("namespace")
    containers = [
        short(name) if namespace is None else name.removeprefix(f"{namespace}/")
        for name in every
        if namespace is None or name.startswith(f"{namespace}/")
    ]
    pods = [name.rpartition("/")[0] for name in containers]
    return [name for name in dict.fromkeys([*pods, *containers]) if name.startswith(incomplete)]
