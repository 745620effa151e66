"""`nri-policy explain`: why a container is where it is, or why it was refused."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click
from rich.text import Text

from nri_policy.cli.daemon_option import daemon_client, socket_option
from nri_policy.cli.node.criteria_table import explain, why_not
from nri_policy.cli.node.holdings import short
from nri_policy.cli.node.name_completion import complete
from nri_policy.cli.node.pinning import left_alone
from nri_policy.cli.options import explanation_form_option
from nri_policy.cli.output import print_document, print_drawing, print_page
from nri_policy.engine.explanation import DecisionKind
from nri_policy.picture import decision
from nri_policy.picture.decision import DecidedContainer
from nri_policy.report import ExplanationReport, PoolReport, describe_outcome


@click.command
@click.argument("name", metavar="POD[/CONTAINER]", shell_complete=complete)
@click.option("-n", "--namespace", help="Namespace of the pod.")
@click.option("--why", is_flag=True, help="Show how the pools compared, the best five.")
@click.option("--all", "all_pools", is_flag=True, help="Show how all pools compared.")
@socket_option
@explanation_form_option
def command(  # noqa: PLR0913, PLR0917 - one parameter an option
    name: str,
    namespace: str | None,
    why: bool,
    all_pools: bool,
    control_socket: Path,
    form: str,
) -> None:
    """Say which CPUs and memory containers have, and why.

    Write NAMESPACE/POD, or POD with -n NAMESPACE, if the namespace is not `default`. With --why or
    --all it shows the decision as it was made; what is free may have changed since. -o json prints
    an object for a container, and a list of objects for a pod.
    """
    with daemon_client(control_socket) as client:
        found = client.explain(name if namespace is None else f"{namespace}/{name}")
        note = left_alone(client.settings())
        pools = client.machine().pools if form == "svg" else ()
    explanations = found if isinstance(found, tuple) else (found,)
    if form == "svg":
        print_page(decision.document([_decision(each, pools) for each in explanations]))
        return
    if form != "table":
        print_document(found, form)
        return
    for number, explanation in enumerate(explanations):
        if number:
            print_drawing("")
        tables = why or all_pools or explanation.outcome is DecisionKind.REFUSED
        print_drawing(*explain(explanation, why=tables, all_pools=all_pools))
    if note:
        print_drawing("", Text(f"note: {note}"))


def _decision(explanation: ExplanationReport, pools: Sequence[PoolReport]) -> DecidedContainer:
    why = {each.pool: why_not(explanation, each) for each in explanation.candidates}
    heading = f"{short(explanation.container)}: {describe_outcome(explanation)}"
    return DecidedContainer(heading=heading, pools=pools, chosen=explanation.pool, why_not=why)
