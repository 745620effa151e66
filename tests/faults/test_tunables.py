"""A short fault campaign of the tuner; `make faults` runs a long one."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tests.faults.tunables import play

SEEDS = 30


def test_whatever_strikes_the_tuner_values_are_in_force_or_listed_and_given_back(
    tmp_path: Path,
) -> None:
    counts = Counter[str]()
    for seed in range(SEEDS):
        folder = tmp_path / str(seed)
        folder.mkdir()
        try:
            counts += play(seed, folder)
        except AssertionError as error:
            error.add_note(f"seed {seed}")
            raise
    assert all(counts[name] > SEEDS for name in ("kill_tuner", "fill_disk", "plug", "interfere"))
    assert counts["stricter originals"] > SEEDS
    assert counts["items checked"] > 100 * SEEDS
