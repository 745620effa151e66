"""`nri-policy cluster run`: the service of the cluster side."""

from __future__ import annotations

import asyncio
import re
import socket
from pathlib import Path
from uuid import uuid4

import click

from nri_policy.cli.failure import Exit, Failure
from nri_policy.cluster.objects.settings import ClusterSettings
from nri_policy.cluster.service.lease import LeaseName
from nri_policy.cluster.service.live_settings import PlacementFile
from nri_policy.kube.client import Client
from nri_policy.kube.connection import access
from nri_policy.kube.errors import KubeconfigError
from nri_policy.observability.logs import Form, set_up
from nri_policy.settings import SettingsError

_PATH = click.Path(path_type=Path)


def _lease_name(
    _context: click.Context, _option: click.Parameter, value: str | None
) -> LeaseName | None:
    if value is None:
        return None
    match = re.fullmatch(r"([a-z0-9][-a-z0-9]*)/([a-z0-9][-.a-z0-9]*)", value)
    if match is None:
        raise click.BadParameter(f"{value!r} is not NAMESPACE/NAME")
    return LeaseName(match[1], match[2], f"{socket.gethostname()}_{uuid4()}")


@click.command
@click.option("--settings", "file", type=_PATH, help="A ClusterPlacement document.")
@click.option(
    "--kubeconfig", type=_PATH, help="How to reach the cluster; in a pod, by its service account."
)
@click.option(
    "--listen",
    default="127.0.0.1",
    show_default=True,
    metavar="ADDRESS",
    help="Address at which the service listens.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8443,
    show_default=True,
    help="Port at which the service listens.",
)
@click.option(
    "--tls-cert", type=_PATH, help="Certificate; without one the service listens on loopback only."
)
@click.option("--tls-key", type=_PATH, help="The certificate's key.")
@click.option(
    "--client-ca",
    type=_PATH,
    help="Certificate authority of the clients; they must then show a certificate of it.",
)
@click.option(
    "--lease",
    metavar="NAMESPACE/NAME",
    callback=_lease_name,
    help="Lease for leader election: only the replica that holds it answers. Without it, there must"
    " be only one replica.",
)
@click.option(
    "--groups",
    is_flag=True,
    help="Also place groups of gated pods; needs the kind PlacementGroup in the cluster.",
)
@click.option(
    "--readiness",
    is_flag=True,
    help="Also mark Nodes whose daemon has been silent for a minute, if its settings have"
    " readiness.whileAway.",
)
@click.option(
    "--kueue",
    is_flag=True,
    help="Also answer Kueue's AdmissionChecks of the controller placement.nri/numa-fit: a Workload"
    " is admitted if its pods fit the nodes' NUMA zones.",
)
@click.option(
    "--log-format",
    type=click.Choice([form.value for form in Form]),
    default=Form.TEXT.value,
    show_default=True,
    help="How each line of the log on stderr is written: key=value, or JSON.",
)
def run(  # noqa: PLR0913, PLR0917 - click names them; one for each option
    file: Path | None,
    kubeconfig: Path | None,
    listen: str,
    port: int,
    tls_cert: Path | None,
    tls_key: Path | None,
    client_ca: Path | None,
    lease: LeaseName | None,
    groups: bool,
    readiness: bool,
    kueue: bool,
    log_format: str,
) -> None:
    """Run the cluster service, which answers kube-scheduler.

    It runs until SIGTERM. While it is away, kube-scheduler works without it if its configuration
    allows that (`ignorable: true`).
    """
    try:
        from nri_policy.cluster.service import server, service  # noqa: PLC0415 - of the extra
    except ImportError as error:
        raise Failure(f"{error}: install nri-policy[cluster]") from error
    set_up(Form(log_format))
    settings = read_cluster_settings(file)
    where = server.Listen(
        host=listen, port=port, certificate=tls_cert, key=tls_key, client_ca=client_ca
    )
    try:
        where.check()
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    try:
        connect = access(kubeconfig)
        if connect is None:
            raise click.UsageError("no cluster is given: name one by --kubeconfig")
        client = Client(connect)
        asyncio.run(
            service.run(
                settings,
                client,
                where,
                file=None if file is None else PlacementFile(file),
                lease=lease,
                groups=groups,
                readiness=readiness,
                kueue=kueue,
            )
        )
    except (KubeconfigError, OSError) as error:
        raise Failure(str(error)) from error


def read_cluster_settings(path: Path | None) -> ClusterSettings:
    """Return the settings in a file, the defaults without one; raises Failure."""
    try:
        return ClusterSettings() if path is None else PlacementFile(path).load()
    except SettingsError as error:
        raise Failure(str(error), Exit.SETTINGS) from error
