"""The reference pages name everything that is accepted."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import yaml
from msgspec import structs
from msgspec.structs import replace

from nri_policy.doctor import checks
from nri_policy.settings import Section, Settings
from nri_policy.settings.document import _fields
from nri_policy.workload.affinity import affinities_of
from nri_policy.workload.annotation_table import (
    AFFINITIES,
    ANNOTATIONS,
    BY_NAME,
    Preferences,
)
from nri_policy.workload.annotations import DOMAIN, RESOURCES
from nri_policy.workload.expression import OWN_POD, Operator, facts_of
from tests.support.containers import member
from tests.support.nodes import settings

DOCS = Path(__file__).parents[2] / "docs"


def test_every_annotation_is_described() -> None:
    page = (DOCS / "annotations.md").read_text()
    for key in (*BY_NAME, RESOURCES, *(f"{DOMAIN}/{name}" for name in AFFINITIES)):
        assert f"`{key}`" in page, key


def test_the_page_says_what_the_table_of_annotations_says() -> None:
    page = (DOCS / "annotations.md").read_text()
    fields = {each.name for each in structs.fields(Preferences)}
    for each in ANNOTATIONS:
        assert f"| `{each.name}` | {each.value} | {each.help} |" in page
        assert each.steers in fields, each.name


def test_every_setting_is_described() -> None:
    page = (DOCS / "settings.md").read_text()
    for name in _leaves(Settings, ""):
        assert f"`{name}`" in page, name


def _leaves(kind: type[Section], prefix: str) -> Iterator[str]:
    """Yield the fields that hold no single section, by their paths."""
    for name, known in _fields(kind).items():
        if isinstance(known.sections, type) and name not in kind.LATER:
            yield from _leaves(known.sections, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


def test_every_check_of_the_doctor_is_described() -> None:
    page = (DOCS / "doctor.md").read_text().partition("## What it checks")[2]
    sources = Path(checks.__file__).parent.rglob("*.py")
    names = {
        name for path in sources for name in re.findall(r'Finding\(\s*"(\w+)"', path.read_text())
    }
    assert names == {*re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)}


def test_the_examples_of_affinities_are_accepted() -> None:
    page = (DOCS / "affinity.md").read_text()
    examples = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    read = [_affinities(yaml.safe_load(example)["metadata"]["annotations"]) for example in examples]
    assert read == [
        {"web": (1, -1), "cache": (1, -1), "indexer": (-1,)},
        {"database": (5, 1, -50)},
    ]


def _affinities(annotations: dict[str, str]) -> dict[str, tuple[int, ...]]:
    """Return the weights of the affinities of each container that is named."""
    named = dict.fromkeys(re.findall(r"web|cache|indexer|database", str(annotations)))
    weights = {}
    for name in named:
        container = member(f"shop/example/{name}")
        container = replace(container, pod=replace(container.pod, annotations=annotations))
        weights[name] = tuple(a.weight for a in affinities_of(container, settings()).each)
    return weights


def test_every_operator_and_key_of_expressions_is_described() -> None:
    page = (DOCS / "affinity.md").read_text()
    for word in (*Operator, *facts_of(member("a/b/c"))):
        assert f"`{word}`" in page or word == OWN_POD, word
