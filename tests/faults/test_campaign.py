"""A short fault campaign; `make faults` runs a long one."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from tests.faults.campaign import run

ROUNDS = int(os.environ.get("NRI_POLICY_ROUNDS", "30"))


def test_whatever_strikes_the_daemon_the_node_stays_in_order(tmp_path: Path) -> None:
    counts = asyncio.run(run(ROUNDS, 1, tmp_path))
    assert counts["lives"] > ROUNDS // 5
    assert counts["containers checked"] > ROUNDS
