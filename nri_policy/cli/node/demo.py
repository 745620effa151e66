"""`nri-policy demo`: pods come to a simulated node and go, at a pace that can be read."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import click
from msgspec import Struct
from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.segment import Segment
from rich.text import Text

from nri_policy.cli.failure import Exit
from nri_policy.cli.node.simulate import Show, draw, play, stay_option
from nri_policy.cli.options import Source
from nri_policy.cli.output import Canvas, print_drawing, program_name
from nri_policy.cli.terminal.keyboard import pressed_within, single_keys
from nri_policy.foundation.shipped import shipped
from nri_policy.picture.svg import Strip
from nri_policy.picture.terminal import Drawing, Rows
from nri_policy.simulation.node import SimulatedNode
from nri_policy.simulation.playback import Result
from nri_policy.simulation.scenario import read_scenario

MACHINE = "package:2 numa:2 core:2 pu:2"
_FEWEST_CPUS = 16  # of a host on which the demo has something to show
_PACE = 3.0  # seconds a step
_QUESTION = "explain database"


@click.command
@stay_option
@click.pass_context
def command(context: click.Context, stay: Path | None) -> None:
    """Play pods that come and go on a simulated node.

    A terminal shows one step at a time; any key shows the next. The node has this host's hardware
    if that has 16 or more CPUs.
    """
    source = Source(synthetic=None if (os.cpu_count() or 1) >= _FEWEST_CPUS else MACHINE)
    steps = read_scenario(shipped() / "configs" / "demo.yaml")
    with _screen() as live:
        show = _Demo(title="demo", form="table", steps=steps, question=_QUESTION, live=live)
        play(partial(SimulatedNode, source.machine(), None), show, stay)
    if stay is None:
        name = program_name()
        ask = f"{name} {_QUESTION} --control-socket /tmp/node/control.sock"
        click.echo(f"\nask such a node: {name} demo --stay /tmp/node", err=True)
        click.echo(f"then, in another terminal: {ask}", err=True)
    context.exit(Exit.NO if show.problems else 0)


@contextmanager
def _screen() -> Iterator[Live | None]:
    """Yield the whole screen to draw on; None where there is no terminal."""
    console = Canvas(highlight=False, markup=False, emoji=False)
    if not sys.stdout.isatty() or console.is_dumb_terminal:
        yield None
        return
    with single_keys(), Live(console=console, screen=True, auto_refresh=False) as live:
        yield live


@dataclass(slots=True, kw_only=True)
class _Demo(Show):
    """Shows a step at a time on *live*, and the last one below it when that has ended."""

    live: Live | None

    async def step(self, result: Result, strip: Strip) -> None:
        if self.live is None:
            await Show.step(self, result, strip)
            return
        self.results.append(result)
        self.strips.append(strip)
        frame = StepFrame(strip, f"step {result.step} of {len(self.steps)} · any key: go on")
        self.live.update(frame, refresh=True)
        if len(self.strips) < len(self.steps):
            await pressed_within(_PACE)

    def end(self) -> None:
        if self.live is not None:
            self.live.stop()
            print_drawing(*draw(self.strips[-1]))
        Show.end(self)


class StepFrame(Struct, frozen=True):
    """A step, cut to the terminal, with a line of what can be done below it."""

    strip: Strip
    last: str

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        flowing, room = options.update(height=None), options.size.height - 1
        shown: list[list[Segment]] = []
        for picture in (Drawing, Rows):  # the smaller one where there is no room for the other
            parts = draw(self.strip, picture)
            shown = [
                line for part in parts for line in console.render_lines(part, flowing, pad=False)
            ]
            if len(shown) <= room:
                break
        for line in shown[:room]:
            yield from line
            yield Segment.line()
        yield from ([Segment.line()] * (room - len(shown)))
        yield Text(self.last, "dim", no_wrap=True, overflow="ellipsis")
