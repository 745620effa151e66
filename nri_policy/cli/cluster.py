"""`nri-policy cluster`: the cluster side, as a service and for questions."""

from __future__ import annotations

import click

from nri_policy.cli.cluster_fit import fit
from nri_policy.cli.cluster_run import run


@click.group
def command() -> None:
    """Serve kube-scheduler, and see what it would be told."""


command.add_command(run)
command.add_command(fit)
