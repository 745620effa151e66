"""What docs/code-tour.md names is where it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from nri_policy.foundation.units import format_cpu
from nri_policy.workload.pod import Resources, shares_of
from tools.walk import Step, containers, follow, steps_of

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


def test_a_walk_returns_to_a_file_that_it_has_left() -> None:
    def walk() -> None:
        limit = Resources(cpu_quota=200_000, cpu_period=100_000).cpu_limit  # a first visit
        assert format_cpu(limit or 0) == "2"
        assert shares_of(2000) == 2048  # a return
        assert shares_of(1000) == 1024  # read already

    assert steps_of(walk) == [
        Step("workload/pod.py", "Resources.cpu_limit", is_return=False),
        Step("foundation/units.py", "format_cpu", is_return=False),
        Step("workload/pod.py", "shares_of", is_return=True),
    ]


@pytest.mark.parametrize(("kind", "most"), [("plain", 17), ("annotated", 21), ("room", 21)])
def test_a_creation_returns_to_few_files_that_it_has_left(kind: str, most: int) -> None:
    returns = [step for step in follow(containers()[kind]) if step.is_return]
    assert len(returns) <= most, returns
