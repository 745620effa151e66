"""The idle states of this machine's first CPU, set and given back, where it has any."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nri_policy.foundation.clock import Clock
from nri_policy.tuning.decision import ItemState
from nri_policy.tuning.files import KernelFiles
from nri_policy.tuning.items import Item, Kind, Wish
from nri_policy.tuning.journal import TunerJournal
from nri_policy.tuning.tuner import Tuner

CPU = Path("/sys/devices/system/cpu/cpu0")
LATENCY = CPU / "power/pm_qos_resume_latency_us"
DISABLE = CPU / "cpuidle/state1/disable"

pytestmark = pytest.mark.skipif(
    not (os.access(LATENCY, os.W_OK) and os.access(DISABLE, os.W_OK)),
    reason="needs a machine with idle states, and the right to set them",
)


def test_idle_states_are_set_and_given_back(tmp_path: Path) -> None:
    before = LATENCY.read_text(), DISABLE.read_text()
    files, journal = KernelFiles(Path("/")), TunerJournal(tmp_path, "boot")
    tuner = Tuner(files, journal, clock=Clock(now=lambda: 0.0, date=lambda: 0.0))
    desired = {
        Item(Kind.CPU, "0", "resume_latency"): Wish("n/a"),
        Item(Kind.CPU, "0", "state1"): Wish("1"),
    }
    try:
        tuner.set(desired, repair=False)
        assert {each.state for each in tuner.list_tunables()} == {ItemState.OK}
        assert (LATENCY.read_text(), DISABLE.read_text()) == ("n/a\n", "1\n")
    finally:
        tuner.set({}, repair=False)
    assert (LATENCY.read_text(), DISABLE.read_text()) == before
