"""The page about the architecture names every room, and files that are there."""

from __future__ import annotations

import re
from pathlib import Path

import nri_policy

ROOT = Path(nri_policy.__file__).parent
PAGE = (ROOT.parent / "docs/architecture.md").read_text()


def test_every_room_has_a_row() -> None:
    rows = re.findall(r"^\| (`.*?) \|", PAGE, re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`([a-z_/]+)`", row)} - {"native/"}
    rooms = {path.parent.name for path in ROOT.glob("*/__init__.py")} | {"settings/sources"}
    assert rooms | {"daemon", "process", "reload", "status", "what_if"} == named


def test_every_file_of_a_recipe_is_there() -> None:
    files = re.findall(r"`([a-z_]+/[a-z_/]+\.py)`", PAGE)
    assert len(files) > 8
    for name in files:
        assert (ROOT / name).is_file() or (ROOT.parent / name).is_file(), name
