"""`nri-policy simulate`: plays a scenario on a machine that need not exist."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory

import click
from rich.console import RenderableType
from rich.text import Text

from nri_policy.cli.failure import Exit, Failure
from nri_policy.cli.node.holdings import short
from nri_policy.cli.node.occupants import occupants
from nri_policy.cli.node.step_title import title
from nri_policy.cli.options import Source, machine_options, picture_form_option, settings_option
from nri_policy.cli.output import print_document, print_drawing, print_page, program_name
from nri_policy.cli.terminal.progress import progress
from nri_policy.control.client import UnreachableError, connected
from nri_policy.daemon.daemon import Daemon
from nri_policy.foundation.wording import printable
from nri_policy.observability.logs import Warnings, show_warnings
from nri_policy.picture.page import played_page
from nri_policy.picture.scene import Scene, scene
from nri_policy.picture.svg import Strip, document
from nri_policy.picture.terminal import Drawing
from nri_policy.report import machine_report
from nri_policy.settings import Settings
from nri_policy.simulation.device_manager import number_devices
from nri_policy.simulation.node import SimulatedNode
from nri_policy.simulation.playback import Playback, Result, find_unexpected
from nri_policy.simulation.scenario import ChangeSettings, ScenarioError, Step, read_scenario

stay_option = click.option(
    "--stay",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Keep the simulated node running after the last step, until Ctrl-C. Ask it at"
    " FOLDER/control.sock; FOLDER, which must be new or empty, also has its journal.",
)


@click.command
@click.argument(
    "scenario", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="SCENARIO"
)
@machine_options
@settings_option
@picture_form_option
@stay_option
@click.pass_context
def command(  # noqa: PLR0913, PLR0917 - one parameter an option
    context: click.Context,
    scenario: Path,
    source: Source,
    settings: Settings | None,
    form: str,
    stay: Path | None,
) -> None:
    """Run a scenario of pods on a simulated node.

    Shows which containers run where after each step. The daemon's own code places the pods over a
    real NRI connection, on a simulated runtime that starts no processes. Exits with 1 if an
    expectation of the scenario is not met, or if a step fails unexpectedly.

    The node starts with the file of --settings; a step `settings` replaces it as a whole.
    """
    machine = source.machine(settings.memory_kinds) if settings else source.machine()
    try:
        steps = read_scenario(scenario)
    except ScenarioError as error:
        raise Failure(str(error), Exit.USAGE) from error
    others = (number for number, each in enumerate(steps, 1) if isinstance(each, ChangeSettings))
    if settings is not None and (step := next(others, None)):
        note = f"step {step} sets other settings: those of --settings count until then only"
        click.echo(f"simulate: note: {note}", err=True)
    devices = number_devices(source.devices())
    show = Show(title=f"{scenario.name} on {source}", form=form, steps=steps)
    play(partial(SimulatedNode, machine, settings, devices=devices), show, stay)
    context.exit(Exit.NO if show.problems else 0)


@dataclass(slots=True, kw_only=True)
class Show:
    """What is shown of a scenario: a drawing after each step, or all of it at the end."""

    title: str
    form: str
    steps: Sequence[Step]
    question: str = "containers"  # to a node that stays
    results: list[Result] = field(default_factory=list)
    strips: list[Strip] = field(default_factory=list)

    async def step(self, result: Result, strip: Strip) -> None:
        """Take, and show, what is after a step."""
        self.results.append(result)
        self.strips.append(strip)
        if self.form == "table":
            print_drawing(*draw(strip))

    def end(self) -> None:
        """Show what is left to show after the last step."""
        if self.form == "svg":
            print_page(document(self.strips))
        elif self.form == "html":
            print_page(played_page(self.title, self.strips))
        elif self.form != "table":
            print_document(self.results, self.form)
        for problem in self.problems:
            click.echo(printable(f"simulate: {problem}"), err=True)

    @property
    def problems(self) -> list[str]:
        """Why the scenario did not end well, a line each."""
        if not any(result.pools for result in self.results):
            return ["the daemon did not start"]
        problems = {
            each.step: f"failed, and the scenario does not expect it: {each.error}"
            for each in find_unexpected(self.steps, self.results)
        } | {
            each.step: f"not as expected: {'; '.join(map(str, each.mismatches))}"
            for each in self.results
            if each.mismatches
        }
        return [f"step {number}: {problems[number]}" for number in sorted(problems)]


def play(
    start: Callable[[Path, AsyncExitStack], SimulatedNode], show: Show, stay: Path | None
) -> None:
    """Play the steps of *show* on the node that *start* makes.

    With a folder to *stay* in, go on as a node until Ctrl-C.
    """
    with (
        TemporaryDirectory(prefix="nri-policy-") if stay is None else nullcontext(_make(stay)) as at
    ):
        # within: the end of the run waits for the threads that still write there
        asyncio.run(_play(start, show, Path(at), stay=stay is not None))


async def _play(
    start: Callable[[Path, AsyncExitStack], SimulatedNode], show: Show, folder: Path, *, stay: bool
) -> None:
    """Play the steps with a node's state in *folder*; to *stay*, go on as a node until Ctrl-C."""
    before: Scene | None = None
    async with AsyncExitStack() as stack:
        stack.enter_context(_remarks_shown())
        show_warnings()
        node = start(folder, stack)
        # what is drawn meanwhile is progress enough
        with progress("playing", len(show.steps), shown=show.form != "table") as step:
            await stack.enter_async_context(node.runtime)
            async for result in Playback(node.runtime, node).play(show.steps):
                step()
                after = _scene(node, result, before)
                await show.step(result, _strip(show.steps[result.step - 1], result, after))
                before = after or before
        show.end()
        if stay:
            if node.daemon is None:
                rmtree(folder)  # for the next attempt
            else:
                await _stay(node.daemon, folder, show.question)


def _make(folder: Path) -> Path:
    """Make a folder for a node's state; Failure where something is in it already."""
    try:
        folder.mkdir(mode=0o700, parents=True)
    except FileExistsError as error:
        if folder.is_dir() and not any(folder.iterdir()):
            return folder
        raise Failure(f"--stay {folder}: {_in_the_way(folder)}") from error
    except OSError as error:
        raise Failure(f"--stay {folder}: {error.strerror}") from error
    return folder


def _in_the_way(folder: Path) -> str:
    """Describe the obstacle in a folder, and its remedy."""
    with suppress(UnreachableError), connected(folder / "control.sock"):
        return "a node runs there: ask that one, or end it by Ctrl-C"
    if (folder / "store").is_dir():
        return f"an earlier node's state is there: rm -r {folder}, or name another folder"
    return "the folder exists, but is not of a simulated node: name another folder"


@contextmanager
def _remarks_shown() -> Iterator[None]:
    """Show warnings and notes on decisions on stderr; refusals are in the drawing, or document."""
    log = logging.getLogger("nri_policy.plugin.decisions")
    before = log.level
    handler = logging.StreamHandler()
    handler.setFormatter(Warnings())
    handler.addFilter(lambda record: record.msg in {"warning", "note"})
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.setLevel(before)
        log.removeHandler(handler)


async def _stay(daemon: Daemon, folder: Path, question: str) -> None:
    """Answer questions at a socket in *folder* until it is stopped."""
    socket = folder / "control.sock"
    ended = asyncio.Event()
    for each in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(each, ended.set)
    try:
        async with daemon.listening(socket):
            ask = f"{program_name()} {question} --control-socket {socket}"
            click.echo(f"\nask it, from another terminal: {ask}\nCtrl-C ends it", err=True)
            await ended.wait()
    except OSError as error:
        raise Failure(f"--stay {folder}: {error}") from error


def _scene(node: SimulatedNode, result: Result, before: Scene | None) -> Scene | None:
    """Return the scene after a step; None before a daemon runs."""
    if node.daemon is None:
        return None
    machine = machine_report(node.daemon.node.view.layout.machine)
    return scene(machine, result.pools, result.containers, before)


def _strip(step: Step, result: Result, after: Scene | None) -> Strip:
    problems = [f"error: {result.error}"] if result.error else []
    problems += [f"not as expected: {mismatch}" for mismatch in result.mismatches]
    heading = f"Step {result.step}: {title(step)}"
    return Strip(heading=heading, problems=tuple(problems), scene=after)


def draw(
    strip: Strip, picture: Callable[[Scene], RenderableType] = Drawing
) -> Iterator[RenderableType]:
    """Yield what the terminal shows of a step, with a *picture* of who runs where."""
    yield Text(f"\n{strip.heading}", "bold")
    for problem in strip.problems:
        yield Text(problem, "red")
    if strip.scene is not None:
        yield picture(strip.scene)
        if strip.scene.occupants:
            yield ""
            yield occupants(strip.scene)
        for name, reason in strip.scene.refused.items():
            if not any(reason in problem for problem in strip.problems):  # it stands above
                yield Text(f"refused: {short(name)}: {reason}", "red")
