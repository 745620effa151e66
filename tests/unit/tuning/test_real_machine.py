"""The tuner on the interrupts and idle states of this machine, which are put back."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from nri_policy.cli import main
from nri_policy.hardware.interrupts import read_interrupts
from nri_policy.tuning.decision import ItemState, ReadFailure
from nri_policy.tuning.files import KernelFiles, boot_id
from nri_policy.tuning.interrupts import item_of
from nri_policy.tuning.items import Desired, Item, Kind, Wish
from nri_policy.tuning.tuner import Tuner
from nri_policy.tuning.tuner_journal import TunerJournal

ROOT = Path("/")
IDLE = {
    Item(Kind.CPU, "0", "resume_latency"): "n/a",
    Item(Kind.CPU, "0", "state1"): "1",
}
CALLS = ("open", "write", "fsync", "replace", "close")  # of the system, by the tuner


def affinities() -> dict[int, str]:
    return {each.number: str(each.affinity) for each in read_interrupts(ROOT).each}


@pytest.fixture
def movable() -> Iterator[Desired]:
    """Wishes for one CPU of each interrupt that has several, if they can be written."""
    before, files = read_interrupts(ROOT).each, KernelFiles(ROOT)
    wishes = {
        item_of(each.number): Wish(str(each.affinity.first(1)))
        for each in before
        if len(each.affinity) > 1
    }
    if os.geteuid() != 0 or not wishes or not os.access("/proc/irq/default_smp_affinity", os.W_OK):
        pytest.skip("needs root, and interrupts that can be moved")
    yield wishes
    for each in before:
        if files.read(item_of(each.number)) != str(each.affinity):
            with suppress(OSError):
                files.write(item_of(each.number), str(each.affinity))


def test_interrupts_are_moved_and_put_back(movable: Desired, tmp_path: Path) -> None:
    before = affinities()
    journal = TunerJournal(tmp_path, boot_id(ROOT))
    tuner = Tuner(KernelFiles(ROOT), journal)
    tuner.set(movable, repair=False)
    for each in tuner.list_tunables():
        if each.state is ItemState.OK:
            assert each.found == each.wished
        else:  # a queue of a disk, which the kernel manages
            assert (each.state, each.why[:11]) == (ItemState.UNSUPPORTED, "not movable")
    assert affinities() != before or not any(
        each.state is ItemState.OK for each in tuner.list_tunables()
    )
    tuner.set({}, repair=False)
    assert affinities() == before
    assert journal.entries == {}


def test_idle_states_are_set_and_given_back(tmp_path: Path) -> None:
    files = KernelFiles(ROOT)
    before = {item: files.read(item) for item in IDLE}
    tuner = Tuner(files, TunerJournal(tmp_path, boot_id(ROOT)))
    if os.geteuid() != 0 or any(isinstance(each, ReadFailure) for each in before.values()):
        pytest.skip("needs root, and a machine with idle states")
    try:
        tuner.set({item: Wish(value) for item, value in IDLE.items()}, repair=False)
        assert {each.state for each in tuner.list_tunables()} == {ItemState.OK}
        assert {item: files.read(item) for item in IDLE} == IDLE
    finally:
        tuner.set({}, repair=False)
    assert {item: files.read(item) for item in IDLE} == before


@pytest.fixture
def originals() -> Iterator[dict[Item, str]]:
    """The items that can be set here, with their values, which they have again afterwards."""
    files, found = KernelFiles(ROOT), dict[Item, str]()
    several = (each for each in read_interrupts(ROOT).each if len(each.affinity) > 1)
    for item in (*(item_of(each.number) for each in several), *IDLE):
        value = files.read(item)
        if isinstance(value, str) and (item.kind is Kind.CPU or not found):
            with suppress(OSError):  # as of an interrupt that the kernel manages
                files.write(item, value)
                found[item] = value
    if not found:
        pytest.skip("needs root, and interrupts or idle states that can be set")
    yield found
    for item, value in found.items():
        files.write(item, value)


def run_until(step: int, run: Callable[[], None]) -> bool:
    """Run in a process that is killed before its *step*-th call; return whether it was."""
    if child := os.fork():
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
        return os.WIFSIGNALED(status)
    left = step

    def counted(call: Callable[..., Any]) -> Callable[..., Any]:
        def before(*given: Any, **options: Any) -> Any:
            nonlocal left
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)
            left -= 1
            return call(*given, **options)

        return before

    code = 1
    try:
        for name in CALLS:
            setattr(os, name, counted(getattr(os, name)))
        run()
        code = 0
    finally:
        os._exit(code)


def test_wherever_the_tuner_is_killed_the_originals_come_back(
    originals: dict[Item, str], tmp_path: Path
) -> None:
    files = KernelFiles(ROOT)
    wishes = {
        item: Wish(IDLE.get(item) or value.partition("-")[0].partition(",")[0])
        for item, value in originals.items()
    }

    def set_and_restore() -> None:
        tuner = Tuner(KernelFiles(ROOT), TunerJournal(tmp_path, boot_id(ROOT)))
        tuner.set(wishes, repair=False)
        tuner.set({}, repair=False)

    step, changed = 0, 0
    while run_until(step, set_and_restore):
        found = {item: files.read(item) for item in originals}
        journal = TunerJournal(tmp_path, boot_id(ROOT))
        other = {item for item, value in found.items() if value != originals[item]}
        assert other <= journal.entries.keys(), f"step {step}"
        CliRunner().invoke(main, ["restore", "--journal-dir", str(tmp_path)])
        assert {item: files.read(item) for item in originals} == originals, f"step {step}"
        assert not TunerJournal(tmp_path, boot_id(ROOT)).entries
        step, changed = step + 1, changed + bool(other)
    assert changed > len(originals)
