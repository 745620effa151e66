"""`nri-policy nrt`: the NodeResourceTopology object as the running daemon would publish it."""

from __future__ import annotations

from pathlib import Path

import click
from rich.text import Text

from nri_policy.cli.daemon_option import daemon_client, socket_option
from nri_policy.cli.options import form_option
from nri_policy.cli.output import print_document, print_drawing
from nri_policy.cli.terminal.fitting import Columns
from nri_policy.foundation.units import format_bytes
from nri_policy.report import ResourceTopology, Zone, ZoneResource

_PODS_TO_COME = (
    "Available excludes the requests of pods whose containers are not created yet or were refused;"
    " `pools` shows what containers have."
)


@click.command
@socket_option
@form_option
def command(control_socket: Path, form: str) -> None:
    """Show what schedulers are told about this node.

    This is the NodeResourceTopology object as the daemon would publish it now. It works without a
    cluster. What is available is less than "pools" shows where pods have no containers yet.
    """
    with daemon_client(control_socket) as client:
        topology = client.topology()
    if form == "table":
        print_drawing(_table(topology), Text(_PODS_TO_COME, style="dim"))
    else:
        print_document(topology, form)


def _table(topology: ResourceTopology) -> Columns:
    others = {zone.name: _others(zone) for zone in topology.zones}
    more = any(others.values())
    table = Columns(
        *("zone", "type", "CPU", "allocatable", "available"),
        *("memory", "allocatable", "available"),
        *(["others"] if more else []),
        right=("CPU", "allocatable", "available", "memory"),
        whole=("zone", "memory"),
        dispensable=("type",),
    )
    for zone in topology.zones:
        amounts = {each.name: each for each in zone.resources}
        cpu, memory = amounts["cpu"], amounts["memory"]
        table.add_row(
            Text(zone.name),
            zone.type,
            *(cpu.capacity, cpu.allocatable, cpu.available),
            *(
                format_bytes(int(amount))
                for amount in (memory.capacity, memory.allocatable, memory.available)
            ),
            *([Text(others[zone.name])] if more else []),
        )
    return table


def _others(zone: Zone) -> str:
    """Return what a zone has of huge pages and devices, and what is left of each, by line."""
    return "\n".join(
        f"{each.name}: {_amount(each, each.available)} of {_amount(each, each.allocatable)}"
        " available"
        for each in zone.resources
        if each.name not in {"cpu", "memory"} and each.capacity != "0"
    )


def _amount(resource: ZoneResource, amount: str) -> str:
    return format_bytes(int(amount)) if resource.name.startswith("hugepages-") else amount
