"""Write the manual page, docs/nri-policy.1, from the commands' own help.

`python -m tools.manual`; tests/unit/test_manual.py says when it is due.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click

from nri_policy.cli import main
from nri_policy.cli.examples import EXAMPLES

PAGE = Path(__file__).resolve().parent.parent / "docs" / "nri-policy.1"

_EXITS = (
    ("0", "It was done, and the answer is yes."),
    ("1", "The answer is no, or it could not be done."),
    ("2", "The command makes no sense."),
    ("3", "The daemon cannot be reached."),
    ("78", "The settings are wrong."),
)
_FILES = (
    ("/etc/nri-policy/config.yaml", "The settings."),
    ("/run/nri-policy/control.sock", "The daemon's socket."),
    ("/run/nri-policy/containers", "What containers are shown of their resources."),
    ("/var/lib/nri-policy", "What the daemon has to remember, with the journal."),
)
_ENVIRONMENT = (
    ("NO_COLOR", "Print without colours."),
    ("FORCE_COLOR", "Print with colours, whatever reads them."),
    ("COLUMNS", "How wide to print."),
)


def page() -> str:
    """Return the page in roff."""
    context = click.Context(main, info_name="nri-policy")
    lines = [
        '.\\" Written by tools/manual.py: change the help of the commands instead.',
        '.TH NRI-POLICY 1 "" "nri-policy" "User Commands"',
        ".SH NAME",
        "nri\\-policy \\- " + _text(f"{main.help}".rstrip(".")),
        ".SH SYNOPSIS",
        ".B nri\\-policy",
        "\\fICOMMAND\\fR [\\fIOPTION\\fR]... [\\fIARGUMENT\\fR]...",
        ".SH COMMANDS",
    ]
    for name in main.list_commands(context):
        command = main.get_command(context, name)
        assert command is not None, name
        lines += _command(click.Context(command, info_name=name, parent=context))
    for title, entries in (
        ("EXIT STATUS", _EXITS),
        ("FILES", _FILES),
        ("ENVIRONMENT", _ENVIRONMENT),
    ):
        lines.append(f".SH {title}")
        for term, text in entries:
            lines += _entry(term, text)
    return "\n".join([*lines, ""])


def _command(context: click.Context) -> Iterator[str]:
    """Yield the section of a command, and of those in it."""
    command = context.command
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None, name
            yield from _command(click.Context(inner, info_name=name, parent=context))
        return
    pieces = command.collect_usage_pieces(context)
    yield ".SS " + _text(" ".join([context.command_path, *pieces]))
    for paragraph in (command.help or "").split("\n\n"):
        yield _text(" ".join(paragraph.split()))
        yield ".PP"
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None and record[1] and "--help" not in parameter.opts:
            yield from _entry(*record)
    yield ".PP"
    yield "Examples:"
    for line, purpose in EXAMPLES[context.command_path.partition(" ")[2]]:
        yield from _entry(line, f"{purpose[0].upper()}{purpose[1:]}")


def _entry(term: str, text: str) -> Iterator[str]:
    yield ".TP"
    yield f"\\fB{_text(term)}\\fR"
    yield _text(" ".join(text.split()))


def _text(text: str) -> str:
    """Return *text* so that roff prints it as it is."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    return re.sub(r"^([.'])", r"\\&\1", escaped)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
