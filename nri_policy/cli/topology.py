"""`nri-policy topology`: a machine and the pool tree made of it."""

from __future__ import annotations

import click

from nri_policy.cli.failure import Exit, Failure
from nri_policy.cli.machine_table import machine_tables
from nri_policy.cli.options import Source, form_option, machine_options, settings_option
from nri_policy.cli.output import print_document, print_drawing
from nri_policy.cpuset import EMPTY
from nri_policy.engine.view import topology
from nri_policy.hardware.document import to_json
from nri_policy.hardware.machine import Machine
from nri_policy.pools.capacity import Capacity, CapacityError, capacity_of
from nri_policy.pools.picker import picker_of
from nri_policy.pools.tree import build
from nri_policy.settings import Settings


@click.command
@machine_options
@settings_option
@form_option
def command(source: Source, settings: Settings | None, form: str) -> None:
    """Show a machine and its pool tree.

    With --settings, only the CPUs that they make available are in the tree, and the reserved ones
    are shown; without, all online CPUs are available and none is reserved.
    """
    machine = source.machine(settings.memory_kinds) if settings else source.machine()
    try:
        capacity = _capacity(machine, settings)
    except CapacityError as error:
        raise Failure(str(error), Exit.SETTINGS) from error
    tree = build(machine, capacity.available)
    if form == "table":
        print_drawing(*machine_tables(machine, tree, capacity))
    else:
        print_document({"machine": to_json(machine), "pools": topology(tree, capacity)}, form)


def _capacity(machine: Machine, settings: Settings | None) -> Capacity:
    if settings is not None:
        return capacity_of(machine, settings, picker_of(machine))
    isolated = machine.online & machine.isolated
    return Capacity(reserved=EMPTY, isolated=isolated, sharable=machine.online - isolated)
