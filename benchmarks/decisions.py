"""Time decisions of the engine alone: how they grow, and what makes one dear."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import count

from benchmarks.table import ROUNDS, Section, Timing, best, number
from nri_policy.engine.engine import Engine
from nri_policy.engine.event import Created, Event, Resized, Stopped
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.manifests.quality_of_service import QoS
from nri_policy.pools.supply import supply_of
from tests.property import test_picker, test_supply
from tests.support import busy_node, nodes
from tests.support.busy_node import COUNTS

TYPICAL = (256, 200)
LARGEST = (4096, 500)
KINDS = {
    "plain": "none",
    "affinity": "an affinity to all others",
    "hints": "a device's NUMA node as a hint",
    "memory": "more memory than one node has",
}
STEPS = ("create", "resize", "release")

Steps = dict[str, list[float]]


def lifecycle(engine: Engine, kind: str, milli: int) -> Steps:
    """Create, resize and remove containers, one after the other."""
    spent: Steps = {step: [] for step in STEPS}
    for at in range(ROUNDS):
        container = busy_node.newcomer(kind, milli, at)
        more = nodes.resources(milli + 100, milli + 100)
        events: tuple[Event, ...] = (
            Created(container=container),
            Resized(container_id=container.id, resources=more),
            Stopped(container_id=container.id),
        )
        for step, event in zip(STEPS, events, strict=True):
            began = time.perf_counter()
            engine.handle(event)
            spent[step].append(time.perf_counter() - began)
    return spent


def timed(cpus: int, running: int, *kinds: str) -> dict[str, dict[str, Timing]]:
    """Time *kinds* of containers, by turns, for all to meet the same machine."""
    engines = {kind: crowded(cpus, running) for kind in kinds}
    milli = busy_node.share(cpus, running)
    turns = [
        {kind: lifecycle(engine, kind, milli) for kind, engine in engines.items()} for _ in range(5)
    ]
    return {
        kind: {
            step: min((Timing.of(turn[kind][step]) for turn in turns), key=lambda each: each.p50)
            for step in STEPS
        }
        for kind in kinds
    }


def crowded(cpus: int, running: int) -> Engine:
    return busy_node.engine(cpus, busy_node.running(cpus, running))


class Decisions:
    """All that is measured of decisions; made once, for the tables and the targets."""

    def __init__(self) -> None:
        self.pools = {
            cpus: len(crowded(cpus, COUNTS[0]).layout.tree.pools) for cpus in busy_node.MACHINES
        }
        self.kinds = timed(*TYPICAL, *KINDS)
        self.plain = {
            (cpus, running): timed(cpus, running, "plain")["plain"]
            for cpus in busy_node.MACHINES
            for running in COUNTS
        }
        self.plain[TYPICAL] = self.kinds["plain"]

    def p50(self, cpus: int, running: int) -> float:
        """Return the median of a creation in µs."""
        return self.plain[cpus, running]["create"].p50

    def sections(self, floor: float) -> Iterator[Section]:
        yield Section(
            title="Decisions",
            text=f"Medians in µs, and of a creation as a part of the protocol's floor"
            f" ({floor:.0f} µs).",
            head=("CPUs", "containers", *STEPS, "create / floor"),
            rows=[
                (
                    str(cpus),
                    str(running),
                    *(number(steps[step].p50) for step in STEPS),
                    f"{steps['create'].p50 / floor:.2f}",
                )
                for (cpus, running), steps in sorted(self.plain.items())
            ],
        )
        yield Section(
            title="Decisions with preferences",
            text=f"Medians in µs at {TYPICAL[0]} CPUs and {TYPICAL[1]} containers, by turns.",
            head=("preference", *STEPS, "create / floor"),
            rows=[
                (
                    text,
                    *(number(self.kinds[kind][step].p50) for step in STEPS),
                    f"{self.kinds[kind]['create'].p50 / floor:.2f}",
                )
                for kind, text in KINDS.items()
            ],
        )


def compared() -> Iterator[Section]:
    """Compare creations with and without changes for others, and kernels with their twins."""
    yield Section(
        title="What others hear",
        text="A creation that changes the cpuset of all others, against one that changes nobody's."
        " Medians in µs.",
        head=("CPUs", "containers", "all", "none", "ratio"),
        rows=[_told(*size) for size in (TYPICAL, LARGEST)],
    )
    yield Section(
        title="Kernels against their twins",
        text=f"The kernels and the plain Python that their tests compare them with, at {TYPICAL[0]}"
        " CPUs. Medians in µs.",
        head=("kernel", "twin", "ours", "ratio"),
        rows=[_scoring(), _picking()],
    )


def _told(cpus: int, running: int) -> tuple[str, ...]:
    everybody, nobody = told(cpus, running)
    ratio = f"{everybody / nobody:.1f}"
    return str(cpus), str(running), number(everybody), number(nobody), ratio


def told(cpus: int, running: int) -> tuple[float, float]:
    """Time exclusive containers that change the cpusets of all others, and of none, by turns.

    Return both medians in µs.
    """
    engines = []
    for pinned in (True, False):
        spec = {"unlimitedBurstable": "system", "pinCPU": pinned}
        engine = Engine(nodes.machine(busy_node.MACHINES[cpus]), nodes.settings(**spec))
        for _ in range(running):
            sharer = nodes.container(10, qos=QoS.BURSTABLE)
            engine.handle(Created(container=sharer))
        engines.append(engine)
    turns = [[_exclusive(engine) for engine in engines] for _ in range(5)]
    everybody, nobody = (min(turn[at].p50 for turn in turns) for at in range(2))
    return everybody, nobody


def _exclusive(engine: Engine) -> Timing:
    """Time creations of exclusive containers, each of which stops before the next comes."""
    spent = []
    for _ in range(ROUNDS):
        container = nodes.container(2000)
        began = time.perf_counter()
        engine.handle(Created(container=container))
        spent.append(time.perf_counter() - began)
        engine.handle(Stopped(container_id=container.id))
    return Timing.of(spent)


def _row(name: tuple[str, ...], slow: Timing, fast: Timing) -> tuple[str, ...]:
    return (*name, number(slow.p50), number(fast.p50), f"{slow.p50 / fast.p50:.0f}")


def _clocked(work: Callable[[], object], times: int) -> Timing:
    spent = []
    for _ in range(times):
        began = time.perf_counter()
        work()
        spent.append(time.perf_counter() - began)
    return Timing.of(spent)


def _scoring() -> tuple[str, ...]:
    """Score all pools for an exclusive CPU, with a hundred shared grants booked."""
    layout = crowded(TYPICAL[0], 10).layout
    supply = supply_of(layout.tree, layout.capacity.sharable, CPUSet())
    parents = [-1 if pool.parent is None else pool.parent for pool in layout.tree.pools]
    twin = test_supply.Twin(
        parents,
        [set(pool.cpus) for pool in layout.tree.pools],
        set(layout.capacity.sharable),
        set(),
    )
    for _, pool in zip(range(100), count(), strict=False):
        booking = (pool % len(parents), 500, True, False)
        supply.book(*booking)
        twin.bookings.append(booking)

    def plainly() -> list[int]:
        return [twin.rank(pool, 0, False, True) for pool in range(len(parents))]

    fast = best(lambda: _clocked(lambda: supply.score(exclusive=1), 500))
    return _row(("score all pools",), _clocked(plainly, 3), fast)


def _picking() -> tuple[str, ...]:
    """Pick eleven CPUs out of a machine."""
    layout = crowded(TYPICAL[0], 10).layout
    machine, picker = layout.machine, layout.picker
    caches = [set(cache.cpus) for cache in machine.caches if cache.level == 3]
    twin = test_picker.Twin(
        levels=[
            [set(package.cpus) for package in machine.packages],
            [set(node.cpus) for node in machine.nodes],
            caches,
        ],
        dies=[],
        groups=caches,
        cores=[set(core.cpus) for core in machine.cores],
        counts=False,
    )
    online = set(machine.online)
    assert picker.pick(11, machine.online) == CPUSet(twin.pick(11, online) or ())
    fast = best(lambda: _clocked(lambda: picker.pick(11, machine.online), 500))
    slow = _clocked(lambda: twin.pick(11, online), 5)
    return _row(("pick 11 CPUs",), slow, fast)


def main() -> None:
    for section in (*Decisions().sections(100.0), *compared()):
        print(section.plain())
