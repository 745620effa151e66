"""Options that manifests of nri-plugins' topology-aware policy give `run`, beside those of our own.

Its DaemonSet names no command, so its arguments start our daemon where only the image is changed.
They follow Go's rules: an option may have one dash or two. Options with a meaning here work. `run`
accepts the rest too, and logs that they have no effect.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import click

from nri_policy.cli.node.host_options import PATH

_Command = Callable[..., Any]
_ONE_DASH = re.compile(r"-[a-z]{2}")


class GoCommand(click.Command):
    """A command whose options may have one dash, as in Go's programs."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Give an option with one dash its second."""
        args = [f"-{each}" if _ONE_DASH.match(each) else each for each in args]
        return super().parse_args(ctx, args)


def peer_options(command: _Command) -> _Command:
    """Give *command* the options; those without effect come as the rest of its arguments."""
    for name, says in (
        ("--pid-file", "File for the process's number."),
        ("--cgroup-mount", "Where cgroups are mounted."),
        ("--cgroup-v2-dir", "Where cgroup v2 is mounted."),
        ("--kubelet-cgroup-root", "The kubelet's topmost cgroup."),
    ):
        command = click.option(name, hidden=True, help=f"{says} Has no effect.")(command)
    return click.option(
        "--config-file",
        type=PATH,
        hidden=True,
        help="The same as --settings with an empty --config-namespace.",
    )(command)
