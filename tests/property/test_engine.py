"""The engine under random events: invariants, determinism, full release, brute-force oracle."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from typing import Any, TypeVar

from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from nri_policy.engine.choice.shortage import PlacementError
from nri_policy.engine.engine import Engine
from nri_policy.engine.event import (
    Created,
    Drifted,
    Event,
    PodStopped,
    Reconfigured,
    Resized,
    Stopped,
    Synchronized,
)
from nri_policy.engine.grant import Decision, HeldGrant
from nri_policy.engine.state.state import Placed
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.hardware.machine import Cache, Core, CoreCluster, Die, Machine, Package
from nri_policy.manifests.quality_of_service import QoS
from nri_policy.node import view_of
from nri_policy.pools.capacity import NOTHING, CapacityError, Earlier
from nri_policy.pools.tree import Pool, PoolTree
from nri_policy.store.encoding import decode_grant, encode
from nri_policy.workload.pod import Container
from nri_policy.workload.preferences import preferences
from nri_policy.workload.request import Request, Sort, request_of
from tests.support import bookkeeping, nodes

MACHINES = (
    nodes.SMALL,
    "package:1 core:4 pu:1",
    "package:3 core:3 pu:2",
    "package:2 numa:1 l3:2 core:2 pu:2",
    "package:1 numa:3 core:1 pu:4",
    "package:2 numa:1 core:3 pu:2 isolated=2-3,8",
    "package:2 numa:2(memory=4GiB,0) l3:1 core:2 pu:1",
    "package:1 core:5(efficiency=2) pu:2",
    "package:2 numa:1(hugepages-1Gi=1,4 hugepages-2Mi=64,0) core:4 pu:1",
    "package:2 numa:1 core:34 pu:1 isolated=62-66 offline=2-31,34-60",
)
_Group = TypeVar("_Group", Package, Die, CoreCluster, Core, Cache)
EXAMPLES = 500  # 4 s of CPU a hundred; `make fuzz` tries new ones
MAX_COPIES = 3  # of a container, created one after another

amounts = st.sampled_from((0, 100, 500, 999, 1000, 1500, 2000, 2500, 3000, 4000, 5000, 8000))
specs = st.fixed_dictionaries(
    {},
    optional={
        "preferSharedCPUs": st.booleans(),
        "preferIsolatedCPUs": st.booleans(),
        "preserve": st.sampled_from(("all", "unowned")),
        "alignment": st.sampled_from(("none", "numa")),
        "defaultCPUPriority": st.sampled_from(("high", "low")),
        "unlimitedBurstable": st.sampled_from(("system", "package", "die", "numa", "l3cache")),
        "reservedResources": st.sampled_from(({"cpu": "750m"}, {"cpu": "cpuset:1"}, {"cpu": 2})),
        "reservedPoolNamespaces": st.sampled_from(([], ["default"])),
    },
)
wishes = st.dictionaries(
    st.sampled_from(
        (
            "prefer-shared-cpus",
            "prefer-isolated-cpus",
            "require-isolated-cpus",
            "prefer-reserved-cpus",
            "hide-hyperthreads",
            "static-cpus",
            "cpu.preserve",
        )
    ).map(lambda key: f"{key}.resource-policy.nri.io/pod"),
    st.sampled_from(("true", "false")),
    max_size=2,
)


def once(step: Callable[[Node], None]) -> Callable[[Node], None]:
    """Take a step if there are containers, and something else has happened since it was taken."""

    def taken(self: Node) -> None:
        if self.running and step.__name__ not in self.repeated:
            self.repeated.add(step.__name__)
            step(self)

    taken.__name__ = step.__name__
    return rule()(taken)


@st.composite
def _containers(draw: st.DrawFn) -> dict[str, Any]:
    """Draw what `nodes.container` makes a container of, as a kubelet would have it."""
    qos = draw(st.sampled_from(QoS))
    request = 0 if qos is QoS.BEST_EFFORT else draw(amounts)
    limits = {QoS.GUARANTEED: st.just(request), QoS.BURSTABLE: st.none() | amounts}
    return {
        "request": request,
        "limit": draw(limits.get(qos, st.none())),
        "qos": qos,
        "namespace": draw(st.sampled_from(("default", "default", "kube-system"))),
        "annotations": draw(wishes),
    }


def _resizable(request: int) -> tuple[QoS, ...]:
    """Return whose containers a kubelet can give *request*: BestEffort ones have no amounts."""
    return (QoS.BURSTABLE, QoS.GUARANTEED) if request else (QoS.BURSTABLE,)


class Node(RuleBasedStateMachine):
    """One node's life, in two engines side by side.

    Most steps are to do something: a restart of a node that nothing happened to since the last one
    says nothing new.
    """

    @initialize(
        spec=specs,
        machine=st.sampled_from(MACHINES),
        first=st.lists(_containers(), max_size=MAX_COPIES),
    )
    def start(self, spec: dict[str, object], machine: str, first: list[dict[str, Any]]) -> None:
        self.whole = self.machine = nodes.machine(machine)
        self.spec = spec
        self.engines = self.two_engines()
        self.untouched = self.engines[0].state.snapshot()
        self.runtime = bookkeeping.Runtime()
        self.running: dict[str, Container] = {}
        self.repeated: set[str] = set()  # steps since the last that changed something
        for wanted in first:
            self.create(wanted, copies=1, admitted=False)

    def two_engines(self, earlier: Earlier = NOTHING) -> list[Engine]:
        """Return an engine and a fork of it: what one does must not show in the other."""
        engine = Engine(self.machine, nodes.settings(**self.spec), earlier)
        return [engine, engine.fork()]

    def handle(self, event: Event) -> Decision | None:
        """Give both engines the event; None if they refuse it, and then nothing has changed."""
        outcomes: list[Decision | str] = []
        for engine in self.engines:
            before = engine.state.snapshot()
            try:
                outcomes.append(engine.handle(event))
            except (PlacementError, CapacityError) as refusal:
                outcomes.append(str(refusal))
                assert engine.state.snapshot() == before
        one, other = outcomes
        if isinstance(one, str) or isinstance(other, str):
            assert one == other
            return None
        assert (one.grant, one.placement, one.warnings) == (
            other.grant,
            other.placement,
            other.warnings,
        )
        assert [*one.changes.items()] == [*other.changes.items()], "in the same order"
        self.runtime.apply(one)
        return one

    @rule(wanted=_containers(), copies=st.integers(1, MAX_COPIES), admitted=st.booleans())
    def create(self, wanted: dict[str, Any], copies: int, admitted: bool) -> None:
        for _ in range(copies):
            self._create(self.with_huge_pages(nodes.container(**wanted)), admitted=admitted)
            self.books_are_right()

    def with_huge_pages(self, container: Container) -> Container:
        """Return *container* with a huge page for each CPU, where that is never refused (§7)."""
        layout, whole = self.engines[0].layout, container.resources.cpu_request // 1000
        if not whole or layout.aligned or not layout.memory.hugepages:
            return container
        pages = ((2 << 20, whole << 21), (1 << 30, whole << 30))
        return replace(container, resources=replace(container.resources, hugepages=pages))

    def _create(self, container: Container, *, admitted: bool) -> None:
        engine = self.engines[0]
        wanted = _request(container, engine)
        possible = placeable(engine, wanted)
        decision = self.handle(Created(container=container, admitted=admitted))
        if admitted:
            assert decision is not None, "it runs already"
            got = engine.state.placed[container.id].request
            whole = got.entitlement == wanted.entitlement
            assert whole == (possible or wanted.sort is not Sort.NORMAL)
        elif wanted.sort is Sort.NORMAL:
            assert (decision is not None) == possible, wanted
        else:
            assert decision is not None, "reserved and preserved containers are never refused"
        if decision is not None:
            self.running[container.id] = container
            self.repeated.clear()

    @precondition(lambda self: self.running)
    @rule(data=st.data(), request=amounts)
    def resize(self, data: st.DataObject, request: int) -> None:
        resizable = [each for each in self.running.values() if each.pod.qos in _resizable(request)]
        if not resizable:
            return
        container = data.draw(st.sampled_from(resizable))
        limit = request if container.pod.qos is QoS.GUARANTEED else None
        known = self.engines[0].state.placed[container.id]
        before = known.grant
        decision = self.handle(
            Resized(container_id=container.id, resources=nodes.resources(request, limit))
        )
        after = self.engines[0].state.placed[container.id].grant
        if decision is None:
            assert after == before, "a failed resize lost the old grant"
            resized = replace(container, resized=True, resources=nodes.resources(request, limit))
            wanted = _request(resized, self.engines[0])
            assert not HeldGrant(grant=before, booked=known.request.memory).covers(wanted), (
                "a shrink"
            )
            return
        self.repeated.clear()
        self.running[container.id] = self.engines[0].state.placed[container.id].container
        if after.sort is not before.sort:
            return
        if after.pool == before.pool and after.isolated == before.isolated:
            kept = len(after.exclusive & before.exclusive)
            assert kept == min(len(after.exclusive), len(before.exclusive)), "CPUs were swapped"

    @precondition(lambda self: self.running)
    @rule(data=st.data(), whole_pod=st.booleans())
    def stop(self, data: st.DataObject, whole_pod: bool) -> None:
        container = data.draw(st.sampled_from(list(self.running.values())))
        del self.running[container.id]
        self.repeated.clear()
        self.runtime.forget(container.id)
        event = (
            PodStopped(pod_id=container.pod.id) if whole_pod else Stopped(container_id=container.id)
        )
        assert self.handle(event) is not None

    @once
    def runtime_restart(self) -> None:
        """A new Synchronize of the very same containers changes nothing."""
        decision = self.handle(Synchronized(containers=self.inventory()))
        assert decision is not None
        assert decision.changes == {}

    @once
    def daemon_restart(self) -> None:
        """A new engine reads the grants off the cpusets: exclusive CPUs stay where they are."""
        before = {i: p.grant for i, p in self.engines[0].state.placed.items()}
        ran_on = self.runtime.cpus.copy()
        earlier = in_use(self.engines[0])
        self.engines = self.two_engines(earlier)
        self.untouched = self.engines[0].state.snapshot()
        decision = self.handle(Synchronized(containers=self.inventory()))
        assert decision is not None
        assert self.engines[0].state.placed.keys() == before.keys(), "they run, in the books or not"
        for container_id in self.engines[0].state.placed:
            old = before[container_id]
            asked = self.engines[0].state.placed[container_id].request
            # what hotplug left of a grant cannot be told from its cpuset: it is placed anew
            if len(old.exclusive) == asked.exclusive > 0 and not old.shares:
                assert self.runtime.cpus[container_id] == ran_on[container_id]

    @once
    def daemon_restart_with_store(self) -> None:
        """A new engine with the stored grants grants the same, and tells the runtime nothing.

        Only who has less than it asks for is given its due, if there is room.
        """
        state = self.engines[0].state
        before = {i: placed.grant for i, placed in state.placed.items()}
        squeezed = {
            i
            for i, placed in state.placed.items()
            if placed.request.entitlement != _request(placed.container, self.engines[0]).entitlement
        }
        held = {i: decode_grant(encode(view_of(self.engines[0]).to_store(i))) for i in state.placed}
        self.engines = self.two_engines(in_use(self.engines[0]))
        decision = self.handle(Synchronized(containers=self.inventory(), held=held))
        assert decision is not None
        after = {i: placed.grant for i, placed in self.engines[0].state.placed.items()}
        assert after.keys() == before.keys()
        if not squeezed:
            assert after == before
            assert decision.changes == {}
        for i in before.keys() - squeezed:
            assert after[i].exclusive == before[i].exclusive

    @rule(spec=specs)
    def reconfigure(self, spec: dict[str, object]) -> None:
        if not self.running:
            return
        earlier, known = in_use(self.engines[0]), self.engines[0].state.placed.copy()
        if self.handle(Reconfigured(settings=nodes.settings(**spec))) is not None:
            self.spec = spec
            self.repeated.clear()
            fresh = Engine(self.machine, nodes.settings(**spec), earlier)
            self.untouched = fresh.state.snapshot()
            self._those_that_turn_reserved_are_so(known)

    def _those_that_turn_reserved_are_so(self, known: dict[str, Placed]) -> None:
        """Unless they ask for more than the reserved CPUs have left."""
        state = self.engines[0].state
        left = max(0, 1000 * len(state.layout.capacity.reserved) - state.reserved_milli)
        for container_id, before in known.items():
            now = state.placed[container_id]
            if now.request.sort is Sort.RESERVED is not before.request.sort:
                assert now.grant.sort is Sort.RESERVED or now.grant.shared > left

    @once
    def reload(self) -> None:
        """The settings in force are never refused, whatever became of the machine."""
        before = {i: placed.grant for i, placed in self.engines[0].state.placed.items()}
        decision = self.handle(Reconfigured(settings=nodes.settings(**self.spec)))
        assert decision is not None
        after = self.engines[0].state.placed
        for container_id, grant in before.items():
            assert grant.exclusive <= after[container_id].grant.exclusive

    @rule(data=st.data())
    def drift(self, data: st.DataObject) -> None:
        """Some containers drift and get their updates again; no grant changes."""
        placed = [*self.engines[0].state.placed]
        drifted = [each for each in placed if data.draw(st.booleans())]
        for container_id in drifted:
            del self.runtime.cpus[container_id], self.runtime.mems[container_id]
        before = self.engines[0].state.snapshot()
        decision = self.handle(Drifted(container_ids=tuple(drifted)))
        assert decision is not None
        assert [*decision.changes] == drifted
        assert self.engines[0].state.snapshot() == before

    @rule(data=st.data())
    def hotplug(self, data: st.DataObject) -> None:
        """CPUs go offline or come back: nothing is refused, and who lost some keeps the rest."""
        if not self.running:
            return
        gone = data.draw(st.sets(st.sampled_from(sorted(self.whole.online)[2:]), max_size=3))
        machine = without(self.whole, CPUSet(gone))
        known = self.engines[0].state.placed.copy()
        before = {i: p.grant for i, p in known.items()}
        earlier, cpus_of = in_use(self.engines[0]), _cpus_of_pools(self.engines[0])
        decision = self.handle(Reconfigured(machine=machine))
        assert decision is not None
        self.machine = machine
        self.repeated.clear()
        fresh = Engine(machine, nodes.settings(**self.spec), earlier)
        self.untouched = fresh.state.snapshot()
        placed = self.engines[0].state.placed
        assert placed.keys() == before.keys(), "they run, in the books or not"
        for container_id, placed_ in placed.items():
            held, now = before[container_id], placed_.grant
            own = held.exclusive & self.engines[0].layout.capacity.available
            own -= self.engines[0].layout.capacity.reserved
            assert own <= now.exclusive, "it lost more than went offline"
            if held.exclusive == own and not held.shares:
                assert held.exclusive <= now.exclusive, "nobody who lost nothing moves"
        self._shared_parts_stay(known, cpus_of)

    def _shared_parts_stay(self, known: dict[str, Placed], cpus_of: dict[int, CPUSet]) -> None:
        """Sharers keep the rest of their pool if all sharers there still fit."""
        engine = self.engines[0]
        tree, capacity, placed = engine.layout.tree, engine.layout.capacity, engine.state.placed
        sharers = {
            i: each
            for i, each in known.items()
            if each.grant.sort is Sort.NORMAL
            and each.grant.shares
            and not each.grant.preemptible
            # who has less is given its due, perhaps farther down
            and each.grant.shared == each.request.shared
        }
        heirs = {
            i: tree.around(cpus_of[each.grant.pool] & tree.top.cpus)
            for i, each in sharers.items()
            if not cpus_of[each.grant.pool].isdisjoint(tree.top.cpus)
            and each.request.entitlement == _request(each.container, engine).entitlement
            and each.grant.exclusive <= capacity.sharable | capacity.isolated
        }
        own = CPUSet.union(each.grant.exclusive for each in known.values())
        if sharers.keys() == heirs.keys() and all(
            1000 * len((capacity.sharable - own) & pool.cpus) >= _need_of(known, heirs, pool, tree)
            for pool in tree.pools
        ):
            for i, heir in heirs.items():
                assert placed[i].grant.pool == heir.id, "it has room where it was"

    @invariant()
    def books_are_right(self) -> None:
        bookkeeping.check(self.engines[0], self.runtime)

    def teardown(self) -> None:
        """A full release restores the initial state exactly (I5)."""
        for container in getattr(self, "running", {}).values():
            self.runtime.forget(container.id)
            self.handle(Stopped(container_id=container.id))
        if hasattr(self, "engines"):
            assert self.engines[0].state.snapshot() == self.untouched

    def inventory(self) -> tuple[Container, ...]:
        """Return the running containers with the cpusets that the runtime holds."""
        return tuple(
            nodes.running(
                container, self.runtime.cpus[i], self.runtime.mems[i], self.runtime.quotas.get(i)
            )
            for i, container in self.running.items()
        )


def without(machine: Machine, gone: CPUSet) -> Machine:
    """Return *machine* after some of its CPUs went offline."""

    def left(groups: tuple[_Group, ...]) -> tuple[_Group, ...]:
        return tuple(replace(g, cpus=g.cpus - gone) for g in groups if g.cpus - gone)

    return replace(
        machine,
        online=machine.online - gone,
        offline=machine.offline | gone,
        packages=left(machine.packages),
        dies=left(machine.dies),
        clusters=left(machine.clusters),
        cores=left(machine.cores),
        caches=left(machine.caches),
        nodes=tuple(replace(node, cpus=node.cpus - gone) for node in machine.nodes),
    )


def in_use(engine: Engine) -> Earlier:
    """Return the reserved and exclusive CPUs of *engine*, for its successor."""
    grants = [placed.grant for placed in engine.state.placed.values()]
    return Earlier(
        reserved=engine.layout.capacity.reserved,
        exclusive=CPUSet.union(grant.exclusive for grant in grants),
    )


def _need_of(known: dict[str, Placed], heirs: dict[str, Pool], pool: Pool, tree: PoolTree) -> int:
    """need(Q) of §2 with all in the pools of *heirs*."""
    inside = [known[i].grant.shared for i, heir in heirs.items() if pool in tree.path(heir)]
    return max(1000, sum(inside)) if inside else 0


def _cpus_of_pools(engine: Engine) -> dict[int, CPUSet]:
    return {pool.id: pool.cpus for pool in engine.layout.tree.pools}


def _request(container: Container, engine: Engine) -> Request:
    wishes = preferences(container.pod.annotations, container.name)
    return request_of(container, wishes, engine.layout.settings, engine.layout.machine.memory)


def placeable(engine: Engine, request: Request) -> bool:
    """Whether any pool and any choice of CPUs meets the rules of §2, tried one by one."""
    if request.preemptible:
        return True
    return any(_fits(engine, request, pool) for pool in range(len(engine.layout.tree.pools)))


def _floats(placed: Placed) -> bool:
    """Whether a container only shares, and may be re-booked as far up as it takes."""
    return not placed.grant.exclusive and placed.request.movable


def _fits(engine: Engine, request: Request, pool_id: int) -> bool:
    layout, state = engine.layout, engine.state
    tree = layout.tree
    if request.exclusive and pool_id in layout.too_coarse:
        return False
    pool = tree.pools[pool_id]
    isolated = state.supply.free_isolated_cpus() & pool.cpus
    use_isolated = bool(
        request.exclusive and request.steering.isolated and len(isolated) >= request.exclusive
    )
    if request.steering.isolated == 2 and request.exclusive and not use_isolated:
        return False
    cut = 0 if use_isolated else request.exclusive
    free = set(state.supply.free_cpus())
    needs = {
        q.id: _need(engine, q.id, request if q in tree.path(pool) else None) for q in tree.pools
    }
    return any(
        all(
            1000 * len((free - set(own)) & set(q.cpus)) >= needs[q.id]
            for q in (tree.pools if cut else tree.path(pool) if request.shares else ())
        )
        for own in combinations(sorted(free & set(pool.cpus)), cut)
    )


def _need(engine: Engine, pool_id: int, newcomer: Request | None) -> int:
    """need(Q) of §2, guests not counted and who only shares booked at the top."""
    tree = engine.layout.tree
    grants = [
        placed.grant
        for placed in engine.state.placed.values()
        if placed.grant.sort is Sort.NORMAL
        and placed.grant.shares
        and not placed.grant.preemptible
        and tree.pools[pool_id]
        in tree.path(tree.top if _floats(placed) else tree.pools[placed.grant.pool])
    ]
    milli = sum(grant.shared for grant in grants)
    shares = bool(grants)
    if newcomer is not None and newcomer.shares:
        milli, shares = milli + newcomer.shared, True
    return max(milli, 1000 if shares else 0)


TestNode = Node.TestCase
TestNode.settings = hypothesis_settings(
    max_examples=EXAMPLES,
    stateful_step_count=20,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
