"""What `-o json` prints is what it printed before; fields may be added."""

from __future__ import annotations

import json

from tests.unit.report.commands import GOLDEN, documents


def test_every_document_has_what_the_golden_one_has() -> None:
    printed = {name: json.loads(text) for name, text in documents().items()}
    golden = {path.stem: json.loads(path.read_text()) for path in GOLDEN.iterdir()}
    assert printed.keys() == golden.keys()
    for name, document in printed.items():
        assert document == golden[name], name
