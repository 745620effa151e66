"""`nri-policy explain`: why a container is where it is, or why it was refused."""

from __future__ import annotations

from pathlib import Path

import click

from nri_policy.cli.asking import asking, socket_option
from nri_policy.cli.criteria_table import explained
from nri_policy.cli.names import complete
from nri_policy.cli.options import form_option
from nri_policy.cli.output import print_document, print_drawing


@click.command
@click.argument("name", metavar="POD[/CONTAINER]", shell_complete=complete)
@socket_option
@form_option
def command(name: str, control_socket: Path, form: str) -> None:
    """Explain why a container, or each container of a pod, is where it is.

    A pod of another namespace than default is NAMESPACE/POD. It is the decision as it was made
    then: what was free, and what the container was drawn to, may be different now. -o json prints
    an object for a container, a list of them for a pod.
    """
    with asking(control_socket) as client:
        found = client.explain(name)
    if form != "table":
        print_document(found, form)
        return
    for number, explanation in enumerate(found if isinstance(found, tuple) else [found]):
        if number:
            print_drawing("")
        print_drawing(*explained(explanation))
