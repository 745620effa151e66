"""docs/logs.md has every warning and error that the daemon logs, and no others."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

PROJECT = Path(__file__).parents[2]
PAGE = (PROJECT / "docs" / "logs.md").read_text()
NOT_THE_DAEMONS = {"cli", "cluster", "simulation"}
# what logs a warning, and which of its arguments names the event
NAMES_AT = {"warning": 0, "error": 0, "_warn": 0, "log": 1}


def events() -> Iterator[str]:
    """Yield what is logged above INFO without a traceback."""
    for path in (PROJECT / "nri_policy").rglob("*.py"):
        if NOT_THE_DAEMONS & {*path.parts}:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            at = NAMES_AT.get(node.func.attr, len(node.args))
            name = node.args[at] if at < len(node.args) else None
            if isinstance(name, ast.Constant) and isinstance(name.value, str):
                yield name.value


def test_the_page_has_every_warning_once_and_no_other() -> None:
    rows = [row for row in PAGE.splitlines() if row.startswith("| `") and "`event=`" not in row]
    named = [name for row in rows for name in re.findall(r"`([a-z-]+)`", row.split("|")[1])]
    assert sorted(named) == sorted({*events()})
