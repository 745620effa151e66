"""`nri-policy simulate`: plays a scenario on a machine that need not exist."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory

import click
from rich.text import Text

from nri_policy.cli.failure import Exit, Failure
from nri_policy.cli.options import Source, form_option, machine_options, settings_option
from nri_policy.cli.output import print_document, print_drawing
from nri_policy.cli.picture import Picture, picture_of
from nri_policy.cli.progress import progress
from nri_policy.cli.simulation import SimulatedNode
from nri_policy.hardware.machine import Machine
from nri_policy.runtime.playback import Playback, Result
from nri_policy.runtime.scenario import Apply, Delete, Resize, ScenarioError, Step, read_scenario
from nri_policy.settings import Settings


@click.command
@click.argument(
    "scenario", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="SCENARIO"
)
@machine_options
@settings_option
@form_option
@click.pass_context
def command(
    context: click.Context, scenario: Path, source: Source, settings: Settings | None, form: str
) -> None:
    """Play a scenario and show after each step who runs where.

    The pods run on an embedded container runtime that starts no processes, and are placed by the
    daemon's own engine over a real NRI connection. Exits with 1 if the scenario's expectations are
    not met.
    """
    machine = source.machine(settings.memory_kinds) if settings else source.machine()
    try:
        steps = read_scenario(scenario)
    except ScenarioError as error:
        raise Failure(str(error), Exit.USAGE) from error
    results = asyncio.run(_play(machine, settings, steps, drawn=form == "table"))
    if form != "table":
        print_document([asdict(result) for result in results], form)
    # a daemon that did not start has placed nothing, whatever was expected
    failed = any(result.mismatches for result in results) or not any(r.pools for r in results)
    context.exit(Exit.NO if failed else 0)


async def _play(
    machine: Machine, settings: Settings | None, steps: list[Step], *, drawn: bool
) -> list[Result]:
    results = []
    before: Picture | None = None
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="nri-policy-")))
        node = SimulatedNode(machine, settings, folder, stack)
        # what is drawn meanwhile is progress enough
        step = stack.enter_context(progress("playing", len(steps), shown=not drawn))
        await stack.enter_async_context(node.runtime)
        async for result in Playback(node.runtime, node).play(steps):
            step()
            results.append(result)
            if drawn:
                before = _draw(steps[result.step - 1], result, node, before)
    return results


def _title(step: Step) -> str:
    """Return what a step does, in a line."""
    match step:
        case Apply():
            return f"apply {', '.join(pod.key.removeprefix('default/') for pod in step.pods)}"
        case Delete():
            return f"delete {', '.join(step.names)}"
        case Resize():
            return f"resize {step.pod}/{step.container}"
        case _:
            return type(step).__name__.lower()


def _draw(
    step: Step, result: Result, node: SimulatedNode, before: Picture | None
) -> Picture | None:
    print_drawing(Text(f"\nStep {result.step}: {_title(step)}", "bold"))
    if result.error:
        print_drawing(Text(f"error: {result.error}", "red"))
    for mismatch in result.mismatches:
        print_drawing(Text(f"not as expected: {mismatch}", "red"))
    if node.daemon is None:
        return before
    after = picture_of(node.daemon.engine.state, before)
    print_drawing(after)
    return after
