"""Write the words that a shell completes, nri_policy/completion.json, from the commands.

`python -m tools.completion`, which `make man` runs; tests/unit/test_completion.py says when it is
due.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from nri_policy.cli import main
from nri_policy.cli.kubectl import main as plugin

TABLE = Path(__file__).resolve().parent.parent / "nri_policy" / "completion.json"


def table() -> str:
    """Return the table: each command with its options, and the words that may follow it."""
    found = {
        path: each
        for program, name in ((main, ""), (plugin, "kubectl nri-policy"))
        for path, each in _commands(program, click.Context(program, info_name=name), name)
    }
    return f"{json.dumps(found, indent=1)}\n"


def _commands(
    command: click.Command, context: click.Context, path: str
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield a command and its subcommands, by path."""
    inner = {}
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            inner[name] = found
    options: dict[str, tuple[str, Any]] = {}
    argument: Any = []
    for parameter in command.get_params(context):
        if isinstance(parameter, click.Option):
            says = " ".join((parameter.help or "").split())
            names = [*parameter.opts, *parameter.secondary_opts]
            if "--help" in names:  # click remembers the names that it was first asked with
                names = ["-h", "--help"]
            for name in names:
                options[name] = (says, _kind(parameter))
        else:
            argument = _kind(parameter)
    yield (
        path,
        {
            "commands": {name: each.get_short_help_str() for name, each in inner.items()},
            "options": options,
            "argument": argument,
        },
    )
    for name, each in inner.items():
        yield from _commands(
            each, click.Context(each, info_name=name, parent=context), f"{path} {name}".strip()
        )


def _kind(parameter: click.Parameter) -> Any:
    """Return what values a parameter has: `flag`, `file`, `dir`, `names`, or a list."""
    if isinstance(parameter, click.Option) and (parameter.is_flag or parameter.count):
        return "flag"
    if isinstance(parameter.type, click.Choice):
        return [*parameter.type.choices]
    if isinstance(parameter.type, click.Path):
        return "file" if parameter.type.file_okay else "dir"
    if isinstance(parameter.type, click.File):
        return "file"
    return "names" if parameter._custom_shell_complete else []  # noqa: SLF001 - click says it nowhere


if __name__ == "__main__":
    TABLE.write_text(table())
