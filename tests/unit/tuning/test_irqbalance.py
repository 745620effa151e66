"""What the tuner has irqbalance leave alone, at a socket as irqbalance's and at a real one."""

from __future__ import annotations

import errno
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from nri_policy.foundation.clock import Clock
from nri_policy.tuning.decision import ItemState
from nri_policy.tuning.files import KernelFiles
from nri_policy.tuning.irqbalance import list_sockets, read_banned, write_banned
from nri_policy.tuning.items import Item, Kind, Wish
from nri_policy.tuning.protocol import TunerRequest, WishedItem, parse_request
from nri_policy.tuning.tuner import LOOK, Tuner
from nri_policy.tuning.tuner_journal import TunerJournal
from tests.support.fake_irqbalance import FakeIrqbalance
from tests.support.patience import HANGS
from tests.support.tunables import BOOT, StrictFiles, irq, make_host

ITEM = Item(Kind.IRQBALANCE, "4711", "banned")


class World:
    """A host with a tuner, whose time stands still."""

    def __init__(self, folder: Path) -> None:
        self.root = make_host(folder / "host", {24: "0-3", 25: "2", 26: "1-2"})
        self.files = StrictFiles(self.root)
        self.state = folder
        self.now = 0.0
        self.start()

    def start(self) -> None:
        self.journal = TunerJournal(self.state, BOOT)
        self.tuner = Tuner(
            self.files, self.journal, clock=Clock(now=lambda: self.now, date=lambda: 1e9)
        )

    def set(self, **wishes: str) -> None:
        desired = {irq(name.removeprefix("n")): Wish(value) for name, value in wishes.items()}
        self.tuner.set(desired, repair=False)

    def look(self) -> None:
        self.now += LOOK + 1
        self.tuner.look()

    def states(self) -> dict[str, ItemState]:
        return {str(each.item): each.state for each in self.tuner.list_tunables()}

    def value(self, number: int) -> str:
        return str(self.files.read(irq(number)))


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short name: that of a socket has at most 107 characters."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


@pytest.fixture
def world(folder: Path) -> World:
    return World(folder)


def test_irqbalance_moves_no_interrupt_that_is_set_until_it_is_given_back(world: World) -> None:
    with FakeIrqbalance(world.root, banned=[26]) as balancer:
        world.set(n24="1")
        balancer.balance("3")
        assert [world.value(each) for each in (24, 25, 26)] == ["1", "3", "1-2"]
        assert balancer.banned == [24, 26], "its own bans stay"
        world.look()
        assert {*world.states().values()} == {ItemState.OK}
        world.set(n24="1", n25="0")
        assert balancer.banned == [24, 25, 26]
        world.set()
        assert balancer.banned == [26]
        assert world.value(24) == "0-3"
        assert world.journal.entries == {}


def test_irqbalance_learns_of_an_interrupt_before_it_is_moved(world: World) -> None:
    with FakeIrqbalance(world.root) as balancer:
        world.files.before = lambda item, _: balancer.balance("3") if item == irq(24) else None
        world.set(n24="1")
        assert (world.value(24), balancer.banned) == ("1", [24])
        assert world.journal.entries[irq(24)].original == "0-3"


def test_a_tuner_that_was_killed_knows_what_irqbalance_had_banned_itself(world: World) -> None:
    with FakeIrqbalance(world.root, banned=[26]) as balancer:
        world.set(n24="1")
        world.start()
        world.set()
        assert balancer.banned == [26]


def test_an_irqbalance_that_starts_later_or_again_is_told(world: World) -> None:
    world.set(n24="1")
    assert [*world.states()] == ["irq/24/affinity"]
    with FakeIrqbalance(world.root) as first:
        world.look()
        assert first.banned == [24]
    with FakeIrqbalance(world.root, process=4712) as second:
        world.look()
        assert second.banned == [24]
        assert {*world.states()} == {"irq/24/affinity", "irqbalance/4712/banned"}
        second.die()  # its socket stays
        world.look()
        assert [*world.states()] == ["irq/24/affinity"]
        world.set()
        assert world.journal.entries == {}


def test_a_list_that_something_else_has_changed_is_contested(world: World) -> None:
    with FakeIrqbalance(world.root) as balancer:
        world.set(n24="1")
        balancer.banned = [25]
        world.look()
        assert world.states()[str(ITEM)] is ItemState.CONTESTED
        world.set()
        assert balancer.banned == [25]


def test_an_irqbalance_that_does_not_answer_is_asked_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nri_policy.tuning.irqbalance._PATIENCE", 0.01)
    with FakeIrqbalance(world.root) as balancer:
        balancer.path.rename(aside := balancer.path.with_suffix(".aside"))
        with socket.socket(socket.AF_UNIX) as silent:
            silent.bind(str(balancer.path))
            silent.listen(8)
            world.set(n24="1")
            assert world.value(24) == "1", "interrupts do not wait for it"
            assert world.states()[str(ITEM)] is ItemState.PENDING
        aside.replace(balancer.path)
        world.look()
        assert balancer.banned == [24]


def test_a_list_that_irqbalance_would_drop_is_not_sent(folder: Path) -> None:
    with FakeIrqbalance(folder, banned=[7]) as balancer:
        with pytest.raises(OSError, match="no list as long") as caught:
            write_banned(folder, "4711", ",".join(["12345"] * 3000))
        assert caught.value.errno == errno.E2BIG
        write_banned(folder, "4711", ",".join(["1234"] * 3200))
        assert balancer.banned == [1234] * 3200
        write_banned(folder, "4711", "")
        assert balancer.banned == []


def test_only_the_tuner_itself_says_what_irqbalance_leaves_alone() -> None:
    line = msgspec.json.encode(TunerRequest(wishes=(WishedItem(ITEM, "24"),)))
    with pytest.raises(ValueError, match="only the tuner itself sets irqbalance/4711/banned"):
        parse_request(line)


_ALONE = """
mount --bind "$1/proc/irq" /proc/irq && mount --bind "$1/proc/interrupts" /proc/interrupts &&
mount --bind "$1/run" /run && exec irqbalance --foreground --interval 1
"""
_DEVICES = (24, 25, 26)


class Alone:
    """A real irqbalance on files in a folder, with interrupts whose counters stand still."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._masks = {each: root / f"proc/irq/{each}/smp_affinity" for each in _DEVICES}
        self.mark()

    @property
    def process(self) -> str:
        (process,) = list_sockets(self.root)
        return process

    def mark(self) -> None:
        """Give all interrupts a mask that irqbalance never writes."""
        for path in self._masks.values():
            path.write_text("0\n")

    def wait(self) -> set[int]:
        """Wait until irqbalance has moved an interrupt; return those that it has moved."""
        deadline = time.monotonic() + HANGS
        while not self._moved():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        read_banned(self.root, self.process)  # it answers between two rounds
        return self._moved()

    def _moved(self) -> set[int]:
        return {number for number, path in self._masks.items() if path.read_text() != "0\n"}


@pytest.fixture
def alone(folder: Path) -> Iterator[Alone]:
    if os.geteuid() != 0 or not shutil.which("irqbalance"):
        pytest.skip("needs root and irqbalance")
    cpus = os.cpu_count() or 1
    root = make_host(folder / "host", dict.fromkeys(_DEVICES, "0-1"), cpus=cpus)
    lines = [" ".join(f"CPU{cpu}" for cpu in range(cpus))]
    lines += [f"{each}: {'0 ' * cpus} IO-APIC {each}-edge device{each}" for each in _DEVICES]
    (root / "proc/interrupts").write_text("\n".join(["  " + each for each in lines]) + "\n")
    (root / "run/irqbalance").mkdir(parents=True)
    found = Alone(root)
    program = ["unshare", "--mount", "sh", "-c", _ALONE, "sh", str(root)]
    with subprocess.Popen(program, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as it:
        try:
            deadline = time.monotonic() + HANGS
            while not [*list_sockets(root)] and it.poll() is None:
                assert time.monotonic() < deadline
                time.sleep(0.05)
            if it.poll() is not None:
                pytest.skip("irqbalance cannot run here: one CPU, or no right to mount")
            yield found
        finally:
            it.terminate()


def test_a_real_irqbalance_moves_all_interrupts_but_those_that_are_set(
    alone: Alone, folder: Path
) -> None:
    assert alone.wait() == {*_DEVICES}
    alone.mark()
    write_banned(alone.root, alone.process, "25")
    assert alone.wait() == {24, 26}
    alone.mark()
    files, journal = KernelFiles(alone.root), TunerJournal(folder, BOOT)
    tuner = Tuner(files, journal, clock=Clock(now=lambda: 0.0, date=lambda: 0.0))
    tuner.set({irq(24): Wish("1")}, repair=False)
    assert read_banned(alone.root, alone.process) == "24,25"
    assert alone.wait() == {26}
    alone.mark()
    tuner.set({}, repair=False)
    assert read_banned(alone.root, alone.process) == "25"
    assert alone.wait() == {24, 26}
