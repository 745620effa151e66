"""The tuner's journal and writes, on files in a folder."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from nri_policy.foundation.clock import Clock
from nri_policy.tuning.decision import ItemState
from nri_policy.tuning.items import Desired, Item, Kind, Wish
from nri_policy.tuning.tuner import LOOK, Tuner
from nri_policy.tuning.tuner_journal import FILE, TunerJournal
from tests.support.tunables import BOOT, StrictFiles, irq, make_host

ITEM = irq(24)


class Killed(BaseException):
    """The process ends at once."""


def wishes(**values: str) -> Desired:
    """Return wishes for interrupts, as n24="0"."""
    return {irq(name.removeprefix("n")): Wish(value, ("ns/p/c",)) for name, value in values.items()}


class World:
    """A host with one tuner, which can be killed and started again."""

    def __init__(self, folder: Path, **files: Any) -> None:
        self.root = make_host(folder / "host", {24: "0-3", 25: "2", 26: "1-2"})
        self.state = folder / "state"
        self.state.mkdir()
        self.time = 0.0
        self.fail: OSError | None = None  # of the next write
        self.refused: dict[Item, int] = {}  # the error of each write of an item
        self.kill = ""  # where the next write kills the tuner
        self.files = StrictFiles(self.root, before=self._before, after=self._after, **files)
        self.start()

    def start(self, boot: str = BOOT) -> None:
        self.journal = TunerJournal(self.state, boot)
        self.tuner = Tuner(
            self.files, self.journal, clock=Clock(now=lambda: self.time, date=lambda: 1e9)
        )

    def _before(self, item: Item, _value: str) -> None:
        if (code := self.refused.get(item)) is not None:
            raise OSError(code, os.strerror(code))
        if self.fail is not None:
            error, self.fail = self.fail, None
            raise error
        if self.kill == "before":
            raise Killed

    def _after(self, _item: Item, _value: str) -> None:
        if self.kill == "after":
            raise Killed

    def set(self, desired: Desired, *, repair: bool = False) -> None:
        self.tuner.set(desired, repair=repair)

    def kill_at(self, where: str, desired: Desired) -> None:
        self.kill = where
        with suppress(Killed):
            self.set(desired)
        self.kill = ""
        self.start()

    def value(self, number: int = 24) -> str:
        return str(self.files.read(irq(number)))

    def state_of(self, number: int = 24) -> tuple[ItemState, str]:
        (found,) = [each for each in self.tuner.list_tunables() if each.item == irq(number)]
        return found.state, found.why


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_an_item_is_written_while_it_is_wished_and_restored_then(world: World) -> None:
    world.set(wishes(n24="1", ndefault="0"))
    assert (world.value(), world.files.text(irq("default"))) == ("1", "00000001")
    assert {each.original for each in world.tuner.list_tunables()} == {"0-3"}
    world.set({})
    assert (world.value(), world.files.text(irq("default"))) == ("0-3", "0000000f")
    assert world.tuner.list_tunables() == ()
    assert world.journal.entries == {}


GOVERNOR = Item(Kind.CPUFREQ, "0", "governor")


def test_settings_are_in_force_as_a_whole_or_not_at_all(world: World) -> None:
    path = world.root / "sys/devices/system/cpu/cpufreq/policy0/scaling_governor"
    path.parent.mkdir(parents=True)
    path.write_text("powersave\n")
    world.set(wishes(n24="1"))
    new = {**wishes(n24="2", n25="0"), GOVERNOR: Wish("turbo", ("cpuClasses",))}
    world.refused = {GOVERNOR: errno.EINVAL}
    why = "cpuClasses: cpufreq/0/governor cannot be 'turbo': EINVAL Invalid argument"
    assert world.tuner.try_settings(new, repair=False) == why
    assert (world.value(24), world.value(25)) == ("1", "2")
    assert {each.item for each in world.tuner.list_tunables()} == {ITEM}
    world.start()  # the values before are known from the journal
    assert world.tuner.try_settings(new, repair=False) == why
    assert (world.value(24), world.value(25)) == ("1", "2")
    world.refused = {GOVERNOR: errno.EBUSY}
    assert not world.tuner.try_settings(new, repair=False), "it is tried again"
    assert (world.value(24), world.value(25)) == ("2", "0")


def test_what_could_not_be_set_before_refuses_no_settings(world: World) -> None:
    world.refused = {GOVERNOR: errno.EINVAL, irq(25): errno.EINVAL}
    path = world.root / "sys/devices/system/cpu/cpufreq/policy0/scaling_governor"
    path.parent.mkdir(parents=True)
    path.write_text("powersave\n")
    old = {GOVERNOR: Wish("turbo", ("cpuClasses",))}
    world.set(old)
    assert not world.tuner.try_settings({**old, **wishes(n24="2", n25="1")}, repair=False)
    assert world.value(24) == "2"


def test_what_has_its_wished_value_is_not_written(world: World) -> None:
    world.set(wishes(n25="2"))
    assert world.files.writes == []
    assert world.state_of(25) == (ItemState.OK, "")
    assert world.journal.entries == {}


LATENCY = Item(Kind.CPU, "0", "resume_latency")


@pytest.fixture
def latency(world: World) -> Path:
    path = world.root / "sys/devices/system/cpu/cpu0/power/pm_qos_resume_latency_us"
    path.parent.mkdir(parents=True)
    return path


@pytest.mark.parametrize(
    ("original", "wished"), [("2", "10"), ("2", "0"), ("n/a", "1"), ("n/a", "0")]
)
def test_a_latency_limit_never_loosens_the_original(
    world: World, latency: Path, original: str, wished: str
) -> None:
    latency.write_text(f"{original}\n")
    world.set({LATENCY: Wish(wished)})
    (found,) = world.tuner.list_tunables()
    assert (found.state, found.wished, found.found) == (ItemState.OK, wished, original)
    assert found.why == f"the original limit, {original}, is stricter"
    assert latency.read_text() == f"{original}\n"
    assert world.journal.entries == {}


def test_a_class_with_a_looser_limit_than_the_original_gives_that_back(
    world: World, latency: Path
) -> None:
    latency.write_text("10\n")
    world.set({LATENCY: Wish("2")})
    assert latency.read_text() == "2"
    world.set({LATENCY: Wish("20")})
    assert latency.read_text() == "10"
    assert world.journal.entries == {}
    (found,) = world.tuner.list_tunables()
    assert (found.state, found.why) == (ItemState.OK, "the original limit, 10, is stricter")


def test_a_limit_that_is_stricter_than_the_original_is_set(world: World, latency: Path) -> None:
    for original, wished in (("0", "10"), ("10", "2"), ("2", "n/a"), ("0", "n/a")):
        latency.write_text(f"{original}\n")
        world.set({LATENCY: Wish(wished)})
        assert latency.read_text() == wished
        world.set({})
        assert latency.read_text() == original


def test_nothing_is_written_or_restored_before_wishes_are_known(world: World) -> None:
    world.set(wishes(n24="1"))
    world.start()
    world.tuner.look()
    assert world.value() == "1"
    assert [each.original for each in world.tuner.list_tunables()] == ["0-3"]


def test_an_entry_is_on_the_disk_before_the_first_write(world: World) -> None:
    seen = []
    world.files.before = lambda *_: seen.append((world.state / FILE).read_text())
    world.set(wishes(n24="1"))
    assert '"original": "0-3"' in seen[0]


def test_nothing_is_written_while_the_journal_cannot_be(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    world.set(wishes(n24="1"))
    why = "the journal cannot be written: No space left on device"
    assert (world.value(), world.state_of()) == ("0-3", (ItemState.PENDING, why))
    assert world.journal.entries == {}
    monkeypatch.undo()
    world.time = 1.0
    world.tuner.look()
    assert (world.value(), world.state_of()) == ("1", (ItemState.OK, ""))


def test_an_original_is_restored_although_the_disk_is_full(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.set(wishes(n24="1"))

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    world.set({})
    assert world.value() == "0-3"
    monkeypatch.undo()
    world.tuner.look()
    assert TunerJournal(world.state, BOOT).entries == {}


def test_a_reboot_drops_the_journal(world: World) -> None:
    world.set(wishes(n24="1"))
    world.start(boot="another")
    assert world.journal.entries == {}
    world.set({})
    assert world.value() == "1"  # it may be the kernel's value after the reboot


def test_a_damaged_journal_is_kept_aside(world: World) -> None:
    world.set(wishes(n24="1"))
    path = world.state / FILE
    path.write_text(path.read_text()[:-9])
    damaged = path.read_text()
    world.start()
    assert world.journal.entries == {}
    assert path.with_suffix(".damaged").read_text() == damaged


def test_a_journal_with_what_is_not_on_the_list_is_damaged(world: World) -> None:
    world.set(wishes(n24="1"))
    path = world.state / FILE
    path.write_text(path.read_text().replace('"id": "24"', '"id": "../../24"'))
    world.start()
    assert world.journal.entries == {}


def test_a_foreign_value_is_left_and_reported(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.set(wishes(n24="1"))
    world.files.write(ITEM, "3")
    world.tuner.look()
    assert world.state_of() == (ItemState.CONTESTED, "something else has set it to 3")
    world.set({})
    assert (world.value(), world.journal.entries) == ("3", {})
    (line,) = [each for each in caplog.records if each.message == "tunables-left"]
    assert vars(line)["items"] == "irq/24/affinity is 3, was 0-3"


def test_a_contested_item_is_written_again_where_the_audit_repairs(world: World) -> None:
    world.set(wishes(n24="1"))
    for _ in range(3):
        world.files.write(ITEM, "3")
        world.set(wishes(n24="1"), repair=True)
        assert world.value() == "1"
    world.files.write(ITEM, "3")
    world.set(wishes(n24="1"), repair=True)
    assert (world.value(), world.state_of()[0]) == ("3", ItemState.CONTESTED)


def test_a_failed_write_is_pending_and_tried_again(world: World) -> None:
    world.fail = OSError(errno.EBUSY, "Device or resource busy")
    world.set(wishes(n24="1"))
    assert world.state_of() == (ItemState.PENDING, "EBUSY Device or resource busy")
    assert world.tuner.next_look == 1.0
    world.time = 1.0
    world.tuner.look()
    assert (world.value(), world.tuner.next_look) == ("1", LOOK)
    writes = [(each.result, each.count) for each in world.tuner.list_writes()]
    assert writes == [("failed", 1), ("ok", 1)]


def test_another_value_is_tried_at_once(world: World) -> None:
    world.fail = OSError(errno.EBUSY, "Device or resource busy")
    world.set(wishes(n24="1"))
    world.set(wishes(n24="2"))
    assert world.value() == "2"


@pytest.mark.parametrize("code", [errno.EPERM, errno.EIO, errno.EACCES, errno.EROFS])
def test_a_managed_interrupt_is_not_movable_and_tried_once(world: World, code: int) -> None:
    world.fail = OSError(code, "refused")
    world.set(wishes(n24="1"))
    assert world.state_of() == (ItemState.UNSUPPORTED, f"not movable: {errno.errorcode[code]}")
    world.time = 1e6
    world.tuner.look()
    assert world.files.writes == []
    world.set({})
    assert world.journal.entries == {}


def test_what_is_not_there_is_unsupported_and_forgotten_when_it_goes(world: World) -> None:
    world.set(wishes(n24="1", n99="1"))
    assert world.state_of(99) == (ItemState.UNSUPPORTED, "No such file or directory")
    (world.root / "proc/irq/24/smp_affinity_list").unlink()
    world.set({})
    assert world.journal.entries == {}


def test_all_items_are_looked_at_every_minute(world: World) -> None:
    world.set(wishes(n24="1"))
    world.time = 20.0
    assert world.tuner.next_look == LOOK - 20.0


STEPS = ("one", "two", "none", "fails", "killed before", "killed after", "restart")


def run_history(world: World, history: tuple[str, ...]) -> str | None:
    """Carry out a history; return the value that is wished at its end."""
    wish: str | None = None
    for each in history:
        world.time += 100.0
        if each in {"one", "two", "none"}:
            wish = {"one": "1", "two": "2", "none": None}[each]
        desired = {} if wish is None else wishes(n24=wish)
        if each == "fails":
            wish = "0"
            world.fail = OSError(errno.EBUSY, "busy")
            world.set(wishes(n24="0"))
            world.fail = None
        elif each.startswith("killed"):
            wish = "3"
            world.kill_at(each.split()[1], wishes(n24="3"))
        elif each == "restart":
            world.start()
        else:
            world.set(desired)
    return wish


@pytest.mark.parametrize("first", STEPS)
def test_every_short_history_ends_with_the_wish_and_then_with_the_original(
    tmp_path: Path, first: str
) -> None:
    for number, rest in enumerate(product(STEPS, repeat=3)):
        folder = tmp_path / str(number)
        folder.mkdir()
        world = World(folder)
        wish = run_history(world, (first, *rest))
        world.time += 100.0
        world.set({} if wish is None else wishes(n24=wish))
        assert world.value() == (wish or "0-3"), (first, *rest)
        world.set({})
        assert (world.value(), world.journal.entries) == ("0-3", {}), (first, *rest)
