"""What `-o json` prints has the fields of the golden documents, no more and no fewer.

A field may be added, with golden documents taken anew, but not removed. What a machine and its
settings come to is the same to the letter. What a daemon says is compared by its fields alone:
where containers end up is what other tests are about, and they go on moving while it is asked.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from tests.unit.report.commands import GOLDEN, documents
from tools.report_schema import DOCUMENTS


def command(name: str) -> str:
    """Return the command that a golden document is of."""
    name = name.removeprefix("small-").removeprefix("tiered-")
    return next(each for each in DOCUMENTS if name.startswith(each.replace(" ", "-")))


def fields(document: Any, path: str = "") -> Iterator[str]:
    """Yield the paths of all fields; a container's name and a place in a list are a star."""
    if isinstance(document, dict):
        for key, value in document.items():
            inner = f"{path}.{'*' if '/' in key else key}"
            yield inner
            yield from fields(value, inner)
    elif isinstance(document, list):
        for value in document:
            yield from fields(value, f"{path}.*")


def by_command(named: Mapping[str, Any]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = defaultdict(set)
    for name, document in named.items():
        # a pod is explained by a list, a container without
        shown = [document] if isinstance(document, dict) else document
        found[command(name)] |= {*fields(shown)}
    return found


def test_every_document_has_the_fields_of_the_golden_one() -> None:
    """`python -m tests.unit.report.commands` takes them anew if a field was added."""
    printed = {name: json.loads(text) for name, text in documents().items()}
    golden = {path.stem: json.loads(path.read_text()) for path in GOLDEN.iterdir()}
    assert printed.keys() == golden.keys()
    for name, document in printed.items():
        if name.startswith(("topology", "config-check")):
            assert document == golden[name], name
        before, now = ({*fields(each)} for each in (golden[name], document))
        assert before == now, (name, before ^ now)


def test_a_field_that_is_renamed_is_missed() -> None:
    golden = json.loads((GOLDEN / "small-containers.json").read_text())
    text = json.dumps(golden).replace('"shared_milli"', '"shared"')
    before, now = (by_command({"small-containers": d}) for d in (golden, json.loads(text)))
    assert before["containers"] - now["containers"] == {".*.*.shared_milli"}
