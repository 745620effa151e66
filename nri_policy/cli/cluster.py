"""`nri-policy cluster`: the cluster side, as a service and for questions."""

from __future__ import annotations

import click

from nri_policy.cli.cluster_explain import explain_command
from nri_policy.cli.cluster_fit import fit
from nri_policy.cli.cluster_place import place
from nri_policy.cli.cluster_plan import plan
from nri_policy.cli.cluster_run import run
from nri_policy.cli.cluster_simulate import simulate
from nri_policy.cli.cluster_top import top
from nri_policy.cli.cluster_tree import tree


@click.group
def command() -> None:
    """Place groups of pods in a cluster, and serve kube-scheduler."""


command.add_command(run)
command.add_command(fit)
command.add_command(tree)
command.add_command(place)
command.add_command(explain_command)
command.add_command(plan)
command.add_command(simulate)
command.add_command(top)
