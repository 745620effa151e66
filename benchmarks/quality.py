"""Count how well containers are placed: histories of nodes at 80 % load, from fixed seeds.

Counts, not times: the same on every machine and under any load. What is possible at least is worked
out apart from the engine, by trying all numbers of CPUs in every domain.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence

from msgspec.structs import replace

from benchmarks.table import Section
from nri_policy.engine.choice.shortage import Lack, PlacementError
from nri_policy.engine.engine import Engine
from nri_policy.engine.event import Created, Event, Resized, Stopped
from nri_policy.engine.grant import Decision
from nri_policy.engine.state.state import Placed, State
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.hardware.machine import Machine
from nri_policy.manifests.quality_of_service import QoS
from nri_policy.pools.tree import Pool
from nri_policy.settings import Level
from nri_policy.workload.pod import Container
from tests.support import nodes

MACHINES = {
    16: "package:2 numa:2(memory=8GiB) core:2 pu:2",
    32: "package:2 numa:2(memory=16GiB) core:4 pu:2",
    64: "package:2 numa:2(memory=32GiB) l3:2 core:4 pu:2",
    256: "package:2 numa:4(memory=64GiB) l3:2 core:8 pu:2",
}
SEEDS = range(1, 6)
EVENTS = 2000  # of each run
LOAD = 0.8  # of the CPUs are requested
LEVELS = (Level.PACKAGE, Level.NUMA, Level.L3CACHE)

_Counts = tuple[int, ...]  # of packages, NUMA nodes, L3 domains and cores
_NONE = (0,) * (len(LEVELS) + 1)
_NOWHERE = (1 << 30,) * len(_NONE)

# What is counted, and what it says.
COUNTED = {
    "exclusive": "exclusive containers placed: whole CPUs, all exclusive",
    "sockets": "sockets that they touch over the possible minimum",
    "nodes": "NUMA nodes, of those on the fewest sockets",
    "l3s": "L3 domains, of those on the fewest nodes",
    "cross sockets": "exclusive containers that span sockets although one has enough CPUs",
    "cross nodes": "exclusive containers that span nodes of one socket although one has enough",
    "memory away": "exclusive containers with memory on nodes without their CPUs",
    "more cores": "exclusive containers on more cores than they need",
    "avoidable cores": "of these, with fewer possible on as few sockets, nodes and L3 domains",
    "strangers' cores": "exclusive containers that have a thread of a core where another has one",
    "larger beside others": "of these, containers of two CPUs and more",
    "open threads": "threads of the cores of exclusive containers that others may use",
    "wide": "exclusive containers on more sockets, nodes or L3 domains than need be",
    "moved": "sharers moved to a wider pool for another container",
    "back": "of these, gone back",
    "squeezed": "containers with a request left with fewer CPUs to share, each time",
    "burstable cross": "Burstable containers with a limit that span sockets",
    "refused": "creations refused for CPUs",
    "avoidable": "of these, with as many CPUs unrequested as they ask for",
    "resizes refused": "resizes refused",
}


class ChangingNode:
    """A node on which containers come, grow, shrink and go."""

    def __init__(self, cpus: int, seed: int) -> None:
        self.counts = dict.fromkeys(COUNTED, 0)
        self._random = random.Random(seed)
        self._cpus = cpus
        self._engine = Engine(
            nodes.machine(MACHINES[cpus]), nodes.settings(reservedResources={"cpu": "cpuset:0"})
        )
        self._requested: dict[str, int] = {}  # container id -> milli-CPU
        self.events: list[Event] = []  # the history so far

    def run(self) -> None:
        for _ in range(EVENTS):
            if self._requested and self._random.random() < 0.1:
                self._resize(self._random.choice([*self._requested]))
            else:
                self._create(self._newcomer())

    def _newcomer(self) -> Container:
        draw, whole = self._random.random(), self._size()
        few = self._random.randrange(100, 1000, 50)
        if draw < 0.4:
            made, memory = nodes.container(1000 * whole), 1536 * whole
        elif draw < 0.5:
            made, memory = nodes.container(1000 + few), 2048
        elif draw < 0.6:
            made, memory = nodes.container(few), 1024
        elif draw < 0.85:
            limit = 2 * few if draw < 0.75 else few + 1000 * whole
            made, memory = nodes.container(few, limit), 512
        elif draw < 0.9:
            made, memory = nodes.container(few, qos=QoS.BURSTABLE), 0
        else:
            made, memory = nodes.best_effort(), 0
        return replace(made, resources=replace(made.resources, memory_limit=memory << 20))

    def _size(self) -> int:
        mean = max(2.0, self._cpus / 24)
        return 1 + min(int(self._random.expovariate(1 / mean)), self._cpus // 3)

    def _create(self, container: Container) -> None:
        milli = container.resources.cpu_request
        while sum(self._requested.values()) + milli > LOAD * 1000 * self._cpus:
            self._stop(self._random.choice([*self._requested]))
        state = self._engine.state
        before = state.snapshot()
        fewest = _fewest(state, milli // 1000)
        unrequested = 1000 * len(state.supply.free_cpus()) - _requested(
            state, state.layout.tree.top
        )
        sent = dict(before.sent)
        try:
            decision = self._handle(Created(container=container))
        except PlacementError as refusal:
            if refusal.lack is Lack.CPU:
                self.counts["refused"] += 1
                self.counts["avoidable"] += milli <= unrequested
            return
        self._requested[container.id] = milli
        placed = self._engine.state.placed[container.id]
        self._count_moves(decision)
        if placed.grant.exclusive and not placed.grant.shares:
            self._judge(placed, fewest)
            self._judge_changes(decision, sent)
        elif placed.request.qos is QoS.BURSTABLE and placed.request.cpu_limit is not None:
            self.counts["burstable cross"] += spans_sockets_in_vain(
                self._engine.layout.machine,
                self._engine.state.sent[container.id][0],
                placed.request.cpu_limit,
            )

    def _judge(self, placed: Placed, fewest: _Counts) -> None:
        counts, machine = self.counts, self._engine.layout.machine
        own = placed.grant.exclusive
        touched = self._touched(own)
        if fewest != _NOWHERE:
            for at, name in enumerate(("sockets", "nodes", "l3s")):
                counts[name] += max(0, touched[at] - fewest[at])
                if touched[at] != fewest[at]:  # fewer: others made way
                    break
        layout = self._engine.layout
        width = layout.picker.domains.touched(own)
        counts["wide"] += width > layout.widths.least(len(own))
        others = CPUSet.union(
            each.grant.exclusive
            for each in self._engine.state.placed.values()
            if each is not placed
        )
        judged = judge(machine, own, placed.grant.mems, others)
        for name, count in judged.items():
            counts[name] += count
        cores = sum(not core.cpus.isdisjoint(own) for core in machine.cores)
        counts["avoidable cores"] += judged["more cores"] and (*touched, cores) > fewest

    def _count_moves(self, decision: Decision) -> None:
        state = self._engine.state
        for each in decision.moved:
            grant = state.placed[each.container_id].grant
            name = "moved" if each.after > each.before else "back"
            self.counts[name] += not grant.preemptible

    def _judge_changes(self, decision: Decision, sent: dict[str, tuple[CPUSet, CPUSet]]) -> None:
        for each, change in decision.changes.items():
            request = self._engine.state.placed[each].request
            fewer = len(change.cpus) < len(sent[each][0])
            self.counts["squeezed"] += request.shared > 0 and fewer

    def _touched(self, cpus: CPUSet) -> _Counts:
        return tuple(
            sum(not cpus.isdisjoint(domain) for domain in _domains(self._engine.state, level))
            for level in LEVELS
        )

    def _resize(self, container_id: str) -> None:
        placed = self._engine.state.placed[container_id]
        if placed.request.qos is not QoS.GUARANTEED:
            return
        milli = placed.request.milli + self._random.choice((-1000, 1000))
        if milli < 1000 or milli > 333 * self._cpus:
            return
        try:
            decision = self._handle(
                Resized(container_id=container_id, resources=nodes.resources(milli, milli))
            )
        except PlacementError:
            self.counts["resizes refused"] += 1
            return
        self._count_moves(decision)
        self._requested[container_id] = milli

    def _stop(self, container_id: str) -> None:
        del self._requested[container_id]
        self._count_moves(self._handle(Stopped(container_id=container_id)))

    def _handle(self, event: Event) -> Decision:
        self.events.append(event)
        return self._engine.handle(event)


def judge(machine: Machine, own: CPUSet, mems: CPUSet, others: CPUSet) -> dict[str, int]:
    """Return what counts of a container on whole CPUs of its *own*, with memory on nodes *mems*.

    *others* are the exclusive CPUs of other containers.
    """
    packages = [each.cpus for each in machine.packages]
    nodes_ = [each.cpus for each in machine.nodes]
    near = CPUSet(id_ for id_, cpus in machine.near_cpus.items() if cpus & own)
    cores = [core.cpus for core in machine.cores if core.cpus & own]
    threads = max(len(core.cpus) for core in machine.cores)
    beside = any(core & others for core in cores)
    crosses = spans(own, packages)
    return {
        "exclusive": 1,
        "cross sockets": crosses and len(own) <= max(map(len, packages)),
        "cross nodes": not crosses and spans(own, nodes_) and len(own) <= max(map(len, nodes_)),
        "memory away": not mems <= near,
        "more cores": len(cores) > -(-len(own) // threads),
        "strangers' cores": beside,
        "larger beside others": beside and len(own) > 1,
        "open threads": len(CPUSet.union(cores) - own),
    }


def spans(cpus: CPUSet, domains: Iterable[CPUSet]) -> bool:
    """Whether *cpus* are in several of the *domains*."""
    return sum(not cpus.isdisjoint(domain) for domain in domains) > 1


def spans_sockets_in_vain(machine: Machine, cpus: CPUSet, milli: int) -> bool:
    """Whether a container limited to *milli* CPU may use several sockets, though one is enough."""
    packages = [each.cpus for each in machine.packages]
    return milli <= 1000 * max(map(len, packages)) and spans(cpus, packages)


def _domains(state: State, level: Level) -> set[CPUSet]:
    tree = state.layout.tree
    return {tree.at_level(leaf, level).cpus for leaf in tree.pools if not leaf.children}


def _requested(state: State, pool: Pool) -> int:
    """Return the milli-CPU that containers on shared CPUs request below *pool*."""
    return state.supply.shared_milli_in(pool.id)


def _fewest(state: State, n: int) -> _Counts:
    """Return the fewest sockets, then nodes, L3 domains and cores that hold *n* CPUs by §2.

    Pool by pool from the leaves: the least cost of each number of CPUs cut out of it. Containers
    without a request do not count.
    """
    tree, free, cores = state.layout.tree, state.supply.free_cpus(), state.layout.machine.cores
    weights: dict[CPUSet, list[int]] = {}
    for at, level in enumerate(LEVELS):
        for cpus in _domains(state, level):
            weights.setdefault(cpus, [*_NONE])[at] = 1
    costs: list[list[_Counts]] = []
    for pool in tree.pools:
        milli = _requested(state, pool)
        spare = 1000 * len(free & pool.cpus) - (max(milli, 1000) if milli else 0)
        cost = [_NONE]
        for child in pool.children:
            cost = _merged(cost, costs[child], n)
        if not pool.children:
            left = (len(core.cpus & free) for core in cores if core.cpus <= pool.cpus)
            for used, threads in enumerate(sorted(left, reverse=True), 1):
                cost += [(*_NONE[1:], used)] * threads
        cost = cost[: 1 + max(0, spare) // 1000][: 1 + n]
        weight = weights.get(pool.cpus, _NONE)
        costs.append(
            [cost[0], *(tuple(map(sum, zip(each, weight, strict=True))) for each in cost[1:])]
        )
    return costs[-1][n] if n < len(costs[-1]) else _NOWHERE


def _merged(one: Sequence[_Counts], other: Sequence[_Counts], n: int) -> list[_Counts]:
    merged = [_NOWHERE] * min(n + 1, len(one) + len(other) - 1)
    for a, costs in enumerate(one):
        for b, more in enumerate(other[: len(merged) - a]):
            merged[a + b] = min(merged[a + b], tuple(map(sum, zip(costs, more, strict=True))))
    return merged


def counted(cpus: int) -> dict[str, int]:
    """Return the counts of all lives on a machine."""
    total = dict.fromkeys(COUNTED, 0)
    for seed in SEEDS:
        changing = ChangingNode(cpus, seed)
        changing.run()
        for name, count in changing.counts.items():
            total[name] += count
    return total


def sections() -> Iterator[Section]:
    counts = {cpus: counted(cpus) for cpus in MACHINES}
    yield Section(
        title="Quality",
        text=f"{len(SEEDS)} histories of {EVENTS} events on each machine at {LOAD:.0%} load.",
        head=("what", *(f"{cpus} CPUs" for cpus in MACHINES)),
        rows=[
            (text, *(str(counts[cpus][name]) for cpus in MACHINES))
            for name, text in COUNTED.items()
        ],
    )


def main() -> None:
    for section in sections():
        print(section.plain())
