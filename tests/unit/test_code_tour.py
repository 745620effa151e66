"""What docs/code-tour.md names is where it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
TOUR = (PROJECT / "docs" / "code-tour.md").read_text()
FILES = re.findall(r"`([\w/]+\.pyx?)`", TOUR)
NAMES = re.findall(r"`(\w+)(?:\.(\w+))?(?:\(\))?`\s+(?:in|of)\s+`([\w/]+\.pyx?)`", TOUR)


def source(name: str) -> str:
    folder = PROJECT if name.startswith("native/") else PROJECT / "nri_policy"
    return (folder / (name if "/" in name else f"../native/nri_policy/native/{name}")).read_text()


@pytest.mark.parametrize("name", sorted({*FILES}))
def test_a_module_is_there(name: str) -> None:
    assert source(name)


def test_names_are_in_their_modules() -> None:
    assert len(NAMES) > 20
    for outer, inner, module in NAMES:
        for name in filter(None, (outer, inner)):
            found = re.search(rf"^ *(?:async def|def|class) {name}\b", source(module), re.MULTILINE)
            assert found, f"{module} has no {name}"
