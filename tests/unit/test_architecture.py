"""The page about the architecture names every package, and files that are there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import nri_policy
from nri_policy.doctor.checks import CHECKS
from nri_policy.engine.event import Event
from nri_policy.pools.supply import Column

ROOT = Path(nri_policy.__file__).parent
PAGE = (ROOT.parent / "docs/architecture.md").read_text()
FILE = r"`([a-z_]+/[a-z_/]+\.(?:py|pxd))`"


def test_every_package_has_a_row() -> None:
    rows = re.findall(r"^\| (`.*?) \|", PAGE, re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`([a-z_/]+)`", row)}
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert packages | {"completion"} == named


def test_every_file_of_a_recipe_is_there() -> None:
    files = re.findall(FILE, PAGE)
    assert len(files) > 8
    for name in files:
        assert (ROOT / name).is_file() or (ROOT.parent / name).is_file(), name


def test_a_recipe_touches_at_most_three_source_files_but_for_constraints_of_groups() -> None:
    recipes = PAGE.partition("## Recipes")[2].partition("\n## ")[0]
    touched = {
        name: {file for file in re.findall(FILE, text) if not file.startswith("tests/")}
        for name, text in re.findall(r"(?ms)^\*\*([^*]+)\.\*\*(.*?)(?=^\*\*|\Z)", recipes)
    }
    assert len(touched) == 11
    of_groups = touched.pop("Add a constraint of groups")
    assert len(of_groups) == 7, "to read it, to keep it in three ways of placing, to explain it"
    assert all(1 <= len(files) <= 3 for files in touched.values()), touched


def test_an_event_is_told_from_others_in_the_engine_alone() -> None:
    """Elsewhere only those that are stored, or replayed, in a way of their own."""
    telling: dict[str, set[str]] = {}
    for path in ROOT.rglob("*.py"):
        cases = "".join(re.findall(r"^ *case .*$", path.read_text(), re.MULTILINE))
        telling[str(path.relative_to(ROOT))] = set(re.findall(r"(\w+)\(", cases))
    events = {each.__name__ for each in get_args(Event)}
    assert [name for name, cases in telling.items() if events <= cases] == ["engine/engine.py"]


def test_every_check_of_doctor_is_a_module_that_is_named_once() -> None:
    modules = {path.stem for path in (ROOT / "doctor/checks").rglob("*.py")} - {"__init__"}
    assert sorted(check.__module__.rpartition(".")[2] for check in CHECKS) == sorted(modules)


def test_the_columns_of_the_criteria_are_listed_in_the_kernel_and_in_their_table_alone() -> None:
    """Elsewhere stand only those that are filled or read there, and none that is unknown."""
    names = {column.name for column in Column}
    listing = set()
    for folder in (ROOT, ROOT.parent / "native/nri_policy"):
        for path in folder.rglob("*.p*"):
            if path.suffix in {".py", ".pyi", ".pyx", ".pxd"}:
                text = path.read_text()
                assert set(re.findall(r"\bColumn\.([A-Z_0-9]+)\b", text)) <= names, path
                if names <= set(re.findall(r"\b[A-Z_0-9]+\b", text)):
                    listing.add(path.name)
    assert listing == {"_table.pxd", "criteria.py"}
