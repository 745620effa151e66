"""Benchmarks that no test runs break unseen: each is run here, with as little as it takes."""

from __future__ import annotations

import logging
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from benchmarks import group_quality
from benchmarks.__main__ import NAMES
from nri_policy.nri.session import Session
from tests.support import busy_node

PROJECT = Path(__file__).parent.parent.parent
SMALL = {16: busy_node.MACHINES[16]}
TYPICAL = (16, 2)  # CPUs and containers
PLAYED = "jobs:9 for:1d; small pods:1 gpu:1 runs:1h; wide pods:2-4 gpu:8 preferred:rack runs:2h"

# by benchmark, by module, the constants with which it takes the least
TINY: dict[str, dict[str, dict[str, Any]]] = {
    "affinity": {"affinity": {"ROUNDS": 20, "CONTAINERS": 30}},
    "bursts": {"bursts": {"BURSTS": 1, "PODS": 3, "SEEDS": 1, "NODES": (1,)}},
    "claims": {  # the processes of `goals`, too
        "claims": {"RUNS": 1, "SETTLE": 0.0, "IDLE": 0.01, "TYPICAL": TYPICAL},
        "requests": {"ROUNDS": 2},
        "startup": {"_compiled": lambda: {**os.environ}},
    },
    "cluster": {"cluster": {"SIZES": (64, 96), "POD_SETS_ON": 64}},
    "cluster_files": {"cluster_files": {"NODES": 64, "PODS": 64}},
    "cluster_week": {"cluster_week": {"SEEDS": 1, "WEEK": PLAYED, "MANY": PLAYED}},
    "decisions": {
        "decisions": {"ROUNDS": 2, "COUNTS": (2,), "TYPICAL": TYPICAL, "LARGEST": TYPICAL},
        "table": {"BATCHES": 1},
        "busy_node": {"MACHINES": SMALL},
    },
    "extender": {"extender": {"NODES": 16, "CANDIDATES": 2, "QUESTIONS": 12}},
    "goals": {
        "goals": {"RUNS": 1, "TYPICAL": TYPICAL, "_processes": lambda *_: [(0.0, 0.0)]},
        "startup": {"CPUS": 16, "_compiled": lambda: {**os.environ}},
        "requests": {"ROUNDS": 2},
        "decisions": {"ROUNDS": 2},
    },
    "group_quality": {
        "group_quality": {"COUNTED": [(*each, 8) for *each, _ in group_quality.COUNTED]}
    },
    "making_way": {
        "making_way": {"CPUS": 16, "RUNNING": 12, "LARGEST": 4, "ROUNDS": 8},
        "table": {"BATCHES": 1},
    },
    "memory": {"memory": {"RUNNING": 3, "ROUNDS": 2}},
    "nri_round_trip": {"nri_round_trip": {"ROUNDS": 10}},
    "partitions": {
        "partitions": {"ROUNDS": 1, "SHARERS": (0, 2), "CREATING": 0.01, "REST": 0.01},
    },
    "placement_groups": {"placement_groups": {"NODES": 50, "GROUPS": ((2, 3),)}},
    "profile": {"profile": {"TYPICAL": TYPICAL, "_ROUNDS": 3}},
    "quality": {"quality": {"MACHINES": SMALL, "SEEDS": range(1), "EVENTS": 9}},
    "requests": {"requests": {"ROUNDS": 2, "BATCHES": 1, "SIZES": (TYPICAL,)}},
    "resource_claims": {"resource_claims": {"HELD": 1, "ROUNDS": 2, "TYPICAL": TYPICAL}},
    "startup": {
        "startup": {"CPUS": 16, "STARTS": 1, "_compiled": lambda: {**os.environ}},
        "busy_node": {"MACHINES": SMALL},
    },
    "store": {"store": {"ROUNDS": 2, "MACHINES": (("core:4", 2),)}},
    "synchronize": {"synchronize": {"REPEATS": 1, "COUNTS": (2,)}},
}
# what takes programs of others, root or a compiler: only that they can be imported is tested
OTHERS = {
    "apply_to_running",
    "live_bursts",
    "live_cluster",
    "local_memory",
    "neighbours",
    "partitions_guest",
    "peer",
    "peer_quality",
    "pod_start",
}


def test_each_benchmark_is_run_or_takes_what_tests_lack() -> None:
    assert TINY.keys() | OTHERS == {*NAMES}
    for name in OTHERS:
        assert import_module(f"benchmarks.{name}").main


@pytest.mark.parametrize("name", TINY)
def test_a_benchmark_runs_and_prints_something(
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    # A busy disk can take seconds. Containers that come while a daemon registers again go past it.
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Session, "may_register", False)
    monkeypatch.setenv("PYTHONPATH", str(PROJECT))
    monkeypatch.setattr(sys, "argv", ["benchmarks"])
    for module, constants in TINY[name].items():
        home = busy_node if module == "busy_node" else import_module(f"benchmarks.{module}")
        for constant, value in constants.items():
            assert hasattr(home, constant)
            monkeypatch.setattr(home, constant, value)
    try:
        import_module(f"benchmarks.{name}").main()
    finally:
        logging.disable(logging.NOTSET)  # some turn it off
    assert capsys.readouterr().out.strip()
