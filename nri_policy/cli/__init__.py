"""The nri-policy program: one module a sub-command, imported only when it is asked for.

Owns how the program ends: 0 done, 1 no, 2 usage, 3 the daemon cannot be reached, 78 bad settings
(`failure`); errors are one line on stderr. A module of a sub-command is in `node` and has its name
(`what_if` for `what-if`), the group `cluster` is a room of its own; each holds a click command
called `command`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import click

from nri_policy.cli.examples import show
from nri_policy.cli.failure import Failure
from nri_policy.foundation.garbage import collection_paused
from nri_policy.foundation.wording import did_you_mean, printable, quoted

_COMMANDS = (  # in the order of --help
    "run",
    "doctor",
    "status",
    "pools",
    "containers",
    "explain",
    "what-if",
    "history",
    "audit",
    "top",
    "nrt",
    "config",
    "demo",
    "simulate",
    "replay",
    "topology",
    "capture",
    "tuner",
    "tunables",
    "restore",
    "cluster",
)


class CommandGroup(click.Group):
    """A command group that prints errors on one line."""

    def main(self, args: Sequence[str] | None = None, *more: Any, **named: Any) -> Any:
        """Run the program and exit; an error is one line, where click would print its usage too."""
        try:
            outcome = super().main(args, *more, **{**named, "standalone_mode": False})
        except click.exceptions.NoArgsIsHelpError as error:  # its message is the whole help
            click.echo(error.format_message(), err=True)
            sys.exit(error.exit_code)
        except click.ClickException as error:
            context = getattr(error, "ctx", None)
            place = context.command_path if context else named.get("prog_name") or "nri-policy"
            message = error.format_message()
            if isinstance(error, click.UsageError):
                message = f"{message.rstrip('.')} (see {place} --help)"
            click.echo(printable(f"{place}: {message}"), err=True)
            sys.exit(error.code if isinstance(error, Failure) else error.exit_code)
        except click.Abort:  # Ctrl-C
            sys.exit(130)
        # click returns here the code that a command gave to its context's exit
        sys.exit(outcome if isinstance(outcome, int) else 0)


class _Commands(CommandGroup):
    """The group of all sub-commands."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(_COMMANDS)

    def get_command(
        self,
        ctx: click.Context,  # noqa: ARG002 - click's signature
        cmd_name: str,
    ) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        room = __name__ if cmd_name == "cluster" else f"{__name__}.node"
        with collection_paused():
            module = import_module(f"{room}.{cmd_name.replace('-', '_')}")
        command: click.Command = module.command
        show(command, cmd_name)
        return command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put `run` before an option that is not the program's own: nri-plugins has no commands."""
        own = {name for each in self.get_params(ctx) for name in each.opts}
        if args and args[0].startswith("-") and args[0] not in own:
            args = ["run", *args]
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in _COMMANDS and not name.startswith("-"):
            raise click.UsageError(f"no command {quoted(name)}{did_you_mean(name, _COMMANDS)}", ctx)
        return super().resolve_command(ctx, args)


@click.group(
    name="nri-policy",
    cls=_Commands,
    no_args_is_help=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(package_name="nri-policy")
def main() -> None:
    """Place containers on the CPUs and memory of a node, and show why they are where they are."""
