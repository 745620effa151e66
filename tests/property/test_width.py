"""Lives of small, nearly full nodes in which containers make way for width again and again (§2).

From fixed seeds, so that it is known how often the rule was met: too seldom is a failure.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from itertools import combinations
from typing import Any, NamedTuple

import pytest
from msgspec.structs import replace

from nri_policy.engine.choice.choice import Choice
from nri_policy.engine.choice.shortage import PlacementError
from nri_policy.engine.engine import Engine
from nri_policy.engine.event import Created, Event, Resized, ResizeEnded, Stopped, Synchronized
from nri_policy.engine.grant import Decision
from nri_policy.engine.placement.making_way import width_of
from nri_policy.engine.placement.placement import place
from nri_policy.engine.placement.rebooking import move_up
from nri_policy.engine.state.state import State
from nri_policy.foundation.cpuset import EMPTY, CPUSet
from nri_policy.manifests.quality_of_service import QoS
from nri_policy.node import view_of
from nri_policy.pools.capacity import Earlier
from nri_policy.pools.supply import Column
from nri_policy.store.encoding import decode_grant, encode
from nri_policy.workload.annotation_values import HintKind
from nri_policy.workload.hints import Hint
from nri_policy.workload.pod import Container
from tests.support import bookkeeping, nodes


class Node(NamedTuple):
    """A machine with settings, and how often its lives have to meet the rule."""

    machine: str
    spec: Mapping[str, Any]
    moves: int = 20  # decisions in which sharers move up for width, at least


NODES = {
    "two sockets": Node("package:2 numa:1 core:4 pu:1", {}),
    "four nodes": Node("package:2 numa:2 core:2 pu:1", {}),
    "caches": Node("package:2 numa:1(memory=4GiB) l3:2 core:2 pu:1", {}),
    "sixteen CPUs": Node("package:2 numa:2(memory=4GiB) l3:2 core:2 pu:2", {}),
    "aligned": Node("package:1 numa:2 l3:2 core:4 pu:1", {"alignment": "numa"}, 10),
    "tight": Node("package:2 numa:2 core:2 pu:1", {"packing": "tight"}),
    "whole cores": Node("package:2 numa:2 core:2 pu:2", {"fullCores": "require"}),
    "priorities": Node(
        "package:2 numa:2 core:2 pu:1 base=2GHz base@0-3=3GHz", {"defaultCPUPriority": "high"}
    ),
    "kinds of memory": Node("package:2(hbm=1GiB cxl=2GiB) numa:1(memory=2GiB) core:4 pu:1", {}),
}
# how often at least: a last resort, one that goes back, a restart before others move, a refusal
LAST, BACK, RESTARTS, REFUSED = 15, 20, 15, 100
EVENTS = 250
SEEDS = 8
STATIC = {"static-cpus.resource-policy.nri.io/pod": "true"}
STRICT = {"strict.topologyhints.resource-policy.nri.io/pod": "true"}
KINDS = tuple(
    {"memory-type.resource-policy.nri.io/pod": kinds} for kinds in ("hbm", "dram", "dram,pmem")
)


class Life:
    """One node, nearly full, and beside it now and then one that has just been restarted."""

    def __init__(self, node: Node, seed: int) -> None:
        self.random = random.Random(seed)
        self.settings = nodes.settings(reservedResources={"cpu": "cpuset:0"}, **node.spec)
        self.machine = nodes.machine(node.machine)
        self.engine = Engine(self.machine, self.settings)
        self.untouched = self.engine.state.snapshot()
        self.runtime = bookkeeping.Runtime()
        self.running: dict[str, Container] = {}
        self.counts = Counter[str]()

    def run(self) -> None:
        for _ in range(EVENTS):
            draw, running = self.random.random(), [*self.running.values()]
            if draw < 0.55 or not running:
                container = self._newcomer()
                if self.handle(Created(container=container)):
                    self.running[container.id] = container
                else:
                    self._stop(self.random.choice(running or [container]))
            elif draw < 0.7:
                self._resize(self.random.choice(running))
            else:
                self._stop(self.random.choice(running))
        for container in [*self.running.values()]:
            self._stop(container)
        assert self.engine.state.snapshot() == self.untouched

    def _newcomer(self) -> Container:
        draw, few = self.random.random(), self.random.choice((100, 200, 300, 700, 1200))
        annotations: dict[str, str] = {}
        if self.random.random() < 0.2:
            annotations = self.random.choice((STATIC, STRICT))
        elif len({node.kind for node in self.machine.nodes}) > 1 and self.random.random() < 0.3:
            annotations = self.random.choice(KINDS)
        if draw < 0.45:
            whole = 1000 * self.random.choice((1, 2, 2, 3, 4))
            made = nodes.container(whole, annotations=annotations)
        elif draw < 0.5:
            made = nodes.container(1500)
        elif draw < 0.75:
            made = nodes.container(few, 2 * few, annotations=annotations)
        elif draw < 0.9:
            made = nodes.container(few, qos=QoS.BURSTABLE, annotations=annotations)
        else:
            made = nodes.best_effort()
        if annotations is STRICT:
            node = self.random.choice(self.machine.nodes).id
            hint = Hint(kind=HintKind.DEVICES, source="/dev/one", cpus=EMPTY, nodes=CPUSet([node]))
            made = replace(made, hints=(hint,))
        memory = self.random.choice((0, 0, 1 << 29))
        return replace(made, resources=replace(made.resources, memory_limit=memory))

    def _resize(self, container: Container) -> None:
        milli = 1000 * self.random.choice((1, 2, 3, 4))
        if container.pod.qos is not QoS.GUARANTEED:
            return
        resources = nodes.resources(milli, milli)
        certain = self.random.random() < 0.5
        if self.handle(Resized(container_id=container.id, resources=resources, certain=certain)):
            self.handle(ResizeEnded(container_id=container.id))

    def _stop(self, container: Container) -> None:
        self.running.pop(container.id, None)
        self.handle(Stopped(container_id=container.id))
        self.runtime.forget(container.id)

    def handle(self, event: Event) -> bool:
        """Let it happen; return whether it was taken."""
        before, known = self.engine.state.snapshot(), dict(self.engine.state.placed)
        earlier = self.engine.state.fork()
        # what a resize frees that is not in force yet, a restart takes as freed
        restarts = self.random.random() < 0.2 and not self.engine.state.resizing
        other = self._restarted() if restarts else None
        narrowest = self._narrowest(event)
        try:
            decision = self.engine.handle(event)
        except PlacementError:
            assert self.engine.state.snapshot() == before, "a refusal changes nothing"
            self.counts["refused"] += 1
            if other is not None:
                with pytest.raises(PlacementError):
                    other.handle(event)
            return False
        self.runtime.apply(decision)
        if not self.engine.state.resizing:
            bookkeeping.check(self.engine, self.runtime)
        self._check_memory()
        due = bookkeeping.due(self.engine)
        assert {each: (self.runtime.cpus[each], self.runtime.mems[each]) for each in due} == due
        self._check_moves(decision)
        if isinstance(event, Created):
            self._check_last_resort(earlier, event.container, decision)
        for each in decision.moved:
            mover = self.engine.state.placed[each.container_id]
            had = known[each.container_id].grant.mems
            # nodes are only added, and only where no bytes are booked
            assert mover.grant.mems >= had
            assert mover.grant.mems == had or not mover.request.memory
        if narrowest is not None:
            state = self.engine.state
            grant = state.placed[decision.container_id or ""].grant
            assert width_of(state.layout, grant) <= narrowest, "fewer domains would do"
        if other is not None:
            other.handle(event)
            assert _grants(other) == _grants(self.engine), "a restart changes later decisions"
            self.counts["restarts"] += bool(decision.moved)
        return True

    def _check_moves(self, decision: Decision) -> None:
        """Count moved containers; exempt ones never move."""
        state, up = self.engine.state, 0
        for each in decision.moved:
            placed = state.placed[each.container_id]
            note = placed.explanation.notes[-1]
            if note.startswith("back on"):
                self.counts["back"] += 1
                assert placed.grant.returned
            if placed.grant.preemptible or note.startswith("back on"):
                continue
            assert placed.request.movable
            assert not (placed.request.steering.strict_hints and placed.request.steering.hints)
            assert placed.grant.shared
            assert not placed.grant.exclusive
            up += note.endswith("needs CPUs close together")
            self.counts["last resort"] += note.endswith("had no room otherwise")
        assert up <= 4
        self.counts["width"] += up > 0

    def _check_memory(self) -> None:
        """Assert I6: what is booked within any set of nodes fits there."""
        state = self.engine.state
        map_, ids = state.layout.memory, [*state.layout.memory.nodes]
        booked = [(placed.grant.mems, placed.request.memory) for placed in state.placed.values()]
        for count in range(1, len(ids) + 1):
            for members in map(CPUSet, combinations(ids, count)):
                inside = sum(amount for zone, amount in booked if zone <= members)
                assert inside <= map_.capacity_of(members), f"I6: {members} are overbooked"

    def _check_last_resort(self, earlier: State, container: Container, decision: Decision) -> None:
        """Without any one of those moved it would be refused, and trials do not find fewer."""
        placed, pools = self.engine.state.placed, earlier.layout.tree.pools
        up = {
            each.container_id: each.after
            for each in decision.moved
            if placed[each.container_id].explanation.notes[-1].endswith("had no room otherwise")
        }
        for kept in up:
            others = {each: after for each, after in up.items() if each != kept}
            assert self._tried(earlier, container, others) is None, "who does not help has moved"
        parents = {each: pools[pool].parent or 0 for *_, each, pool in earlier.movers_in_order()}
        if len(up) > 1:
            self.counts["several"] += 1
            for each, above in parents.items():
                assert self._tried(earlier, container, {each: above}) is None, "one would do"

    def _restarted(self) -> Engine:
        """Return an engine that has just taken over from this one."""
        view = view_of(self.engine)
        held = {each: decode_grant(encode(view.to_store(each))) for each in view.placed}
        earlier = Earlier(reserved=view.layout.capacity.reserved, exclusive=view.exclusive)
        engine = Engine(self.machine, self.settings, earlier)
        engine.handle(Synchronized(containers=self._inventory(), held=held))
        assert _grants(engine) == _grants(self.engine)
        return engine

    def _inventory(self) -> tuple[Container, ...]:
        return tuple(
            nodes.running(
                self.engine.state.placed[each].container,
                self.runtime.cpus[each],
                self.runtime.mems[each],
                self.runtime.quotas.get(each),
            )
            for each in self.engine.state.placed
        )

    def _narrowest(self, event: Event) -> tuple[int, int, int] | None:
        """Return the least width in a pool that any 4 sharers have left, by trying them all.

        None where the rule is not about *event*.
        """
        state = self.engine.state
        if len(self.machine.online) > 8 or not isinstance(event, Created):
            return None
        request, _ = state.layout.requests.read(event.container)
        first = self._tried(state, event.container, {})
        if not request.exclusive or first is None or first.grant.isolated:
            return None
        assert first.findings.table is not None
        row = first.findings.table.row(first.grant.pool)[: Column.DEPTH]
        least = width_of(state.layout, first.grant)
        pools, widths = state.layout.tree.pools, state.layout.widths
        if least <= widths.least(request.exclusive + request.shares):
            return least
        for target in pools[:-1]:
            if widths.pools[target.id] >= least:
                continue
            inside = [
                each
                for *_, each, pool in state.movers_in_order()
                if target in state.layout.tree.path(pools[pool])
            ]
            for count in range(1, 5):
                for members in combinations(inside, count):
                    above = dict.fromkeys(members, target.parent or 0)
                    choice = self._tried(state, event.container, above)
                    if choice is None or choice.findings.table is None:
                        continue
                    other = choice.findings.table.row(choice.grant.pool)[: Column.DEPTH]
                    if choice.grant.exclusive <= target.cpus and other >= row:
                        least = min(least, width_of(state.layout, choice.grant))
        return least

    def _tried(self, earlier: State, container: Container, above: dict[str, int]) -> Choice | None:
        """Return what is chosen in a state with sharers moved, by id; None if it is refused."""
        state = earlier.fork()
        for each, pool in above.items():
            move_up(state, each, state.layout.tree.pools[pool], "a trial")
        request, _ = state.layout.requests.read(container)
        try:
            return place(state, container, request, last=False)
        except PlacementError:
            return None


def _grants(engine: Engine) -> dict[str, object]:
    return {each: placed.grant for each, placed in engine.state.placed.items()}


@pytest.mark.parametrize("name", NODES)
def test_the_rule_keeps_the_books_right_and_finds_what_there_is(name: str) -> None:
    counts, node = Counter[str](), NODES[name]
    for seed in range(SEEDS):
        life = Life(node, seed)
        life.run()
        counts += life.counts
    assert counts["width"] >= node.moves, counts
    assert counts["last resort"] >= LAST, counts
    assert counts["back"] >= BACK, counts
    assert counts["restarts"] >= RESTARTS, counts
    assert counts["refused"] >= REFUSED, counts
