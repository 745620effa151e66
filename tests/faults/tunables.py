"""The fault campaign of the tuner: what strikes while values are set and given back.

One seed is one history, in virtual time: wishes change, the tuner is killed at any step of a write,
the disk is full, the kernel refuses writes, something else changes values, interrupts come and go,
and either process starts again. After each round, once the faults are over, each item has its value
or is listed with a reason; after `restore` the files are as they were (spec classes.md §8).
"""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from random import Random
from unittest.mock import patch

from msgspec.structs import replace

from nri_policy.foundation.clock import Clock
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.foundation.glob import Glob
from nri_policy.hardware.interrupts import Interrupts, read_interrupts
from nri_policy.hardware.resctrl import RESCTRL
from nri_policy.tuning.decision import ItemState, ReadFailure
from nri_policy.tuning.files import KernelFiles
from nri_policy.tuning.interrupts import DEFAULT, Owner, find_interrupt_wishes, item_of
from nri_policy.tuning.irqbalance import join_numbers, split_numbers
from nri_policy.tuning.items import Desired, Item, Kind, Wish, is_looser
from nri_policy.tuning.protocol import Tunable
from nri_policy.tuning.tuner import Tuner
from nri_policy.tuning.tuner_journal import TunerJournal
from nri_policy.workload.annotation_values import InterruptChoice
from nri_policy.workload.annotations import Scope
from tests.support.fake_cpus import CPU, FakeCPUs, two_kinds
from tests.support.fake_resctrl import FakeResctrl
from tests.support.tunables import BOOT, make_host

ROUNDS = 12  # of one history
ONLINE = CPUSet.parse("0-3")
MANAGED = {21, 22}  # interrupts that the kernel keeps
PLUGGED = 30  # an interrupt that comes and goes
AFFINITIES = {
    4: "0-3",
    16: "1",
    17: "0,2-3",
    20: "0-3",
    21: "0",
    22: "1",
    23: "2-3",
}
ERRORS = (errno.EIO, errno.EBUSY, errno.EPERM, errno.EINVAL)
# The values that classes can have, by attribute; of frequencies, pairs.
FREQUENCIES = ((800_000, 2_400_000), (1_600_000, 1_600_000), (2_000_000, 2_800_000))
CHOICES: Mapping[tuple[Kind, str], tuple[str, ...]] = {
    (Kind.CPU, "resume_latency"): ("0", "2", "n/a"),
    (Kind.CPU, "state1"): ("0", "1"),
    (Kind.CPUFREQ, "governor"): ("performance", "powersave"),
    (Kind.RESCTRL, "schemata"): ("L3:0=ff00\nMB:0=100", "L3:0=f\nMB:0=50"),
}
Hook = Callable[[], None]


class Killed(BaseException):
    """The tuner's process ends at once."""


class StruckFiles(KernelFiles):
    """Interrupts, CPUs and resctrl, as strict as the kernel's, with a fault now and then."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._top = root
        self.cpus: FakeCPUs = two_kinds(root)
        self.cpus.write("cpu3/power/pm_qos_resume_latency_us", b"1")
        self.resctrl = FakeResctrl(root, caches={"L3": 20}, ids=[0])
        self.balancer, self.banned = "700", "99"  # irqbalance's process, and what it leaves alone
        self.before: Hook = lambda: None  # each step of a write
        self.after: Hook = lambda: None

    def list_balancers(self) -> list[Item]:
        return [Item(Kind.IRQBALANCE, self.balancer, "banned")]

    def read(self, item: Item) -> str | ReadFailure:
        if item.kind is not Kind.IRQBALANCE:
            return super().read(item)
        ended = item.id != self.balancer
        return ReadFailure("No such file or directory", absent=True) if ended else self.banned

    def write(self, item: Item, value: str) -> None:
        if item.kind is Kind.IRQBALANCE:
            self._step(lambda: setattr(self, "banned", value))
        else:
            super().write(item, value)

    def make_group(self, path: Path) -> None:
        self._step(lambda: self.resctrl.mkdir(path.name))

    def remove_group(self, path: Path) -> None:
        self._step(lambda: self.resctrl.rmdir(path.name))

    def store(self, path: Path, value: str) -> None:
        self._step(lambda: self.put(path, value))

    def _step(self, change: Callable[[], object]) -> None:
        self.before()
        change()
        self.after()

    def put(self, path: Path, value: str) -> None:
        """Write a file as the kernel does; OSError."""
        name = str(path.relative_to(self._top))
        if name.startswith(RESCTRL):
            self.resctrl.write(name.removeprefix(f"{RESCTRL}/"), value.encode())
        elif name.startswith(CPU):
            self.cpus.write(name.removeprefix(f"{CPU}/"), value.encode())
        else:
            self._put_affinity(path, value)

    def _put_affinity(self, path: Path, value: str) -> None:
        if not path.exists():
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
        if path.parent.name.isdecimal():
            if int(path.parent.name) in MANAGED:
                raise OSError(errno.EPERM, os.strerror(errno.EPERM))
            if not CPUSet.parse(value) & ONLINE:
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        path.write_text(f"{value}\n")

    def change(self, item: Item, value: str) -> None:
        """Set an item as something else on the host does, without faults."""
        before, after = self.before, self.after
        self.before = self.after = lambda: None
        super().write(item, value)
        self.before, self.after = before, after


class History:
    """One seed's history on one host."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.random = Random(seed)
        self.root = make_host(folder / "host", AFFINITIES)
        self._list_interrupts()
        self.files = StruckFiles(self.root)
        self.state = folder / "state"
        self.state.mkdir()
        self.now = 0.0
        self.counts = Counter[str]()
        self.first = self.texts()
        self.originals = self._read_all()  # before anything was set
        self.foreign: set[tuple[Kind, str]] = set()  # what something else has changed
        self.owners: list[Owner] = []
        self.others: dict[Item, Wish] = {}  # wishes but for interrupts
        self.repair = False
        self.start()

    def _read_all(self) -> dict[Item, str]:
        """Return the values of all items that can be set."""
        cpus = [(Kind.CPU, str(n), name) for n in range(4) for name in ("resume_latency", "state1")]
        names = ("min_freq", "max_freq", "governor", "epp")
        policies = [(Kind.CPUFREQ, policy, name) for policy in "012" for name in names]
        groups = [(Kind.RESCTRL, name, "schemata") for name in ("gold", "bronze")]
        irqs = [item_of(number) for number in AFFINITIES]
        items = [DEFAULT, *irqs, *(Item(*each) for each in (*cpus, *policies, *groups))]
        return {item: str(self.files.read(item)) for item in items}

    def start(self) -> None:
        """Start the tuner, which knows what its journal has."""
        journal = TunerJournal(self.state, BOOT)
        self.tuner = Tuner(self.files, journal, clock=Clock(now=lambda: self.now, date=lambda: 1e9))

    def texts(self) -> dict[str, str]:
        """Return all files that the tuner could change."""
        return {
            str(path.relative_to(self.root)): path.read_text()
            for path in self.root.rglob("*")
            if path.is_file() and path.name not in {"last_cmd_status", "interrupts"}
        }

    def _list_interrupts(self) -> None:
        numbers = sorted(int(path.name) for path in (self.root / "proc/irq").glob("[0-9]*"))
        lines = [f"{number}: 0 0 0 0 PCI-MSIX {number}-edge dev{number}" for number in numbers]
        text = "\n".join([" CPU0 CPU1 CPU2 CPU3", *lines])
        (self.root / "proc/interrupts").write_text(f"{text}\n")

    def desired(self) -> Desired:
        """Return what the daemon wishes: of interrupts, from the originals that the tuner knows."""
        known = {each.item: each.original for each in self.tuner.list_tunables()}
        found = read_interrupts(self.root)
        return {**self.others, **self._interrupts(found, known)}

    def _interrupts(self, found: Interrupts, known: Mapping[Item, str | None]) -> Desired:
        def original(item: Item, now: CPUSet) -> CPUSet:
            text = known.get(item)
            return now if text is None else CPUSet.parse(text)

        each = tuple(
            replace(irq, affinity=original(item_of(irq.number), irq.affinity)) for irq in found.each
        )
        return find_interrupt_wishes(
            Interrupts(each=each, default=original(DEFAULT, found.default)),
            self.owners,
            controllable=(Glob.parse("*"),),
            isolate=bool(self.owners),
            online=ONLINE,
            reserved=CPUSet((0,)),
        ).items

    def inform(self) -> None:
        """Have the daemon send its wishes."""
        self.tuner.set(self.desired(), repair=self.repair)

    def change_wishes(self) -> None:
        """Have containers and settings come and go."""
        random = self.random
        self.repair = random.random() < 0.3
        choice = InterruptChoice(key="k", scope=Scope.POD, claim=(random.choice([4, 16, 30]),))
        self.owners = [
            Owner(name=f"ns/p/{cpu}", cpus=CPUSet((cpu,)), choice=random.choice([None, choice]))
            for cpu in (1, 2, 3)
            if random.random() < 0.4
        ]
        wishes: dict[Item, str] = {}
        for policy in ("0", "1", "2"):
            if random.random() < 0.5:
                low, high = random.choice(FREQUENCIES)
                wishes[Item(Kind.CPUFREQ, policy, "min_freq")] = str(low)
                wishes[Item(Kind.CPUFREQ, policy, "max_freq")] = str(high)
        groups = [(Kind.RESCTRL, name, "schemata") for name in ("gold", "bronze")]
        cpus = [(Kind.CPU, str(n), name) for n in range(4) for name in ("resume_latency", "state1")]
        policies = [(Kind.CPUFREQ, policy, "governor") for policy in ("0", "1", "2")]
        for kind, id_, attribute in (*groups, *cpus, *policies):
            if random.random() < 0.4:
                value = random.choice(CHOICES[kind, attribute])
                wishes[Item(kind, id_, attribute)] = value
                if value == "powersave":
                    epp = random.choice(("balance_power", "power"))
                    wishes[Item(kind, id_, "epp")] = epp
        self.others = {item: Wish(value, ("settings",)) for item, value in wishes.items()}

    def strike(self) -> None:
        """Have one thing go wrong while the daemon sends its wishes."""
        faults: tuple[Callable[[], None], ...] = (
            self.kill_tuner,
            self.fill_disk,
            self.refuse_writes,
            self.interfere,
            self.plug,
            self.balance,
            self.restart_irqbalance,
            self.restart_daemon,
            self.inform,
        )
        fault = self.random.choice(faults)
        self.counts[fault.__name__] += 1
        fault()

    def kill_tuner(self) -> None:
        """Kill it at a random step: of the journal, before or after a write."""
        left = self.random.randrange(24)

        def count(*_: object) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise Killed

        self.files.before = self.files.after = count
        with patch.object(os, "fsync", count), suppress(Killed):
            self.inform()
        self.heal()
        self.start()

    def fill_disk(self) -> None:
        def full(*_: object) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        with patch.object(os, "fsync", full):
            self.inform()

    def refuse_writes(self) -> None:
        def refuse() -> None:
            if self.random.random() < 0.3:
                code = self.random.choice(ERRORS)
                raise OSError(code, os.strerror(code))

        self.files.before = refuse
        self.inform()
        self.heal()

    def interfere(self) -> None:
        """Have something else on the host set an item."""
        self.inform()
        items = [
            each.item
            for each in self.tuner.list_tunables()
            if each.original is not None and each.found is not None
        ]
        if not items:
            return
        item = self.random.choice(items)
        values = CHOICES.get((item.kind, item.attribute), ("0", "1-2", "3"))
        if item.kind is not Kind.IRQ and (item.kind, item.attribute) not in CHOICES:
            return  # frequencies and preferences hang together
        self.foreign.add((item.kind, item.id))
        with suppress(OSError):  # it could not be there
            self.files.change(item, self.random.choice(values))

    def plug(self) -> None:
        """Have a device with an interrupt come or go; a kernel's report has the daemon look."""
        folder = self.root / f"proc/irq/{PLUGGED}"
        if folder.exists():
            (folder / "smp_affinity_list").unlink()
            folder.rmdir()
        else:
            folder.mkdir()
            default = self.files.read(DEFAULT)
            (folder / "smp_affinity_list").write_text(f"{default}\n")
        self._list_interrupts()
        if isinstance(found := self.files.read(item_of(PLUGGED)), str):
            self.originals[item_of(PLUGGED)] = found
        else:
            self.originals.pop(item_of(PLUGGED))
        self.inform()

    def balance(self) -> None:
        """Have irqbalance move an interrupt, unless it must leave all of them alone."""
        self.inform()
        left = [
            each for each in AFFINITIES if each not in MANAGED | split_numbers(self.files.banned)
        ]
        if left:
            item = item_of(self.random.choice(left))
            self.foreign.add((item.kind, item.id))
            self.files.change(item, self.random.choice(("0", "1", "2", "3")))

    def restart_irqbalance(self) -> None:
        self.files.balancer = str(int(self.files.balancer) + 1)
        self.files.banned = "99"

    def restart_daemon(self) -> None:
        self.inform()
        self.inform()

    def heal(self) -> None:
        self.files.before = self.files.after = lambda: None

    def check(self) -> None:
        """After the faults: each item has its value, or is listed with a reason."""
        for _ in range(3):  # what is done after another item needs one more look
            self.now += 61.0
            self.inform()
        desired = self.desired()
        irqs = {item.id for item in desired if item.kind is Kind.IRQ and item != DEFAULT}
        assert self.files.banned == join_numbers({"99", *irqs})
        shown = {each.item: each for each in self.tuner.list_tunables()}
        for item, wish in desired.items():
            self.check_item(item, wish.value, shown[item])
        for item, original in self.originals.items():
            if item.attribute == "epp" and self.files.read(_governor_of(item)) == "performance":
                continue  # the kernel hides it
            if item not in desired and (item.kind, item.id) not in self.foreign:
                found = self.files.read(item)
                assert found == original, f"{item} is {found} and was {original}"
                assert item not in shown
        self.counts["items checked"] += len(desired)

    def check_item(self, item: Item, value: str, shown: Tunable) -> None:
        found = str(self.files.read(item))
        if found == value:
            assert shown.state is ItemState.OK, f"{item}: {shown}"
            return
        if shown.state is ItemState.OK and is_looser(item, value, found):
            assert shown.why.endswith("is stricter"), f"{item}: {shown}"
            self.counts["stricter originals"] += 1
            return
        reasons = {ItemState.PENDING, ItemState.CONTESTED, ItemState.UNSUPPORTED}
        assert shown.state in reasons, f"{item}: {shown}"
        assert shown.why, f"{item} is {found}, not {value}, for no reason"
        by_foreign = (item.kind, item.id) in self.foreign  # which can hide others of its policy
        fixed = item.kind is Kind.IRQ and shown.state is ItemState.UNSUPPORTED
        assert by_foreign or fixed, f"{item}: {shown}"
        self.counts[f"{shown.state} items"] += 1

    def restore(self) -> None:
        """Give everything back, as `nri-policy restore` does."""
        self.start()
        self.now += 61.0
        for _ in range(2):
            self.tuner.set({}, repair=False)
            self.now += 61.0
        assert not self.tuner.list_tunables()
        assert self.files.banned == "99"
        last = self.texts()
        own = {name for name in self.first.keys() | last.keys() if not self._is_foreign(name)}
        wrong = {name for name in own if self.first.get(name) != last.get(name)}
        assert not wrong, f"not as before: {sorted(wrong)}"

    def _is_foreign(self, name: str) -> bool:
        """Return whether something else had its hands on a file, or it belongs to new hardware."""
        parts = name.split("/")
        ids = {part.removeprefix("cpu").removeprefix("policy") for part in parts}
        if name == "proc/irq/default_smp_affinity":
            return (Kind.IRQ, "default") in self.foreign
        if name == f"proc/irq/{PLUGGED}/smp_affinity_list":
            return True
        kinds = {"irq": Kind.IRQ, "cpufreq": Kind.CPUFREQ, "resctrl": Kind.RESCTRL}
        kind = next((kinds[part] for part in parts if part in kinds), Kind.CPU)
        return any((kind, id_) in self.foreign for id_ in ids)


def _governor_of(item: Item) -> Item:
    return Item(item.kind, item.id, "governor")


def play(seed: int, folder: Path) -> Counter[str]:
    """Play the history of a seed; return what happened how often. AssertionError."""
    history = History(seed, folder)
    for _ in range(ROUNDS):
        history.change_wishes()
        for _ in range(history.random.randint(1, 4)):
            history.strike()
            history.now += history.random.choice((0.1, 1.0, 61.0))
        history.check()
    history.restore()
    return history.counts
