from __future__ import annotations

from collections.abc import Iterator

import click

from nri_policy.cli import main
from nri_policy.daemon.paths import SOCKET_VARIABLE
from tools import manual


def test_the_manual_pages_are_of_the_commands_that_there_are() -> None:
    assert {*manual.DOCS.glob("*.1")} == manual.pages().keys()
    for path, text in manual.pages().items():
        assert path.read_text(encoding="utf-8") == text, "make man writes it anew"


def test_a_page_has_what_manual_pages_have() -> None:
    sections = ("NAME", "SYNOPSIS", "DESCRIPTION", "COMMANDS", "EXAMPLES", "SEE ALSO")
    for path, text in manual.pages().items():
        for section in sections:
            assert f"\n.SH {section}\n" in text, (path.name, section)


def test_every_command_is_in_one() -> None:
    page = "".join(manual.pages().values())
    for name in main.list_commands(click.Context(main)):
        assert f"nri-policy {name}".replace("-", "\\-") in page


def test_the_first_page_names_the_commands_of_all_pages() -> None:
    pages = manual.pages()
    commands = pages[manual.DOCS / "nri-policy.1"].partition(".SH COMMANDS")[2].partition(".SH ")[0]
    for path in pages.keys() - {manual.DOCS / "nri-policy.1"}:
        group = path.stem.removeprefix("nri-policy-")
        assert f"\n.SS nri\\-policy {group} COMMAND" in commands


def test_files_and_variables_are_those_of_the_commands_of_a_page() -> None:
    of_a_node, of_a_cluster = (
        manual.pages()[manual.DOCS / f"nri-policy{name}.1"] for name in ("", "-cluster")
    )
    assert "config.yaml" in of_a_node.partition(".SH FILES")[2]
    assert SOCKET_VARIABLE in of_a_node.partition(".SH ENVIRONMENT")[2]
    assert "config.yaml" not in of_a_cluster.partition(".SH FILES")[2]
    assert "KUBECONFIG" in of_a_cluster.partition(".SH ENVIRONMENT")[2]


def test_nothing_of_a_help_is_taken_for_a_command_of_roff() -> None:
    known = {".TH", ".SH", ".SS", ".PP", ".TP", ".B", '.\\"'}
    for line in "".join(manual.pages().values()).splitlines():
        if line.startswith((".", "'")):
            assert line.split()[0] in known, line


def test_every_option_says_what_it_is_for() -> None:
    silent = [(path, option.opts) for path, option in options(main, "") if not option.help]
    assert silent == []


def options(command: click.Command, path: str) -> Iterator[tuple[str, click.Option]]:
    """Yield the options of a command, and of those in it."""
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            yield path, parameter
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from options(inner, f"{path} {name}")
