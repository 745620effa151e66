"""What commands print for people."""

from __future__ import annotations

import pytest
from rich.text import Text

from nri_policy.cli.output import print_drawing

LONG = "no pool has room for 2 CPUs"


def printed(text: Text, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("COLUMNS", "16")
    print_drawing(text)
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        (LONG, ["no pool has room", "  for 2 CPUs"]),
        (f"  {LONG}", ["  no pool has", "    room for 2", "    CPUs"]),
        (f"one:\n\n{LONG}\nend", ["one:", "", "no pool has room", "  for 2 CPUs", "end"]),
        ("a" * 20, ["a" * 16, "  " + "a" * 4]),
        ("", [""]),
    ],
)
def test_the_further_lines_of_a_paragraph_are_indented(
    text: str,
    lines: list[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert printed(Text(text), capsys, monkeypatch).splitlines() == lines


def test_each_line_of_a_paragraph_has_its_style(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.delenv("NO_COLOR", raising=False)
    out = printed(Text(LONG, "red"), capsys, monkeypatch)
    assert [line.count("\x1b[31m") for line in out.splitlines()] == [1, 1]
