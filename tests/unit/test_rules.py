"""Each rule that the code cites is on a page of docs/design.

A citation is `placement.md §4`, or `§4` alone: then the page is the one that the same file names
before, else the one of its room.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
DESIGN = PROJECT / "docs" / "design"
PAGE_OF_ROOM = {
    "classes": "classes",
    "cluster": "cluster",
    "delivery": "nri",
    "dra": "dra",
    "nri": "nri",
    "nrt": "nrt",
    "plugin": "nri",
}
_CITATION = re.compile(r"(?:\b([a-z]+)\.md,? )?§ ?(\d+(?:\.\d+)*[a-z]?)")
_NAMED = re.compile(r"\b(placement|delivery|nri|dra|nrt|cluster|classes)\.md\b")
_HEADING = re.compile(r"^#+ (?:§ ?)?(\d+(?:\.\d+)*[a-z]?)\b", re.MULTILINE)
_ITEM = re.compile(r"^(\d+)\. ", re.MULTILINE)


@cache
def numbers(page: str) -> set[str]:
    """Return the numbers of a page's headings, and of the items below each."""
    found: set[str] = set()
    parts = _HEADING.split((DESIGN / f"{page}.md").read_text())
    for number, text in zip(parts[1::2], parts[2::2], strict=True):
        found |= {number, *(f"{number}.{item}" for item in _ITEM.findall(text))}
    return found


def citations(file: Path) -> Iterator[tuple[str, str]]:
    """Yield the page and the number of each rule that a file cites."""
    text = file.read_text()
    room = file.relative_to(PROJECT / "nri_policy").parts[0]
    for match in _CITATION.finditer(text):
        before = _NAMED.findall(text, 0, match.start())
        page = before[-1] if before else PAGE_OF_ROOM.get(room, "placement")
        yield match[1] or page, match[2]


FILES = sorted(
    each
    for kind in ("*.py", "*.pyx")
    for each in (PROJECT / "nri_policy").rglob(kind)
    if "§" in each.read_text()
)


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PROJECT)))
def test_a_rule_that_is_cited_is_on_its_page(file: Path) -> None:
    missing = {(page, number) for page, number in citations(file) if number not in numbers(page)}
    assert not missing
