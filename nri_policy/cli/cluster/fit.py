"""`nri-policy cluster fit`: which nodes hold a pod in their zones, and why others do not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.table import Table
from rich.text import Text

from nri_policy.cli.cluster.documents import FILE, document_errors, documents_of, note_left_out
from nri_policy.cli.cluster.service import ServiceClient
from nri_policy.cli.cluster.source import ClusterSource, service_option, snapshot_options
from nri_policy.cli.failure import Exit, Failure
from nri_policy.cli.options import form_option, name_of
from nri_policy.cli.output import print_document, print_drawing
from nri_policy.cluster.numa.report import NodeFit, list_node_fits
from nri_policy.cluster.objects.pod import Pod, read_pod
from nri_policy.cluster.offline import count_open_places
from nri_policy.cluster.workloads.workload import (
    CLAIMS,
    describe_left_out_kinds,
    each_object,
    is_left_out,
    make_pod_document,
)
from nri_policy.cluster.zones.numa_request import make_numa_request
from nri_policy.foundation.wording import counted

_MOST_ROWS = 60


@click.command
@click.option(
    "-f",
    "--filename",
    "asked",
    type=FILE,
    multiple=True,
    required=True,
    help="A Pod, or an object that makes pods, such as a Job, Deployment or JobSet: one pod of its"
    " template of most pods is tried; - for stdin.",
)
@click.option("--all", "every", is_flag=True, help="Show every node, however many there are.")
@snapshot_options
@form_option
@service_option
@click.pass_context
def fit(  # noqa: PLR0913, PLR0917 - click names them; one for each option
    context: click.Context,
    source: ClusterSource,
    asked: tuple[Path, ...],
    every: bool,
    service: ServiceClient | None,
    form: str,
) -> None:
    """Show which nodes and NUMA zones have room for a pod now.

    Each node is listed with its score, of which 100 is the best, or with the reason why it does not
    take the pod. A node that does not align the pod to zones has no score. This looks at one pod
    and at the zones of nodes that align pods; "cluster place" looks at whole groups, and counts
    these zones as well. Exits with 1 if no node takes the pod.
    """
    if len(asked) > 1:
        raise click.UsageError(f"{len(asked)} files with -f; one pod is tried at a time")
    document, pod = _pod(asked[0])
    if service is not None:
        rows = service.ask("fit", document, list[NodeFit])
    else:
        snapshot, settings = source.read(groups=False)
        rows = list_node_fits(snapshot, pod, settings)
        if places := count_open_places(snapshot):
            text = f"{counted(places, 'place')} of groups, whose pods are not there yet"
            click.echo(f"note: not counted: {text}", err=True)
    if form == "table":
        print_drawing(*_draw(pod, rows, every=every))
    else:
        print_document([msgspec.to_builtins(row) for row in rows], form)
    context.exit(0 if any(row.fits for row in rows) else Exit.NO)


def _pod(path: Path) -> tuple[dict[str, Any], Pod]:
    """Return the pod that a file asks about, as it is sent and as it is read; raises Failure."""
    documents = documents_of([path])
    with document_errors(name_of(path)):
        text = describe_left_out_kinds(documents)
        objects = (each for each in each_object(documents) if not is_left_out(each[0]))
        found = [each for each in objects if each[0].get("kind") not in CLAIMS]
        if len(found) != 1:
            problem = f"{len(found)} objects; give one pod{text and f'; left out: {text}'}"
            raise Failure(f"{name_of(path)}: {problem}", Exit.USAGE)
        if text:
            note_left_out(text)
        document = make_pod_document(*found[0])
        return document, read_pod(document, "")


def _draw(pod: Pod, rows: Sequence[NodeFit], *, every: bool) -> Iterator[Table | Text]:
    """Yield the answer, then a row for each node: those that take the pod first, the best first."""
    rows = sorted(
        rows, key=lambda row: (not row.fits, 1 if row.score is None else -row.score, row.node)
    )
    yield Text(f"{pod.full_name} {_verdict(rows)}", style="bold")
    shown = rows if every else rows[:_MOST_ROWS]
    if shown:
        yield _table(pod, shown)
    if len(shown) < len(rows):
        yield Text(f"{counted(len(rows) - len(shown), 'node')} not shown: --all shows them")
    if judged := [*pod.constraints, *pod.own.names()]:
        yield Text(f"note: only kube-scheduler can judge {', '.join(judged)}")


def _verdict(rows: Sequence[NodeFit]) -> str:
    fitting = sum(row.fits for row in rows)
    if fitting:
        best = "" if rows[0].score is None else f", best on {rows[0].node}"
        return f"fits on {fitting} of {counted(len(rows), 'node')}{best}"
    if not rows:
        return "fits nowhere: the cluster has no nodes"
    reasons = Counter(row.reason for row in rows).most_common()
    return f"fits on none of {counted(len(rows), 'node')}: " + ", ".join(
        f"{reason} ({number})" for reason, number in reasons
    )


def _table(pod: Pod, rows: Sequence[NodeFit]) -> Table:
    some_promised = any(row.promised for row in rows)
    request = make_numa_request(pod.spec, strict=False)
    where = "here" if request.aligned else f"({request.qos})"
    table = Table(box=None, pad_edge=False)
    for name in ("node", "fits", "score", "zones", *["promised"] * some_promised, "reason"):
        table.add_column(name, justify="right" if name in ("score", "promised") else "left")
    for row in rows:
        promised = [str(row.promised)] * some_promised
        score = "-" if row.score is None else str(row.score)
        fits, score = ("yes", score) if row.fits else ("no", "")
        zones = ", ".join(row.zones)
        if row.fits and not row.aligned:
            zones = f"not aligned {where}: any zone"
        why = f"{row.reason}: {row.lacks}" if row.lacks else row.reason
        table.add_row(row.node, fits, score, zones, *promised, why)
    return table
