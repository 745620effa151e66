"""The reference pages name everything that is accepted."""

from __future__ import annotations

from pathlib import Path

from nri_policy.settings import Agent, Available, Instrumentation, Log, Reserved, Settings
from nri_policy.settings.document import _fields
from nri_policy.settings.schema import Section
from nri_policy.workload.annotations import AFFINITIES, DOMAIN, KEYS, LATER, RESOURCES

DOCS = Path(__file__).parents[2] / "docs"


def test_every_annotation_is_described() -> None:
    page = (DOCS / "annotations.md").read_text()
    for key in (*KEYS, *LATER, RESOURCES, *(f"{DOMAIN}/{name}" for name in AFFINITIES)):
        assert f"`{key}`" in page, key


def test_every_setting_is_described() -> None:
    page = (DOCS / "settings.md").read_text()
    sections: dict[str, type[Section]] = {
        "": Settings,
        "agent.": Agent,
        "availableResources.": Available,
        "instrumentation.": Instrumentation,
        "log.": Log,
        "reservedResources.": Reserved,
    }
    for prefix, kind in sections.items():
        leaves = [name for name, (_, reader) in _fields(kind).items() if reader]
        for name in (*leaves, *kind.LATER):
            assert f"`{prefix}{name}`" in page, prefix + name
