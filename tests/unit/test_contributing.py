"""What CONTRIBUTING.md and the Makefile offer to who works on the program."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
HELP = ["make", "--no-print-directory", "help"]  # as one make runs in another


def test_make_help_has_a_line_for_each_target() -> None:
    targets = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert targets is not None
    said = subprocess.run(HELP, cwd=ROOT, capture_output=True, text=True, check=True)
    lines = dict(line.split(maxsplit=1) for line in said.stdout.splitlines())
    assert lines.keys() == set(targets[1].split())
    assert all(lines.values())


def test_every_file_that_contributing_names_is_there() -> None:
    named = re.findall(r"\btests/[a-z_/.]+[a-z]", (ROOT / "CONTRIBUTING.md").read_text())
    assert len(named) > 3
    assert all((ROOT / name).exists() for name in named), named
