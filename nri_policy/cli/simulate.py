"""`nri-policy simulate`: plays a scenario on a machine that need not exist."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory

import click
from rich.console import RenderableType
from rich.text import Text

from nri_policy.cli.failure import Exit, Failure
from nri_policy.cli.occupants import occupants
from nri_policy.cli.options import Source, machine_options, picture_form_option, settings_option
from nri_policy.cli.output import print_document, print_drawing, print_page
from nri_policy.cli.simulation import SimulatedNode
from nri_policy.hardware.document import to_json
from nri_policy.hardware.machine import Machine
from nri_policy.picture.page import played_page
from nri_policy.picture.scene import Scene, scene
from nri_policy.picture.svg import Strip, document
from nri_policy.picture.terminal import Drawing
from nri_policy.runtime.playback import Playback, Result
from nri_policy.runtime.scenario import Apply, Delete, Resize, ScenarioError, Step, read_scenario
from nri_policy.settings import Settings

_MOST_NAMES = 8  # in the title of a step


@click.command
@click.argument(
    "scenario", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="SCENARIO"
)
@machine_options
@settings_option
@picture_form_option
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
    strips: list[Strip] = []
    results = asyncio.run(_play(machine, settings, steps, strips, drawn=form == "table"))
    if form == "svg":
        print_page(document(strips))
    elif form == "html":
        print_page(played_page(f"{scenario.name} on {source}", strips))
    elif form != "table":
        print_document([asdict(result) for result in results], form)
    # a daemon that did not start has placed nothing, whatever was expected
    failed = any(result.mismatches for result in results) or not any(r.pools for r in results)
    context.exit(Exit.NO if failed else 0)


async def _play(
    machine: Machine,
    settings: Settings | None,
    steps: list[Step],
    strips: list[Strip],
    *,
    drawn: bool,
) -> list[Result]:
    """Play *steps* and return their results; add a strip for each, and print it if *drawn*."""
    results = []
    before: Scene | None = None
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="nri-policy-")))
        node = SimulatedNode(machine, settings, folder, stack)
        await stack.enter_async_context(node.runtime)
        async for result in Playback(node.runtime, node).play(steps):
            results.append(result)
            after = _scene(node, result, before)
            strips.append(_strip(steps[result.step - 1], result, after))
            if drawn:
                print_drawing(*_drawn(strips[-1]))
            before = after or before
    return results


def _title(step: Step) -> str:
    """Return what a step does, in a line."""
    match step:
        case Apply():
            return f"apply {_few([pod.key.removeprefix('default/') for pod in step.pods])}"
        case Delete():
            return f"delete {_few(step.names)}"
        case Resize():
            return f"resize {step.pod}/{step.container}"
        case _:
            return type(step).__name__.lower()


def _few(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


def _scene(node: SimulatedNode, result: Result, before: Scene | None) -> Scene | None:
    """Return who runs where after a step; None before a daemon runs."""
    if node.daemon is None:
        return None
    machine = to_json(node.daemon.engine.layout.machine)
    return scene(machine, result.pools, result.containers, before)


def _strip(step: Step, result: Result, after: Scene | None) -> Strip:
    problems = [f"error: {result.error}"] if result.error else []
    problems += [f"not as expected: {mismatch}" for mismatch in result.mismatches]
    heading = f"Step {result.step}: {_title(step)}"
    return Strip(heading=heading, problems=tuple(problems), scene=after)


def _drawn(strip: Strip) -> Iterator[RenderableType]:
    yield Text(f"\n{strip.heading}", "bold")
    for problem in strip.problems:
        yield Text(problem, "red")
    if strip.scene is not None:
        yield Drawing(strip.scene)
        if strip.scene.occupants:
            yield ""
            yield occupants(strip.scene)
