"""Write the manual pages, docs/nri-policy*.1, from the commands' own help.

`python -m tools.manual`; tests/unit/test_manual.py says when it is due.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import click

from nri_policy.cli import main
from nri_policy.cli.examples import EXAMPLES, Example

DOCS = Path(__file__).resolve().parent.parent / "docs"

_EXITS = (
    ("0", "It was done, and the answer is yes."),
    ("1", "The answer is no, or it could not be done."),
    ("2", "Wrong usage, or a malformed value or file."),
    ("3", "The daemon, the cluster or a service cannot be reached."),
    ("78", "The settings are wrong."),
)
_Entries = tuple[tuple[str, str], ...]

_NODE_FILES: _Entries = (
    ("/etc/nri-policy/config.yaml", "The settings."),
    ("/run/nri-policy/control.sock", "The daemon's socket."),
    ("/run/nri-policy/containers", "What containers are shown of their resources."),
    ("/var/lib/nri-policy", "What the daemon has to remember, with the journal."),
)
_CLUSTER_FILES: _Entries = (("~/.kube/config", "Where the cluster is, without KUBECONFIG."),)
_ENVIRONMENT: _Entries = (
    ("NO_COLOR", "Print without colours."),
    ("FORCE_COLOR", "Print with colours, even into a pipe."),
    ("COLUMNS", "How wide to print."),
)
_NODE_ENVIRONMENT: _Entries = (
    ("NRI_POLICY_CONTROL_SOCKET", "The daemon's socket."),
    ("NODE_NAME", "The node's name in the cluster."),
    *_ENVIRONMENT,
)
_CLUSTER_ENVIRONMENT: _Entries = (
    ("KUBECONFIG", "The file that says where the cluster is, as for kubectl(1)."),
    *_ENVIRONMENT,
)


_DESCRIPTION = """\
nri-policy run is a daemon on a Kubernetes node. It decides on which CPUs and memory nodes each
container runs, and tells containerd or CRI-O through NRI. The other commands ask it, or try pods,
settings and machines without it. Most print a table, and with -o json or -o yaml a document.

The documentation is in docs/ of the source, and in /usr/share/doc/nri-policy where it is installed
as a package."""
_FIRST = ("doctor", "explain", "what-if", "simulate")  # examples of the first page
_OTHERS = ("kubectl(1)", "containerd(8)", "crio(8)", "cpuset(7)", "numa(7)", "lstopo(1)")


def pages() -> dict[Path, str]:
    """Return the pages in roff: the program's, and one for each group of commands."""
    context = click.Context(main, info_name="nri-policy")
    plain: list[click.Context] = []
    groups: list[click.Context] = []
    for name in main.list_commands(context):
        command = main.get_command(context, name)
        assert command is not None, name
        inner = click.Context(command, info_name=name, parent=context)
        (groups if isinstance(command, click.Group) else plain).append(inner)
    others = [f"nri-policy-{each.info_name}(1)" for each in groups]
    examples = [each for name in _FIRST for each in EXAMPLES[name]]
    found = {
        DOCS / "nri-policy.1": _page(
            "nri-policy", context, [*plain, *groups], _DESCRIPTION, examples, [*others, *_OTHERS]
        )
    }
    for group in groups:
        name = f"nri-policy-{group.info_name}"
        members = [*_commands(group)]
        examples = [each for one in members for each in EXAMPLES[_name(one)][:1]]
        also = ["nri-policy(1)", *(each for each in others if each != f"{name}(1)"), *_OTHERS]
        text = group.command.help or ""
        found[DOCS / f"{name}.1"] = _page(name, group, members, text, examples, also)
    return found


def _page(  # noqa: PLR0913, PLR0917 - the parts of a page
    name: str,
    context: click.Context,
    commands: Sequence[click.Context],
    description: str,
    examples: Iterable[Example],
    also: Sequence[str],
) -> str:
    purpose = (context.command.help or "").split("\n\n")[0]
    path = _text(context.command_path)
    of_a_cluster = context.info_name == "cluster"
    lines = [
        '.\\" Written by tools/manual.py: change the help of the commands instead.',
        f'.TH {_text(name.upper())} 1 "" "nri-policy" "User Commands"',
        ".SH NAME",
        f"{_text(name)} \\- {_text(' '.join(purpose.split()).rstrip('.'))}",
        ".SH SYNOPSIS",
        f".B {path}",
        "\\fICOMMAND\\fR [\\fIOPTION\\fR]... [\\fIARGUMENT\\fR]...",
        ".SH DESCRIPTION",
    ]
    for paragraph in description.split("\n\n"):
        lines += [_text(" ".join(paragraph.split())), ".PP"]
    lines.append(".SH COMMANDS")
    for each in commands:
        lines += _group(each) if isinstance(each.command, click.Group) else _command(each)
    lines.append(".SH EXAMPLES")
    for line, use in examples:
        lines += _entry(line, f"{use[0].upper()}{use[1:]}")
    for title, entries in (
        ("EXIT STATUS", _EXITS),
        ("FILES", _CLUSTER_FILES if of_a_cluster else _NODE_FILES),
        ("ENVIRONMENT", _CLUSTER_ENVIRONMENT if of_a_cluster else _NODE_ENVIRONMENT),
    ):
        lines.append(f".SH {title}")
        for term, text in entries:
            lines += _entry(term, text)
    references = [f"\\fB{_text(each[:-3])}\\fR{each[-3:]}" for each in also]
    return "\n".join([*lines, ".SH SEE ALSO", ",\n".join(references), ""])


def _commands(context: click.Context) -> Iterator[click.Context]:
    """Yield the contexts of the commands in a group."""
    group = context.command
    assert isinstance(group, click.Group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None, name
        yield click.Context(command, info_name=name, parent=context)


def _name(context: click.Context) -> str:
    return context.command_path.partition(" ")[2]


def _group(context: click.Context) -> Iterator[str]:
    """Yield the section that lists commands with their own page."""
    purpose = (context.command.help or "").split("\n\n")[0]
    yield ".SS " + _text(f"{context.command_path} COMMAND [OPTIONS]")
    yield _text(f"{' '.join(purpose.split())} See nri-policy-{context.info_name}(1).")


def _command(context: click.Context) -> Iterator[str]:
    """Yield the section of a command."""
    command = context.command
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
    for line, purpose in EXAMPLES[_name(context)]:
        yield from _entry(line, f"{purpose[0].upper()}{purpose[1:]}")


def _entry(term: str, text: str) -> Iterator[str]:
    yield ".TP"
    yield f"\\fB{_text(term)}\\fR"
    yield _text(" ".join(text.split()))


def _text(text: str) -> str:
    """Return *text* escaped for roff."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    return re.sub(r"^([.'])", r"\\&\1", escaped)


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
