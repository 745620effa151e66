"""`nri-policy pools`: the running daemon's pools and what is granted on them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from nri_policy.cli.asking import asking, socket_option
from nri_policy.cli.holdings import columns
from nri_policy.cli.options import form_option
from nri_policy.cli.output import print_document, print_drawing
from nri_policy.cli.pieces import cpu_list
from nri_policy.cpuset import CPUSet
from nri_policy.units import format_cpu

_Pool = Mapping[str, Any]


@click.command
@socket_option
@form_option
def command(control_socket: Path, form: str) -> None:
    """Show the pools of the node, and what of each is in use and left."""
    with asking(control_socket) as client:
        pools = client.pools()
    if form == "table":
        print_drawing(_table(pools))
    else:
        print_document(pools, form)


def _table(pools: Sequence[_Pool]) -> Table:
    table = columns(
        *("pool", "CPUs", "own", "shared", "left", "mems", "containers"),
        right=("shared", "left", "containers"),
    )
    (top,) = (pool for pool in pools if pool["parent"] is None)
    for pool, name in _guided(pools, top, "", ""):
        table.add_row(
            Text(name, no_wrap=True),
            cpu_list(CPUSet.parse(pool["cpus"])),
            cpu_list(CPUSet.parse(pool["exclusive"])),
            format_cpu(pool["shared_milli_granted"]),
            format_cpu(pool["shared_milli_allocatable"]),
            cpu_list(CPUSet.union(map(CPUSet.parse, pool["memory"].values()))),
            str(len(pool["containers"])),
        )
    return table


def _guided(
    pools: Sequence[_Pool], pool: _Pool, first: str, rest: str, above: str = ""
) -> Iterator[tuple[_Pool, str]]:
    """Yield *pool* and all below it, parents first, each with its name behind lines to it."""
    yield pool, first + pool["name"].removeprefix(above)
    children = [child for child in pools if child["parent"] == pool["id"]]
    for child in children:
        last = child is children[-1]
        yield from _guided(
            pools,
            child,
            rest + ("└─ " if last else "├─ "),
            rest + ("   " if last else "│  "),
            f"{pool['name']}/",
        )
