"""The tuner on the interrupts of this machine; their affinities are put back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from click.testing import CliRunner

from nri_policy.cli import main
from nri_policy.hardware.interrupts import read_interrupts
from nri_policy.tuning.decision import ItemState
from nri_policy.tuning.files import KernelFiles, boot_id
from nri_policy.tuning.interrupts import item_of
from nri_policy.tuning.items import Desired, Wish
from nri_policy.tuning.journal import TunerJournal
from nri_policy.tuning.tuner import Tuner

ROOT = Path("/")
_KILLED = """
import os, signal, sys, time
from pathlib import Path
from nri_policy.tuning.files import KernelFiles, boot_id
from nri_policy.tuning.items import Wish
from nri_policy.tuning.interrupts import item_of
from nri_policy.tuning.journal import TunerJournal
from nri_policy.tuning.tuner import Tuner
class Files(KernelFiles):
    def write(self, item, value):
        super().write(item, value)
        os.kill(os.getpid(), signal.SIGKILL)
journal = TunerJournal(Path(sys.argv[1]), boot_id(Path("/")))
tuner = Tuner(Files(Path("/")), journal)
tuner.set({item_of(int(sys.argv[2])): Wish(sys.argv[3])}, repair=False)
"""


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


def test_restore_puts_them_back_after_the_tuner_was_killed(
    movable: Desired, tmp_path: Path
) -> None:
    before = affinities()
    files = KernelFiles(ROOT)
    for item, wish in movable.items():
        with suppress(OSError):
            files.write(item, wish.value)
            files.write(item, before[int(item.id)])
            break
    else:
        pytest.skip("no interrupt can be moved here")
    done = subprocess.run(
        [sys.executable, "-c", _KILLED, str(tmp_path), item.id, wish.value], check=False
    )
    assert done.returncode == -signal.SIGKILL
    assert affinities() == before | {int(item.id): wish.value}
    result = CliRunner().invoke(main, ["restore", "--journal-dir", str(tmp_path)])
    assert result.output == "1 tunable restored or left alone.\n"
    assert affinities() == before
