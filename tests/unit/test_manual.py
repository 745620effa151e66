from __future__ import annotations

import click

from nri_policy.cli import main
from tools import manual


def test_the_manual_page_is_of_the_commands_that_there_are() -> None:
    assert manual.PAGE.read_text(encoding="utf-8") == manual.page(), "make man writes it anew"


def test_every_command_is_in_it() -> None:
    page = manual.page()
    for name in main.list_commands(click.Context(main)):
        assert f"nri-policy {name}".replace("-", "\\-") in page


def test_nothing_of_a_help_is_taken_for_a_command_of_roff() -> None:
    known = {".TH", ".SH", ".SS", ".PP", ".TP", ".B", '.\\"'}
    for line in manual.page().splitlines():
        if line.startswith((".", "'")):
            assert line.split()[0] in known, line
