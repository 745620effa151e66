"""docs/logs.md has every warning and error that daemon and cluster service log, and no others."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
DAEMON, SERVICE = (PROJECT / "docs" / "logs.md").read_text().split("## The cluster service")
NO_PROGRAMS = {"cli", "simulation"}
# what logs a warning, and which of its arguments names the event
NAMES_AT = {"warning": 0, "error": 0, "_warn": 0, "log": 1}


def events(*, of_service: bool) -> Iterator[str]:
    """Yield what the daemon, or the service, logs above INFO without a traceback."""
    for path in (PROJECT / "nri_policy").rglob("*.py"):
        if NO_PROGRAMS & {*path.parts} or ("cluster" in path.parts) != of_service:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            at = NAMES_AT.get(node.func.attr, len(node.args))
            name = node.args[at] if at < len(node.args) else None
            if isinstance(name, ast.Constant) and isinstance(name.value, str):
                yield name.value


@pytest.mark.parametrize(("part", "of_service"), [(DAEMON, False), (SERVICE, True)])
def test_the_page_has_every_warning_once_and_no_other(part: str, of_service: bool) -> None:
    rows = [row for row in part.splitlines() if row.startswith("| `") and "`event=`" not in row]
    named = [name for row in rows for name in re.findall(r"`([a-z-]+)`", row.split("|")[1])]
    assert sorted(named) == sorted({*events(of_service=of_service)})
