"""The whole daemon in one deterministic loop: fixed histories, and faults that they must find.

In processes of their own, which hash strings alike: a seed plays the same history in each.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SEEDS = 15  # histories in one test


def simulate(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.loop", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("first", range(1, 151, SEEDS))
def test_what_is_decided_comes_into_force_whatever_happens(first: int) -> None:
    ended = simulate("--seeds", str(SEEDS), "--first", str(first))
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_the_same_seed_plays_the_same_history() -> None:
    first, second = (simulate("--seeds", "1", "--first", "7", "--history") for _ in range(2))
    assert first.returncode == 0, first.stdout + first.stderr
    assert first.stdout.splitlines()[:-1] == second.stdout.splitlines()[:-1]
    assert len(first.stdout.splitlines()) > 50


def test_the_histories_find_known_faults() -> None:
    ended = simulate("--mutants", "--seeds", "100")
    assert ended.returncode == 0, ended.stdout + ended.stderr
