"""Captures of real kernels on machines with several NUMA nodes read as they did when taken.

`tests/guest` boots these machines, and says how to take their captures anew.
"""

from __future__ import annotations

import pytest

from tests.guest import golden
from tests.guest.hardware import GUESTS


@pytest.mark.parametrize("name", GUESTS)
def test_a_guests_capture_reads_as_the_golden_tree_and_document(name: str) -> None:
    capture, tree, document = golden.files(name)
    assert golden.shown(capture, "table") == tree.read_text()
    assert golden.shown(capture, "json") == document.read_text()


def test_there_is_a_capture_of_each_guest_and_of_nothing_else() -> None:
    triples = {path for name in GUESTS for path in golden.files(name)}
    assert {*golden.FOLDER.iterdir()} == triples
