"""Random lives of a node with claims: ordinary containers, claims, restarts and resizes between.

The scheduler's part is played by a ledger of what was published last: it allocates what fits there,
and nothing else. Whatever it allocated must be granted (spec dra.md §2.2, §5).
"""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from msgspec.structs import replace

from nri_policy.dra.cpu_devices import published
from nri_policy.dra.resource_slice import faults, slice_of
from nri_policy.engine.event import Created, Prepared, Synchronized, Unprepared
from nri_policy.foundation.refusal import Refused
from nri_policy.node import view_of
from nri_policy.workload.claim import ClaimPart
from nri_policy.workload.pod import Container
from tests.support import bookkeeping, nodes
from tests.support.claims import part, user
from tests.support.engine_driver import EngineDriver
from tests.support.resources import invalid_slice

MACHINES = (nodes.SMALL, "package:2 numa:1 core:4 pu:1", "package:1 numa:2 l3:2 core:4 pu:1")
AMOUNTS = st.sampled_from([300, 500, 1000, 1500, 2000, 2500, 3000, 4000])


class NodeWithClaims(RuleBasedStateMachine):
    """A node whose claims are allocated from the devices that it published last."""

    machine = nodes.SMALL

    def __init__(self) -> None:
        super().__init__()
        self.number = 0
        self.driver = EngineDriver(self.machine, dra={"makeRoom": "exclusive"})
        self.values: dict[str, int] = {}
        self.claims: dict[str, ClaimPart] = {}  # allocated; prepared or not yet
        self.prepared: set[str] = set()
        self.containers: dict[str, Container] = {}
        self.publish()

    @rule()
    def publish(self) -> None:
        """What ordinary containers leave is published."""
        view = view_of(self.driver.engine)
        values = published(view, self.values)
        made = slice_of(view.layout, values, "node-a", {"uid": "u"})
        assert not [*faults(made)], "we would not write it"
        assert not [*invalid_slice(made)], "the API server would refuse it"
        self.values = {each.device.name: each.cpus for each in values}

    @rule(milli=AMOUNTS, node=st.integers(0, 3))
    def allocate(self, milli: int, node: int) -> None:
        """The scheduler allocates a claim if it fits into what is published."""
        device = f"numa{node}"
        used = sum(each.milli for each in self.claims.values() if each.device == device)
        if used + milli > 1000 * self.values.get(device, 0) or not self._has_room(milli):
            return
        self.number += 1
        made = part(milli, node, claim=f"c{self.number}")
        pools = {pool.id: pool.name for pool in self.driver.engine.layout.tree.pools}
        named = {
            each.device.name: pools[each.device.pool]
            for each in published(view_of(self.driver.engine), {})
        }
        self.claims[made.claim] = replace(made, pool=named[device])

    @precondition(lambda self: self.claims.keys() - self.prepared)
    @rule()
    def prepare(self) -> None:
        """The kubelet has a claim prepared that was allocated: it is never refused."""
        claim = min(self.claims.keys() - self.prepared)
        self.driver.handle(Prepared(parts=(self.claims[claim],)))
        self.prepared.add(claim)

    @precondition(lambda self: self.prepared)
    @rule(data=st.data())
    def use(self, data: st.DataObject) -> None:
        """A container comes that uses a claim."""
        made = self.claims[data.draw(st.sampled_from(sorted(self.prepared)))]
        milli = data.draw(st.sampled_from([0, made.milli]))
        container = user(made, milli=milli)
        self.driver.handle(Created(container=container))
        self.containers[container.id] = container

    @rule(milli=AMOUNTS, exclusive=st.booleans())
    def create(self, milli: int, exclusive: bool) -> None:
        """An ordinary container comes, if the scheduler's other ledger has room for it."""
        if not self._has_room(milli):
            return
        container = nodes.container(milli) if exclusive else nodes.container(milli, 2 * milli)
        try:
            self.driver.handle(Created(container=container))
        except Refused:
            return
        self.containers[container.id] = container

    def _has_room(self, milli: int) -> bool:
        """Whether the scheduler's other ledger, of requests, has room on the node.

        It is of whole CPUs here: claims of a fraction need one each, wherever they are.
        """
        asked = [_whole(each.milli) for each in self.claims.values()]
        asked += [_whole(self._milli(each)) for each in self.containers.values()]
        return sum(asked) + _whole(milli) <= len(self.driver.engine.layout.capacity.sharable)

    def _milli(self, container: Container) -> int:
        """Return what an ordinary container requests; a claim's is counted with the claim."""
        return 0 if container.claims else container.resources.cpu_request

    @rule()
    def create_idle(self) -> None:
        """One comes that requests nothing."""
        container = nodes.best_effort()
        self.driver.handle(Created(container=container))
        self.containers[container.id] = container

    @precondition(lambda self: self.containers)
    @rule(data=st.data())
    def stop(self, data: st.DataObject) -> None:
        """A container ends."""
        container = self.containers.pop(data.draw(st.sampled_from(sorted(self.containers))))
        self.driver.stop(container)

    @precondition(lambda self: self.prepared)
    @rule(data=st.data())
    def unprepare(self, data: st.DataObject) -> None:
        """A claim is given back, be it in use or not; the scheduler forgets it once it is free."""
        claim = data.draw(st.sampled_from(sorted(self.prepared)))
        self.driver.handle(Unprepared(claim=claim))
        if any(self.claims[claim].id in each.claims for each in self.containers.values()):
            return
        self.prepared.discard(claim)
        del self.claims[claim]

    @rule()
    def restart(self) -> None:
        """The daemon dies, and comes back with what is stored: all keep what they have."""
        view = view_of(self.driver.engine)
        held = {each: view.to_store(each) for each in view.holders}
        listed = tuple(
            nodes.running(placed.container, *view.sent[each], view.quotas.get(each))
            for each, placed in view.placed.items()
        )
        again = EngineDriver(self.machine, dra={"makeRoom": "exclusive"})
        again.handle(Synchronized(containers=listed, held=held))
        for each in view.placed:
            again.runtime.cpus[each], again.runtime.mems[each] = view.sent[each]
        assert not again.decision.changes, "a restart moves no container, nor who shares a claim"
        was = {each: held.grant.exclusive for each, held in view.claims.items()}
        now = {each: it.grant.exclusive for each, it in again.engine.state.claims.items()}
        ending = {each for each, it in view.claims.items() if it.grant.ending}
        assert {**was} == now or was.keys() - now.keys() <= ending
        self.driver = again

    @invariant()
    def books_are_right(self) -> None:
        bookkeeping.check(self.driver.engine, self.driver.runtime)


def _whole(milli: int) -> int:
    return -(-milli // 1000)


class OnOneNodeASocket(NodeWithClaims):
    machine = MACHINES[1]


class OnL3Domains(NodeWithClaims):
    machine = MACHINES[2]


TestNodeWithClaims = NodeWithClaims.TestCase
TestOnOneNodeASocket = OnOneNodeASocket.TestCase
TestOnL3Domains = OnL3Domains.TestCase
