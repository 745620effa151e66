"""Interrupts of larger hosts: what nri-plugins' own tests of them demand, and what it gets wrong.

And hosts with many queues and NVMe disks, with and without irqbalance.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

import pytest

from nri_policy.classes import Equipment
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.plugin.sources import Sources
from nri_policy.tuning.decision import REPAIRS, ItemState
from nri_policy.tuning.items import Item
from tests.support.daemon import Served, served
from tests.support.fake_irqbalance import FakeIrqbalance
from tests.support.patience import HANGS
from tests.support.tunables import StrictFiles, TunedHost, irq, make_host

KEY = "irq-affinity.resource-policy.nri.io"
SERIAL, CLOCK, NIC = 4, 8, 25
SIXTEEN = "numa:4 core:4 pu:1"
FEW = {
    SERIAL: ("IO-APIC 4-edge ttyS0", "0-15"),
    CLOCK: ("IO-APIC 8-edge rtc0", "0-15"),
    NIC: ("PCI-MSIX-0000:00:03.0 1-edge eth0-rx", "4-7"),
    26: ("PCI-MSIX-0000:00:04.0 1-edge eth1-rx", "2"),  # set by hand
}


class Host(TunedHost):
    """A host with interrupts, by number their name and affinity; some cannot be moved."""

    def __init__(
        self,
        folder: Path,
        interrupts: Mapping[int, tuple[str, str]],
        machine: str,
        *,
        cpus: int,
        managed: tuple[int, ...] = (),
    ) -> None:
        make_host(folder, {n: affinity for n, (_, affinity) in interrupts.items()}, cpus=cpus)
        self._names = {number: name for number, (name, _) in interrupts.items()}
        self._cpus, self._machine = cpus, machine
        self.strict = StrictFiles(folder, online=f"0-{cpus - 1}", managed=managed)
        super().__init__(folder, self.strict)
        self._list()
        self.before = self.affinities()

    def _list(self) -> None:
        lines = [" ".join(f"CPU{cpu}" for cpu in range(self._cpus))]
        counts = " ".join("0" * self._cpus)
        lines += [f" {number}: {counts} {name}" for number, name in self._names.items()]
        (self.folder / "proc/interrupts").write_text("\n".join(lines) + "\n")

    def add(self, number: int, name: str, affinity: str) -> None:
        """Have a device get an interrupt."""
        make_host(self.folder, {number: affinity}, cpus=self._cpus)
        self._names[number] = name
        self._list()

    def affinity(self, item: Item) -> CPUSet:
        return CPUSet.parse(str(self.files.read(item)))

    def affinities(self) -> dict[Item, str]:
        items = [irq("default"), *map(irq, self._names)]
        return {item: str(self.files.read(item)) for item in items}

    def up(self, **spec: Any) -> Any:
        settings = {"reservedResources": {"cpu": "cpuset:0"}, "colocatePods": False, **spec}
        return served(self.folder, self._machine, ask_tuner=self.ask, listening=False, **settings)


def pod(
    *containers: str, cpu: str = "2", limits: bool = True, **annotations: str
) -> dict[str, Any]:
    """Return a pod with these containers, and an annotation for each that is given."""
    resources = {"requests": {"cpu": cpu, "memory": "1Mi"}}
    if limits:
        resources["limits"] = resources["requests"]
    keys = {f"{KEY}/container.{name}": text for name, text in annotations.items()}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "namespace": "default", "annotations": keys},
        "spec": {"containers": [{"name": name, "resources": resources} for name in containers]},
    }


def cpus_of(up: Served, container: str) -> CPUSet:
    return up.daemon.node.view.by_name()[f"default/p/{container}"].grant.own


def run(test: Callable[[], Coroutine[None, None, None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), HANGS))


@pytest.fixture(name="host")
def _host(tmp_path: Path) -> Host:
    return Host(tmp_path, FEW, SIXTEEN, cpus=16)


# What the peer's own test on a host of sixteen CPUs demands.


@pytest.mark.parametrize(
    ("first", "second", "serial", "clock"),
    [
        ("{claim: ['*ttyS0*']}", "{claim: ['*rtc0*']}", "a", "b"),
        ("{mask: ['*ttyS0*']}", "{mask: ['*rtc0*']}", "all but a", "all but b"),
        ("{claim: ['*ttyS0*'], mask: ['*']}", "{mask: ['*rtc0*']}", "a", "all but a, b"),
    ],
)
def test_interrupts_are_claimed_and_masked_until_the_pod_ends(
    host: Host, first: str, second: str, serial: str, clock: str
) -> None:
    async def test() -> None:
        async with host.up() as up:
            assert not await up.start(pod("a", "b", "c", "d", a=first, b=second))
            up.daemon.tuner_link.inform()
            a, b = cpus_of(up, "a"), cpus_of(up, "b")
            every = CPUSet.parse("0-15")
            due = {"a": a, "b": b, "all but a": every - a, "all but b": every - b}
            due["all but a, b"] = every - a - b
            assert host.affinity(irq(SERIAL)) == due[serial]
            assert host.affinity(irq(CLOCK)) == due[clock]
            await up.runtime.stop_pod(up.runtime.container("p/a").pod)
            up.daemon.tuner_link.inform()
            assert host.affinities() == host.before

    run(test)


@pytest.mark.parametrize(
    ("refused", "why"),
    [
        (pod("a", limits=False, a="{claim: ['*ttyS0*']}"), "only exclusive CPUs claim or mask"),
        (pod("a", cpu="250m", a="{claim: ['*ttyS0*']}"), "only exclusive CPUs claim or mask"),
        (pod("a", a="claim: xyzzy, foobar"), "isolate, sink, or a map"),
        (pod("a", a="{claim: ['*'], mode: xyzzy}"), "isolate, sink, or a map"),
        (pod("a", a="{devices: ['*ttyS0*', '[abc']}"), "isolate, sink, or a map"),
    ],
)
def test_an_annotation_that_a_container_cannot_have_is_refused(
    host: Host, refused: dict[str, Any], why: str
) -> None:
    async def test() -> None:
        async with host.up() as up:
            (error,) = await up.start(refused)
            assert why in error

    run(test)


# What the peer gets wrong.


def test_interrupts_that_nothing_names_keep_what_they_have(host: Host) -> None:
    """With the peer all get all CPUs, also those set by hand (interrupts F1)."""

    async def test() -> None:
        async with host.up() as up:
            assert not await up.start(pod("a", a="{claim: [4]}"))
            up.daemon.tuner_link.inform()
            changed = {irq(SERIAL): str(cpus_of(up, "a"))}
            assert host.affinities() == host.before | changed
            assert [number for number, _ in host.strict.writes] == [str(SERIAL)]

    run(test)


def test_new_interrupts_and_changes_by_others_are_seen(host: Host) -> None:
    """The peer reads interrupts and affinities once (interrupts F2)."""

    async def test() -> None:
        async with host.up() as up:
            assert not await up.start(pod("a", a="isolate"))
            link = up.daemon.tuner_link
            link.inform()
            host.add(40, "PCI-MSIX-0000:00:09.0 0-edge eth9", "0-15")
            host.files.write(irq(CLOCK), "0-15")
            host.time += 61.0
            link.inform()
            assert not host.affinity(irq(40)) & cpus_of(up, "a")
            assert link.tunables[irq(CLOCK)].state is ItemState.CONTESTED

    run(test)


def test_interrupts_that_come_later_start_elsewhere(host: Host) -> None:
    """The peer leaves the default affinity alone (interrupts F3)."""

    async def test() -> None:
        async with host.up(isolateInterrupts="exclusive") as up:
            assert not await up.start(pod("a"))
            up.daemon.tuner_link.inform()
            assert host.affinity(irq("default")) == CPUSet.parse("0-15") - cpus_of(up, "a")

    run(test)


@pytest.mark.parametrize("entry", ["4", "'*ttyS0*'"])
def test_an_interrupt_that_is_not_controllable_is_not_moved_by_its_number_either(
    host: Host, entry: str
) -> None:
    """The peer denies by the description alone (interrupts F4)."""

    async def test() -> None:
        async with host.up(controllableInterrupts=["*rtc0*"]) as up:
            assert not await up.start(pod("a", a=f"{{claim: [{entry}]}}"))
            up.daemon.tuner_link.inform()
            assert host.affinities() == host.before
            (why,) = up.daemon.tuner_link.unmet_interrupts["default/p/a"]
            assert "not one of controllableInterrupts" in why

    run(test)


@pytest.mark.parametrize(
    ("asked", "allowed"),
    [
        ("{claim: [4]}", False),
        ("{mask: ['*ttyS0*']}", False),
        ("{claim: [8], mask: [25]}", False),
        ("{claim: ['*']}", True),  # the peer refuses it where any is denied
        ("{claim: [8], mask: [99]}", True),  # a device may come later
    ],
)
def test_a_container_that_chooses_denied_interrupts_is_refused(
    host: Host, asked: str, allowed: bool
) -> None:
    names = tuple((number, name) for number, (name, _) in FEW.items())
    sources = Sources(equipment=lambda: Equipment(interrupts=names))

    async def test() -> None:
        async with host.up(controllableInterrupts=["*rtc0*"], sources=sources) as up:
            errors = await up.start(pod("a", a=asked))
            assert bool(errors) is not allowed
            assert all("it is not one of controllableInterrupts" in each for each in errors)

    run(test)


def test_of_a_container_that_ran_before_explain_says_which_interrupts_are_denied(
    host: Host,
) -> None:
    names = tuple((number, name) for number, (name, _) in FEW.items())
    sources = Sources(equipment=lambda: Equipment(interrupts=names))
    before = [pod("a", a="{claim: [4]}")]

    async def test() -> None:
        async with host.up(controllableInterrupts=["*rtc0*"], sources=sources, before=before) as up:
            link = up.daemon.tuner_link
            link.inform()
            why = "interrupt 4: it is not one of controllableInterrupts"
            assert link.unmet_interrupts["default/p/a"] == (why,)

    run(test)


def test_an_interrupt_of_which_no_cpu_is_left_goes_to_the_reserved_ones(host: Host) -> None:
    """The peer tries to write nothing, again and again (interrupts F5)."""

    async def test() -> None:
        async with host.up() as up:
            assert not await up.start(pod("a", cpu="12", a="isolate"))
            link = up.daemon.tuner_link
            link.inform()
            own = cpus_of(up, "a")
            assert CPUSet.parse("4-7") <= own, "all CPUs near the network interface"
            assert host.affinity(irq(NIC)) == CPUSet((0,))
            assert link.tunables[irq(NIC)].state is ItemState.OK
            whys = link.unmet_interrupts["default/p/a"]
            assert any("only the reserved CPUs are left" in each for each in whys)

    run(test)


# Many queues.

QUEUES = 64
NICS, DISKS = 2, 4
LARGE = "package:2 core:32 pu:1"


def many() -> tuple[dict[int, tuple[str, str]], tuple[int, ...]]:
    """Return the interrupts of a host with network interfaces and disks of a queue for each CPU."""
    found, managed = {SERIAL: ("IO-APIC 4-edge ttyS0", "0-63")}, list[int]()
    number = 32
    for nic in range(NICS):
        near = ("0-31", "32-63")[nic % 2]
        for queue in range(QUEUES):
            found[number] = f"PCI-MSIX-0000:{nic}1:00.0 {queue}-edge mlx5_comp{queue}", near
            number += 1
    for disk in range(DISKS):
        found[number] = f"PCI-MSIX-0000:{disk}8:00.0 0-edge nvme{disk}q0", "0-63"
        number += 1
        for queue in range(QUEUES):
            name = f"PCI-MSIX-0000:{disk}8:00.0 {queue + 1}-edge nvme{disk}q{queue + 1}"
            found[number] = name, str(queue)
            managed.append(number)
            number += 1
    return found, tuple(managed)


@pytest.mark.parametrize("repair", [False, True])
@pytest.mark.parametrize("irqbalance", [False, True])
def test_of_many_queues_only_those_of_managed_ones_stay_on_exclusive_cpus(
    tmp_path: Path, irqbalance: bool, repair: bool
) -> None:
    interrupts, managed = many()
    host = Host(tmp_path, interrupts, LARGE, cpus=64, managed=managed)
    movable = [irq(number) for number in interrupts if number not in managed]

    def balance() -> None:
        """Spread interrupts over the CPUs near their devices, as irqbalance does."""
        for n, item in enumerate(movable if irqbalance else ()):
            near = (*CPUSet.parse(host.before[item]),)
            host.files.write(item, str(near[n % len(near)]))

    async def test() -> None:
        spec = {"isolateInterrupts": "exclusive", "audit": "repair" if repair else "report"}
        async with host.up(**spec) as up:
            link = up.daemon.tuner_link
            assert not await up.start(pod("a", cpu="16"))
            link.inform()
            own = cpus_of(up, "a")
            for item in movable:
                assert not host.affinity(item) & own
                assert link.tunables[item].state is ItemState.OK
            fixed = [each for each in link.tunables.values() if each.state is ItemState.UNSUPPORTED]
            assert {int(each.item.id) for each in fixed} == {
                number for number in managed if CPUSet.parse(interrupts[number][1]) & own
            }
            assert {each.why for each in fixed} == {"not movable: EPERM"}
            for _ in range(REPAIRS + 1):
                balance()
                host.time += 61.0
                link.inform()
            written = len(host.strict.writes)
            host.time += 61.0
            link.inform()
            assert len(host.strict.writes) == written, "it does not fight"
            contested = [
                each for each in link.tunables.values() if each.state is ItemState.CONTESTED
            ]
            assert bool(contested) is irqbalance
            assert any("contested" in each for each in link.problems()) is irqbalance
            await up.runtime.stop_pod(up.runtime.container("p/a").pod)
            link.inform()
            assert not link.tunables
            if not irqbalance:
                assert host.affinities() == host.before
            else:
                assert host.affinity(irq("default")) == CPUSet.parse("0-63")

    run(test)


def test_an_irqbalance_that_can_be_asked_moves_none_of_many_queues() -> None:
    interrupts, managed = many()

    async def test(host: Host, balancer: FakeIrqbalance) -> None:
        async with host.up(isolateInterrupts="exclusive") as up:
            link = up.daemon.tuner_link
            assert not await up.start(pod("a", cpu="16"))
            link.inform()
            isolated = host.affinities()
            assert {*balancer.banned} == {*interrupts}
            balancer.balance("0-63")
            host.time += 61.0
            link.inform()
            assert host.affinities() == isolated
            assert not any("contested" in each for each in link.problems())
            await up.runtime.stop_pod(up.runtime.container("p/a").pod)
            link.inform()
            assert host.affinities() == host.before
            assert balancer.banned == []

    with tempfile.TemporaryDirectory() as name:  # a short one, for the socket
        host = Host(Path(name), interrupts, LARGE, cpus=64, managed=managed)
        with FakeIrqbalance(host.folder) as balancer:
            run(lambda: test(host, balancer))
