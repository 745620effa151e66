"""Nodes as they are read from documents."""

from __future__ import annotations

import sys

from nri_policy.cluster.objects.node import read_node
from tests.unit.cluster.written import node


def test_reading_nodes_takes_no_references_of_constants() -> None:
    """Python 3.11 counts those of True, and aborts once none is left; later ones do not."""
    document, before = node("a", cpu=4, pods=9), sys.getrefcount(True)
    for _ in range(1000):
        read_node(document, "")
    assert sys.getrefcount(True) > before - 100
