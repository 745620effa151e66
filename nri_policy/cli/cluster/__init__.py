"""`nri-policy cluster`: the cluster side, as a service and for questions."""

from __future__ import annotations

import click

from nri_policy.cli.cluster.explain import explain_command
from nri_policy.cli.cluster.fit import fit
from nri_policy.cli.cluster.place import place
from nri_policy.cli.cluster.plan import plan
from nri_policy.cli.cluster.run import run
from nri_policy.cli.cluster.simulate import simulate
from nri_policy.cli.cluster.top import top
from nri_policy.cli.cluster.tree import tree


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
