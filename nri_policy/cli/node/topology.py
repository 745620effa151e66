"""`nri-policy topology`: a machine and the pool tree made of it."""

from __future__ import annotations

import click

from nri_policy.cli.failure import Exit, Failure
from nri_policy.cli.node.machine_table import machine_tables
from nri_policy.cli.options import Source, machine_options, picture_form_option, settings_option
from nri_policy.cli.output import print_document, print_drawing, print_page
from nri_policy.foundation.cpuset import EMPTY
from nri_policy.hardware.discovery import discover
from nri_policy.hardware.machine import Machine
from nri_policy.hardware.numa import free_memory
from nri_policy.picture import svg
from nri_policy.picture.machine_page import machine_sections
from nri_policy.picture.page import page, picture_parts, section
from nri_policy.picture.scene import scene
from nri_policy.picture.terminal import Drawing
from nri_policy.pools.capacity import Capacity, CapacityError, capacity_of
from nri_policy.pools.picker import picker_of
from nri_policy.pools.tree import build
from nri_policy.report import TopologyReport, machine_report, pool_reports
from nri_policy.settings import Settings


@click.command
@machine_options
@settings_option
@click.option("--cpu-ids", is_flag=True, help="Show CPU ids instead of letters.")
@picture_form_option
def command(source: Source, settings: Settings | None, cpu_ids: bool, form: str) -> None:
    """Show a machine and its pool tree.

    With --settings, only the CPUs that they make available are in the tree, and the reserved ones
    are shown; without, all online CPUs are available and none is reserved.
    """
    with source.root() as root:
        machine = discover(root, memory_kinds=settings.memory_kinds if settings else {})
        # free memory in a capture is outdated
        live = source.capture is None and source.synthetic is None
        free = free_memory(root, [node.id for node in machine.nodes]) if live else {}
    try:
        capacity = _capacity(machine, settings)
    except CapacityError as error:
        raise Failure(str(error), Exit.SETTINGS) from error
    tree = build(machine, capacity.available)
    hardware, pools = machine_report(machine), pool_reports(tree, capacity)
    shown = scene(hardware, pools)
    match form:
        case "table":
            tables = machine_tables(machine, tree, capacity, free)
            print_drawing(Drawing(shown, cpu_ids=cpu_ids), *tables)
        case "svg":
            print_page(svg.document([svg.Strip(heading="", scene=shown)]))
        case "html":
            content = [
                section("Floor plan", *picture_parts(shown)),
                *machine_sections(hardware, pools),
            ]
            print_page(page(f"Topology of {source}", *content))
        case _:
            print_document(TopologyReport(machine=hardware, pools=pools), form)


def _capacity(machine: Machine, settings: Settings | None) -> Capacity:
    if settings is not None:
        return capacity_of(machine, settings, picker_of(machine))
    isolated = machine.online & machine.isolated
    return Capacity(reserved=EMPTY, isolated=isolated, sharable=machine.online - isolated)
