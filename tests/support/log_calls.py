"""The calls in the sources that write lines of the log."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import nri_policy

_METHODS = {"debug", "info", "warning", "error", "exception", "critical"}


def log_calls() -> Iterator[tuple[Path, ast.Call]]:
    """Yield each call of a method of `log`, with its file; the event is its first argument."""
    for path in sorted(Path(nri_policy.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            if ast.unparse(node.func.value) != "log" or node.func.attr not in {*_METHODS, "log"}:
                continue
            if node.func.attr == "log":  # the level comes first
                node.args = node.args[1:]
            yield path, node
