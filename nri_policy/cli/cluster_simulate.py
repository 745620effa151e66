"""`nri-policy cluster simulate`: plays groups that come and go, and nodes that fail."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import msgspec
import yaml
from rich.table import Table
from rich.text import Text

from nri_policy import yamltext
from nri_policy.cli.cluster_source import ClusterSource, cluster_options, document_errors, text_of
from nri_policy.cli.cluster_tree import blocks, topology_name
from nri_policy.cli.failure import Exit, Failure
from nri_policy.cli.options import picture_form_option
from nri_policy.cli.output import print_document, print_drawing, print_page
from nri_policy.cluster.document import DocumentError
from nri_policy.cluster.files import read_documents
from nri_policy.cluster.simulation import Played, Simulation, Step, read_steps
from nri_policy.cluster.tree_report import placed_on_hosts, tree_report
from nri_policy.picture import racks


@click.command
@click.argument(
    "scenario", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="SCENARIO"
)
@cluster_options
@picture_form_option
@click.pass_context
def simulate(context: click.Context, source: ClusterSource, scenario: Path, form: str) -> None:
    """Run a scenario of groups and nodes in a cluster.

    A picture shows the end. Exits with 1 if something is not as the scenario expects.
    """
    engine, _ = source.load()
    simulation = Simulation(engine)
    played = []
    for number, step in enumerate(_steps(scenario), start=1):
        try:
            played.append(simulation.play(step))
        except DocumentError as error:
            raise Failure(f"{scenario}: step {number}: {error}") from error
    if form == "table":
        print_drawing(*_draw(played))
    elif form in ("svg", "html"):
        report = tree_report(engine, topology_name(engine, None))
        shown = blocks(report, placed_on_hosts(engine.groups.values()))
        if form == "svg":
            print_page(racks.document(shown))
        else:
            print_page(racks.page_of("Simulation", shown, [*_lines(played)]))
    else:
        print_document(played, form)
    context.exit(Exit.NO if any(each.problems for each in played) else 0)


def _steps(path: Path) -> list[Step]:
    try:
        documents = yamltext.read_all(text_of(path).decode())
    except (yamltext.YAMLTextError, UnicodeDecodeError) as error:
        raise Failure(f"{path}: {error}") from error
    if len(documents) != 1 or not isinstance(documents[0], list):
        raise Failure(f"{path}: a scenario is a list of steps")
    try:
        steps = read_steps(documents[0])
    except DocumentError as error:
        raise Failure(f"{path}: {error}") from error
    for step in steps:
        if step.apply is not None:
            with document_errors():
                step.apply = [one for each in step.apply for one in _apply(each, path)]
    return steps


def _apply(value: Any, scenario: Path) -> list[Any]:
    """Return the objects of an entry: those of a file, by its path beside the scenario's, or it."""
    if not isinstance(value, dict) or value.keys() != {"file"}:
        return [value]
    path = scenario.parent / str(value["file"])
    return [*read_documents(text_of(path), str(path))]


def _draw(played: list[Played]) -> Iterator[Table | Text]:
    for number, each in enumerate(played, start=1):
        yield Text(f"step {number}: {_title(each.step)}", style="bold")
        table = Table(box=None, pad_edge=False, show_header=False)
        for group in each.groups:
            pods = ", ".join(f"{name}: {count}" for name, count in group.domains.items())
            table.add_row(f"  {group.name}", group.state, pods or group.message)
        yield table
        for problem in each.problems:
            yield Text(f"  not as expected: {problem}", style="red")


def _lines(played: list[Played]) -> Iterator[str]:
    """Return what the page says of each step; its picture is of the end."""
    for number, each in enumerate(played, start=1):
        groups = "; ".join(
            f"{group.name} {group.state} {group.message}".rstrip() for group in each.groups
        )
        yield f"step {number}: {_title(each.step)}: {groups or 'no groups'}"
        for problem in each.problems:
            yield f"not as expected: {problem}"


def _title(step: Step) -> str:
    """Return a step in short: what is done to what."""
    ((verb, value),) = msgspec.to_builtins(step).items()  # the others are left out
    if verb == "apply":
        value = [each.get("metadata", {}).get("name", each.get("kind")) for each in value]
    return f"{verb} {yaml.safe_dump(value, default_flow_style=True, width=10_000).splitlines()[0]}"
