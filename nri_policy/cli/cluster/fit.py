"""`nri-policy cluster fit`: which nodes hold a pod in their zones, and why others do not."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.table import Table

from nri_policy.cli.cluster.run import read_cluster_settings
from nri_policy.cli.cluster.service import Service, service_options
from nri_policy.cli.cluster.source import document_errors, documents_of, text_of, usual_kubeconfig
from nri_policy.cli.failure import Exit, Failure
from nri_policy.cli.options import form_option, name_of
from nri_policy.cli.output import print_document, print_drawing
from nri_policy.cluster.numa.report import NodeFit, node_fits
from nri_policy.cluster.objects.document import DocumentError
from nri_policy.cluster.objects.files import Files
from nri_policy.cluster.objects.pod import Pod, read_pod
from nri_policy.cluster.objects.settings import ClusterSettings, read_settings
from nri_policy.cluster.objects.snapshot import read_snapshot
from nri_policy.cluster.objects.workload import pod_document
from nri_policy.cluster.service.watch import PODS, ZONES
from nri_policy.kube.client import NODES, Client
from nri_policy.kube.connection import access
from nri_policy.kube.errors import APIError, KubeconfigError

_FILE = click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path)


@click.command
@click.option(
    "-f",
    "--file",
    "asked",
    type=_FILE,
    required=True,
    help="A Pod, or a Job, Deployment, ReplicaSet or StatefulSet, of which one pod is tried; - for"
    " stdin.",
)
@click.option(
    "--cluster",
    "files",
    type=_FILE,
    multiple=True,
    help="Output of `kubectl get nodes,pods,noderesourcetopologies -A -o json`, instead of a live"
    " cluster.",
)
@click.option("--kubeconfig", type=click.Path(path_type=Path), help="How to reach the cluster.")
@click.option("--settings", type=_FILE, help="A ClusterPlacement document.")
@click.option(
    "--assumed",
    is_flag=True,
    help="Also count bound pods that their nodes do not report yet.",
)
@service_options
@form_option
@click.pass_context
def fit(  # noqa: PLR0913, PLR0917 - click names them; one for each option
    context: click.Context,
    asked: Path,
    files: tuple[Path, ...],
    kubeconfig: Path | None,
    settings: Path | None,
    assumed: bool,
    service: str | None,
    ca: Path | None,
    cert: Path | None,
    key: Path | None,
    form: str,
) -> None:
    """Show which nodes take a pod, and which of their zones have room for it.

    Each node is listed with its score, or with the reason why not. Exits with 1 if none has room.
    """
    if service is not None and (files or kubeconfig or settings):
        raise click.UsageError(
            "--service takes no cluster and no settings: the service has its own"
        )
    document, pod = _pod(asked)
    if service is not None:
        assumed = True
        rows = Service(service, ca, cert, key).ask("fit", document, list[NodeFit])
    else:
        with document_errors():
            given = _read(files)
            snapshot = read_snapshot(given.cluster if files else _fetched(kubeconfig))
            rows = node_fits(snapshot, pod, _settings(settings, given), assumed=assumed)
    if form == "table":
        print_drawing(_draw(rows, assumed=assumed))
    else:
        print_document([msgspec.to_builtins(row) for row in rows], form)
    context.exit(0 if any(row.fits for row in rows) else Exit.NO)


def _pod(path: Path) -> tuple[dict[str, Any], Pod]:
    """Return the pod that a file asks about, as it is sent and as it is read; raises Failure."""
    documents = documents_of([path])
    if len(documents) != 1:
        raise Failure(f"{name_of(path)}: {len(documents)} documents; give one pod", Exit.USAGE)
    try:
        document = pod_document(documents[0], "")
        return document, read_pod(document, "")
    except DocumentError as error:
        raise Failure(f"{name_of(path)}: {error}", Exit.USAGE) from error


def _read(files: Sequence[Path]) -> Files:
    given = Files()
    for path in files:
        given.add(text_of(path), name_of(path))
    return given


def _settings(path: Path | None, given: Files) -> ClusterSettings:
    if path is None and given.settings is not None:
        return read_settings(given.settings)
    return read_cluster_settings(path)


def _fetched(kubeconfig: Path | None) -> dict[str, Any]:
    """Return what the cluster has now; raises Failure."""
    try:
        return asyncio.run(_fetch(kubeconfig))
    except (APIError, KubeconfigError) as error:
        raise Failure(f"the cluster: {error}", Exit.UNREACHABLE) from error


async def _fetch(kubeconfig: Path | None) -> dict[str, Any]:
    """Return what the cluster has now."""
    connect = access(kubeconfig or usual_kubeconfig())
    if connect is None:
        raise click.UsageError(
            "no cluster is given: name one by --kubeconfig, or its files by --cluster"
        )
    client = Client(connect)
    try:
        return {
            key: (await client.list(kind)).items
            for key, kind in (("nodes", NODES), ("pods", PODS), ("zones", ZONES))
        }
    finally:
        await client.close()


def _draw(rows: Sequence[NodeFit], *, assumed: bool) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("node", "fits", "score", "zones", *(["promised"] if assumed else []), "reason"):
        table.add_column(name, justify="right" if name in ("score", "promised") else "left")
    for row in rows:
        promised = [str(row.promised)] if assumed else []
        fits = "yes" if row.fits else "no"
        zones = ", ".join(row.zones)
        if row.fits and not row.aligned:
            zones = "not aligned here: any zone"
        table.add_row(row.node, fits, str(row.score), zones, *promised, row.reason)
    return table
