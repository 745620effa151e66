"""`nri-policy cluster simulate`: plays jobs that come and go, and nodes that fail."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import msgspec
import yaml
from rich.table import Table
from rich.text import Text

from nri_policy.cli.cluster.documents import MAX_SIZE, document_errors, text_of
from nri_policy.cli.cluster.frames import Frames
from nri_policy.cli.cluster.picture import left, overbooked, totals
from nri_policy.cli.cluster.source import ClusterSource, cluster_options
from nri_policy.cli.cluster.tree import topology_name
from nri_policy.cli.failure import Exit, Failure
from nri_policy.cli.options import picture_form_option
from nri_policy.cli.output import print_document, print_drawing, print_page
from nri_policy.cluster.cluster_files import read_documents
from nri_policy.cluster.engine.engine import Engine
from nri_policy.cluster.objects.document import DocumentError
from nri_policy.cluster.offline import cluster_of, engine_of
from nri_policy.cluster.report.tree_report import make_tree_report
from nri_policy.cluster.simulation.figures import Figures
from nri_policy.cluster.simulation.playback import Simulation
from nri_policy.cluster.simulation.played import Played, SimulationReport
from nri_policy.cluster.simulation.steps import SimulationStep, read_steps
from nri_policy.cluster.simulation.synthetic_jobs import make_jobs
from nri_policy.foundation import yamltext
from nri_policy.foundation.wording import counted
from nri_policy.picture.racks import document
from nri_policy.picture.racks_page import Parts, cluster_page

_HEADS = ("kind", "jobs", "placed", "never placed", "mean wait", "p99", "longest", "racks per job")


@click.command
@click.argument(
    "scenario",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="[SCENARIO]",
    required=False,
)
@click.option(
    "--workload",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Steps that have times: groups that come `at` a time and run `for` another.",
)
@click.option(
    "--synthetic-jobs",
    "jobs",
    metavar="SPEC",
    help='Jobs that do not exist, such as "load:0.8 for:7d; small share:80 pods:1 cpu:4 runs:30m;'
    ' gang share:20 pods:2-16 cpu:32 runs:4h required:rack".',
)
@click.option("--seed", default=1, show_default=True, help="Random seed of --synthetic-jobs.")
@click.option(
    "--steps",
    "every",
    is_flag=True,
    help="Show every group after every step, not only those that changed; of a workload its steps.",
)
@cluster_options
@picture_form_option
@click.pass_context
def simulate(  # noqa: PLR0913, PLR0917 - click names them; one for each option
    context: click.Context,
    source: ClusterSource,
    scenario: Path | None,
    workload: Path | None,
    jobs: str | None,
    seed: int,
    every: bool,
    form: str,
) -> None:
    """Run a scenario of groups and nodes in a cluster, or a workload.

    Shows how long groups waited, by kind, and how much of the cluster was used. A picture shows the
    end of a scenario, or a workload when most was in use; a page plays the steps, or shows the
    course of time. Exits with 1 if something is not as the scenario expects.
    """
    if sum(each is not None for each in (scenario, workload, jobs)) != 1:
        raise click.UsageError("give one of SCENARIO, --workload and --synthetic-jobs")
    snapshot, settings = source.read()
    cluster = cluster_of(snapshot)
    with document_errors():
        engine = engine_of(snapshot, settings, cluster)
    simulation = Simulation(engine, cluster, snapshot.classes)
    played: list[Played] = []
    frames = Frames(engine)
    played_page = form == "html" and (scenario is not None or every)
    wrong: Failure | None = None
    path = scenario or workload
    if jobs is not None:
        with document_errors():
            levels = engine.state.settings.topologies[0].levels
            simulation.run(make_jobs(jobs, seed, engine.state.nodes.values(), levels))
    elif path is not None:
        wrong = _play(simulation, path, played, frames if played_page else None, every=every)
    if workload is not None:
        simulation.groups.end()
    problems = any(each.problems for each in played)
    if scenario is None and not every:
        played = []
    report = SimulationReport(figures=simulation.figures(), steps=played)
    if form in ("svg", "html"):
        moment = "at the end"
        if not (played_page and played):
            moment = _take(simulation, frames, peak=scenario is None)
        title = f"Simulation of {path.name}" if path is not None else "Simulation of jobs by chance"
        _print_picture(engine, report, frames, moment, form, title)
    elif form == "table":
        print_drawing(*_draw(report))
    else:
        print_document(report, form)
    if wrong is not None:
        raise wrong
    context.exit(Exit.NO if problems else 0)


def _play(
    simulation: Simulation, path: Path, played: list[Played], frames: Frames | None, *, every: bool
) -> Failure | None:
    """Add to *played* the steps of a file; return what is wrong with the one that ends it."""
    for number, step in enumerate(_steps(path), start=1):
        try:
            played.append(simulation.play(step, every=every or frames is not None))
            if frames is not None:
                frames.take()
        except DocumentError as error:
            return Failure(f"{path}: step {number}: {error}", Exit.USAGE)
    return None


def _take(simulation: Simulation, frames: Frames, *, peak: bool) -> str:
    """Take the state at the end, or at its *peak*; return when that was, in words."""
    at = simulation.show_peak() if peak else None
    frames.take()
    return "at the end" if at is None else f"at the peak (after {_duration(at)})"


def _print_picture(  # noqa: PLR0913, PLR0917 - what a page consists of
    engine: Engine, report: SimulationReport, frames: Frames, moment: str, form: str, title: str
) -> None:
    cluster, groups = frames.last
    if form == "svg":
        print_page(document(cluster, frames.legend))
        return
    figures = report.figures
    end = make_tree_report(engine.state, topology_name(engine, None))
    moments = [*frames.moments(report.steps, [*map(_title, report.steps)])]
    parts = Parts(
        figures=(_HEADS, [*_rows(figures)]) if figures.kinds else None,
        timeline=[(each.at, each.used, each.waiting) for each in figures.timeline],
        groups=[] if moments else groups,
        cluster=None if moments else cluster,
        totals=totals(end),
        moment=moment,
        notes=[*_notes(figures), *overbooked(end), *left(end)],
    )
    print_page(cluster_page(title, frames.legend, parts, moments))


def _steps(path: Path) -> list[SimulationStep]:
    text = text_of(path)
    try:
        try:
            documents = [msgspec.json.decode(text)]
        except msgspec.DecodeError:
            # Aliases cannot multiply what there is.
            size = {"max_size": MAX_SIZE, "max_values": len(text)}
            documents = yamltext.read_all(str(text, "utf-8"), **size)
    except (yamltext.YAMLTextError, UnicodeDecodeError, RecursionError) as error:
        raise Failure(f"{path}: {error}", Exit.USAGE) from error
    if len(documents) != 1 or not isinstance(documents[0], list) or not documents[0]:
        raise Failure(f"{path}: a scenario is a list of steps", Exit.USAGE)
    try:
        steps = read_steps(documents[0])
    except DocumentError as error:
        raise Failure(f"{path}: {error}", Exit.USAGE) from error
    for number, step in enumerate(steps, start=1):
        if step.apply is not None:
            try:
                with document_errors():
                    step.apply = [one for each in step.apply for one in _apply(each, path)]
            except Failure as error:
                raise Failure(f"{path}: step {number}: {error}", Exit.USAGE) from error
    return steps


def _apply(value: Any, scenario: Path) -> list[Any]:
    """Return the objects of an entry: those of a file, by its path beside the scenario's, or it."""
    if not isinstance(value, dict) or value.keys() != {"file"}:
        return [value]
    path = scenario.parent / str(value["file"])
    return [*read_documents(text_of(path), str(path))]


def _draw(report: SimulationReport) -> Iterator[Table | Text]:
    for number, each in enumerate(report.steps, start=1):
        yield Text(f"step {number}: {_title(each)}", style="bold")
        table = Table(box=None, pad_edge=False, show_header=False)
        for group in each.groups:
            pods = ", ".join(f"{name}: {count}" for name, count in group.domains.items())
            mark, style = ("*", "bold") if group.change else (" ", "")
            where = "; ".join(filter(None, (pods, group.message)))
            table.add_row(f"{mark} {group.name}", group.state, where, group.change, style=style)
        if each.groups:
            yield table
        for note in each.notes:
            yield Text(f"  note: {note}")
        for problem in each.problems:
            yield Text(f"  not as expected: {problem}", style="red")
    figures = report.figures
    if not figures.kinds:
        return
    table = Table(box=None, pad_edge=False)
    for head in _HEADS:
        table.add_column(head, justify="left" if head == "kind" else "right")
    for row in _rows(figures):
        table.add_row(*row)
    yield table
    yield from map(Text, _notes(figures))


def _rows(figures: Figures) -> Iterator[list[str]]:
    """Yield what came of the jobs of each kind."""
    for kind in figures.kinds:
        waits = (kind.mean_wait, kind.p99_wait, kind.longest_wait)
        numbers = (kind.jobs, kind.placed, kind.never_placed)
        racks = "-" if kind.racks is None else f"{kind.racks:.2f}"
        yield [kind.kind, *map(str, numbers), *map(_duration, waits), racks]


def _notes(figures: Figures) -> Iterator[str]:
    """Yield what came of everything, and why jobs of a kind were never placed."""
    yield _summary(figures)
    for kind in figures.kinds:
        if kind.why:
            yield f"never placed: {kind.why}"


def _summary(figures: Figures) -> str:
    parts = []
    if any(figures.utilisation.values()):  # else all came at once, and there is no share over time
        used = (f"{name} {share:.1%}" for name, share in figures.utilisation.items())
        until = "the last job came" if figures.used_until < figures.seconds else "the end"
        parts.append(f"in use until {until}: {', '.join(used)}")
    parts.append(f"{counted(figures.moves, 'pod')} moved from failed nodes")
    if figures.lost:
        parts.append(f"{counted(figures.lost, 'group')} started again without room for such pods")
    if figures.preempted:
        parts.append(f"{counted(figures.preempted, 'group')} preempted")
    parts.append(f"attempts without room: {figures.attempts_without_room}")
    return "; ".join(parts)


def _duration(seconds: float | None) -> str:
    """Return seconds as people read them: 35 s, 12 min, 4.2 h; a dash for none."""
    if seconds is None:
        return "-"
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def _title(played: Played) -> str:
    """Summarize a step: action, object, time."""
    step = msgspec.to_builtins(played.step)  # what was not given is left out
    at = step.pop("at", None)
    for name in ("for", "kind"):
        step.pop(name, None)
    ((verb, value),) = step.items()
    if verb == "apply":
        value = [each.get("metadata", {}).get("name", each.get("kind")) for each in value]
    text = yaml.safe_dump(value, default_flow_style=True, width=10_000).splitlines()[0]
    return f"{verb} {text}" + (f" at {at}" if at else "")
