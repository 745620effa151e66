"""Bursts of pods on nodes with DaemonSets, behind a real kube-scheduler."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

from tests.cluster.burst_cluster import MODES, burst_cluster
from tests.support.burst import bursts

BURSTS, PODS, NODES = 3, 60, 8

Record = Callable[[str, object], None]


async def test_no_node_refuses_a_pod_that_we_bind_and_no_more_find_none_than_with_the_plugin(
    tmp_path: Path, record_property: Record
) -> None:
    """Without a `bindVerb` a node may choose another zone than the extender counted.

    Then it may refuse a pod, and who finds no node is a matter of chance: that is only counted.
    """
    found = {}
    for number, mode in enumerate(MODES):
        folder = tmp_path / str(number)
        folder.mkdir()
        async with burst_cluster(folder, mode, NODES) as cluster:
            found[mode] = await cluster.play(bursts(random.Random(5), BURSTS, PODS))
        record_property("figures", f"{mode}: {dict(found[mode])}")
    assert not found["choose and bind"]["refused by a node"]
    left = {mode: each["CPUs without a node"] for mode, each in found.items()}
    assert left["choose and bind"] <= left["plugin"]
