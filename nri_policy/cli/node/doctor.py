"""`nri-policy doctor`: what of this node stands in the daemon's way, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import click
from msgspec.structs import asdict
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from nri_policy.cli.daemon_option import socket_option
from nri_policy.cli.failure import Exit
from nri_policy.cli.node.host_options import (
    host_root_option,
    kubeconfig_option,
    kubelet_dir_option,
    node_name_option,
    nri_socket_option,
    settings_path_option,
    state_dir_option,
)
from nri_policy.cli.options import form_option
from nri_policy.cli.output import print_document, print_drawing
from nri_policy.doctor.checks import examine
from nri_policy.doctor.facts import Where, gather
from nri_policy.doctor.finding import Finding, Verdict
from nri_policy.foundation.shipped import shipped
from nri_policy.foundation.wording import counted

_STYLES = {
    Verdict.OK: "green",
    Verdict.NOTE: "cyan",
    Verdict.WARNING: "bold yellow",
    Verdict.ERROR: "bold red",
}


@click.command
@host_root_option("Folder with the host's files: /etc, /proc, /sys, /var.")
@settings_path_option("The daemon's settings; looked for below --host-root first.")
@nri_socket_option
@state_dir_option
@socket_option
@kubelet_dir_option
@kubeconfig_option
@node_name_option
@form_option
@click.pass_context
def command(  # noqa: PLR0913, PLR0917 - click names them; one for each option
    context: click.Context,
    host_root: Path,
    config: Path,
    nri_socket: Path,
    state_dir: Path,
    control_socket: Path,
    kubelet_dir: Path,
    kubeconfig: Path | None,
    node_name: str,
    form: str,
) -> None:
    """Find what keeps the daemon from working on this node.

    Give it the same options as the daemon. It changes nothing, and takes a few seconds at most.
    Exits with 1 if it finds a warning or an error.
    """
    where = Where(
        host_root=host_root,
        config=_below(host_root, config),
        nri_socket=nri_socket,
        state_dir=state_dir,
        control_socket=control_socket,
        kubelet_dir=kubelet_dir.absolute(),
        kubeconfig=kubeconfig,
        node_name=node_name,
    )
    findings = examine(gather(where))
    if form == "table":
        print_drawing(*_draw(findings))
    else:
        print_document([{**asdict(each), "verdict": each.verdict.value} for each in findings], form)
    context.exit(0 if all(each.passes for each in findings) else Exit.NO)


def _below(host_root: Path, config: Path) -> Path:
    """Return where *config* is: below *host_root* if it is there, else as it stands."""
    below = host_root / config.relative_to("/") if config.is_absolute() else config
    return below if below.exists() else config


def _draw(findings: Sequence[Finding]) -> Iterator[RenderableType]:
    table = Table.grid(padding=(0, 2, 0, 0))
    for each in findings:
        text = Text(each.found, overflow="fold")
        if each.remedy:
            text.append(f"\n{each.remedy}", style="italic")
        table.add_row(Text(each.verdict.value, style=_STYLES[each.verdict]), Text(each.check), text)
    yield table
    yield ""
    if any(folder in each.remedy for each in findings for folder in ("configs/", "docs/")):
        yield Text(f"configs/ and docs/ are in {shipped()}", "dim")
    errors, warnings = (
        sum(each.verdict is verdict for each in findings)
        for verdict in (Verdict.ERROR, Verdict.WARNING)
    )
    if errors or warnings:
        yield Text(f"{counted(errors, 'error')}, {counted(warnings, 'warning')}")
    else:
        yield Text("Nothing has to be done.")
