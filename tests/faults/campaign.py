"""The fault campaign: rounds of random pods and one fault each, with the books checked after each.

A round: pods start, change and end while the fault strikes. Then the daemon is restarted if it is
gone, a last pod starts and ends so that all updates are sent, and all that must hold is checked.
Everything is drawn from the seed; which instant a signal hits is not in our hands.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

from msgspec.structs import replace

from nri_policy.engine.event import StoredGrant
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.manifests.resources import Amounts, ManifestError, ResourceChange
from nri_policy.simulation.containers import CRIError, RuntimeState, SimulatedContainer
from nri_policy.workload.request import Sort
from tests.faults import books
from tests.faults.host import DEADLINE, Host, host
from tests.faults.levers import Point
from tests.faults.pods import DOMAIN, Kubelets

ROUNDS_OF_A_NODE = 50  # then all pods go, nothing may be left, and another node comes
RESERVED = {"reservedResources": {"cpu": "750m"}, "preferIsolatedCPUs": True}
NODES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("package:2 numa:2(memory=4GiB) core:2 pu:2", {}),
    ("package:2(pmem=8GiB) numa:1(memory=4GiB) core:4 pu:2", {}),
    ("package:2 numa:1(memory=8GiB) core:4 pu:2 isolated=2-3,8", {"colocatePods": True}),
)
RUNTIMES = (  # that split a Synchronize or not, update pods or not, and tell of events in two ways
    ("containerd", "1.7.24"),
    ("containerd", "2.1.9"),
    ("containerd", "2.4.0"),
    ("cri-o", "1.31.0"),
    ("cri-o", "1.34.0"),
)
PROBE = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "probe", "annotations": {f"cpu.preserve.{DOMAIN}": "false"}},
    "spec": {"containers": [{"name": "c0"}]},
}


class FailedRoundError(AssertionError):
    """Something did not hold; says how to see it again."""


class Campaign:
    """The rounds of one node."""

    def __init__(self, node: Host, random: Random) -> None:
        self.node = node
        self.random = random
        self.pods = Kubelets(node.runtime, random)
        self.own: dict[str, tuple[CPUSet, bool]] = {}
        self.pending: set[str] = set()
        self.lost = False  # what the store knew is gone, or older than what runs
        self.fault = "none"
        self.rounds = 0
        self.counts: Counter[str] = Counter()

    async def prepare(self) -> None:
        """Start the first daemon."""
        self.node.start()
        await self.node.synchronized(0)

    async def round(self) -> None:
        """Let one fault strike."""
        faults: list[Callable[[], Awaitable[None]]] = [
            self.killed,
            self.killed,
            self.trapped,
            self.trapped,
            self.trapped,
            self.away,
            self.stopped,
            self.frozen,
            self.frozen_at_a_point,
            self.runtime_restarted,
            self.runtime_restarted,
            self.store_damaged,
            self.clock_jumped,
            self.second_daemon,
            self.hung_up,
            self.slow_creations,
            self.slow_creations,
            self.resize_refused,
            self.ended_unheard,
        ]
        if self.node.disk.mounted:
            faults += [self.disk_full, self.disk_read_only]
        fault = self.random.choice(faults)
        self.fault = fault.__name__
        self.rounds += 1
        self.counts[self.fault] += 1
        self.lost = False
        if self.node.runtime.release.name != "cri-o":
            # after its restart that lists what they were created with, and no cgroup is seen here
            self.pods.resized.clear()
        await fault()
        await self.settled()
        self.check()

    async def busy(self, acts: int | None = None) -> None:
        """Let pods come and go."""
        for _ in range(self.random.randint(2, 8) if acts is None else acts):
            await self.pods.act()

    # ---- faults

    async def killed(self) -> None:
        """Kill the daemon at any instant."""
        await self._struck(self.random.uniform(0, 0.04), signal.SIGKILL)

    async def trapped(self) -> None:
        """Kill the daemon at a point in the way of a request."""
        point = self.random.choice([*Point])
        self.counts[f"trapped {point.name.lower()}"] += 1
        self.node.levers.arm(point, self.random.randrange(6), signal.SIGKILL)
        await self.busy()
        if self.node.levers.disarm():
            await self.node.process.ended()

    async def away(self) -> None:
        """Let pods come and go while there is no daemon."""
        self.node.process.signal(signal.SIGKILL)
        await self.node.process.ended()
        await self.busy()

    async def stopped(self) -> None:
        """Ask the daemon to end while pods come and go."""
        await self._struck(self.random.uniform(0, 0.04), signal.SIGTERM)

    async def frozen(self) -> None:
        """Freeze the daemon at any instant, past the runtime's deadline or not."""
        working = asyncio.create_task(self.busy())
        await asyncio.sleep(self.random.uniform(0, 0.02))
        self.node.process.signal(signal.SIGSTOP)
        await self._thawed(working)

    async def frozen_at_a_point(self) -> None:
        """Freeze the daemon in the way of a request."""
        self.node.levers.arm(self.random.choice([*Point]), self.random.randrange(4), signal.SIGSTOP)
        working = asyncio.create_task(self.busy())
        await asyncio.sleep(self.random.uniform(0, 0.02))
        await self._thawed(working)
        self.node.levers.disarm()
        self.node.process.signal(signal.SIGCONT)

    async def _thawed(self, working: asyncio.Task[None]) -> None:
        """Thaw the daemon after a while, and wait for the *working*."""
        await asyncio.sleep(self.random.choice((0.1, 1.2 * DEADLINE, 1.2 * DEADLINE)))
        self.node.process.signal(signal.SIGCONT)
        while not working.done():
            await asyncio.wait({working}, timeout=DEADLINE)
            self.node.process.signal(signal.SIGCONT)
        working.result()

    async def runtime_restarted(self) -> None:
        """Restart the runtime while pods come and go."""
        working = asyncio.create_task(self.busy())
        await asyncio.sleep(self.random.uniform(0, 0.03))
        before = self.node.runtime.synchronizations
        await self.node.runtime.restart()
        await working
        await self.node.synchronized(before)

    async def hung_up(self) -> None:
        """Let pods come and go while the runtime does not let plugins in."""
        before = self.node.runtime.synchronizations
        await self.node.runtime._nri.stop()
        await self.busy()
        await self.node.runtime._nri.start()
        await self.node.synchronized(before)

    async def slow_creations(self) -> None:
        """Let pods come and go at once on a runtime that takes its time, and so loses updates."""

        async def pause(where: str, container: SimulatedContainer) -> None:
            del where, container
            await asyncio.sleep(self.random.uniform(0, 0.03))

        runtime = self.node.runtime
        at_once, runtime.between = runtime.between, pause
        await asyncio.gather(*[self.busy(4) for _ in range(3)])
        runtime.between = at_once
        await asyncio.sleep(0.3)  # the daemon looks what has become of it

    async def resize_refused(self) -> None:
        """Let the runtime refuse a resize after it was answered, and then list what there is."""
        await self.busy(3)
        if limited := [each for each in self._running() if each.memory_limit]:
            container = self.random.choice(limited)
            container.usage = container.memory_limit
            less = Amounts(cpu=self.random.choice((1000, 1500)), memory=1 << 19)
            with suppress(CRIError, ManifestError):
                change = ResourceChange(requests=less, limits=less)
                await self.node.runtime.resize(container.pod, container.name, change)
            container.usage = 0
        await self.busy(2)
        await self._registered_anew()

    async def ended_unheard(self) -> None:
        """Let a container end while the daemon registers."""
        await self.busy(3)
        if running := self._running():
            self.node.runtime.vanish(self.random.choice(running))
        await self._registered_anew()

    def _running(self) -> list[SimulatedContainer]:
        return [each for each in self.node.runtime.containers if each.state is RuntimeState.RUNNING]

    async def _registered_anew(self) -> None:
        """Have the daemon hear from the runtime what there is."""
        if self.node.process.alive:
            before = self.node.runtime.synchronizations
            await self.node.runtime._nri.stop()
            await self.node.runtime._nri.start()
            await self.node.synchronized(before)

    async def store_damaged(self) -> None:
        """Leave the next daemon a store that was torn, cut, overwritten or is something else."""
        await self.busy(2)
        self.node.process.signal(signal.SIGKILL)
        await self.node.process.ended()
        await self.busy(2)
        self._damage()
        self.lost = True

    def _damage(self) -> None:
        random, store = self.random, self.node.store
        target = store / random.choice(("state.db", "state.db", "state.db-wal", "state.db-shm"))
        if not target.exists():
            return
        how = random.choice(("cut", "cut", "overwrite", "overwrite", "garbage", "empty", "gone"))
        data = bytearray(target.read_bytes())
        if how == "cut":
            data = data[: random.randrange(len(data) + 1)]
        elif how == "overwrite" and data:
            at = random.randrange(len(data))
            data[at : at + 512] = random.randbytes(random.choice((1, 16, 512)))
        elif how == "garbage":
            data = bytearray(random.randbytes(random.randrange(20_000)))
        elif how == "empty":
            data = bytearray()
        target.write_bytes(data)
        if how == "gone":
            target.unlink()

    async def clock_jumped(self) -> None:
        """Set the daemon's clock forward or back."""
        await self.busy(2)
        self.node.levers.clock += self.random.choice((-86400.0, -30.0, 30.0, 7200.0, 1e6))
        await self.busy(3)

    async def second_daemon(self) -> None:
        """Start another daemon on the same folder: it must give up, and disturb nobody."""
        second = self.node.spawn()
        await self.busy()
        await second.ended()
        second.close()
        assert self.node.process.alive
        assert "event=ended" not in self.node.said()

    async def disk_full(self) -> None:
        """Leave no room on the disk while pods come and go, perhaps also for the next daemon."""
        self.node.disk.fill()
        await self.busy()
        if self.random.random() < 0.5:
            self.lost = True  # what was decided since could not be stored
            self.node.process.signal(signal.SIGKILL)
            await self.node.process.ended()
            before = self.node.runtime.synchronizations
            self.node.start()
            await self.node.synchronized(before)
            await self.busy(2)
        self.node.disk.empty()
        await self._stored_again()

    async def disk_read_only(self) -> None:
        """Start a daemon on a disk that cannot be written, until it can."""
        self.node.process.signal(signal.SIGKILL)
        await self.node.process.ended()
        self.node.disk.writable(yes=False)
        before = self.node.runtime.synchronizations
        self.node.start()
        try:
            await self.node.synchronized(before)
            await self.busy()
            if self.random.random() < 0.3:
                self.lost = True
                self.node.process.signal(signal.SIGKILL)
                await self.node.process.ended()
        finally:
            self.node.disk.writable(yes=True)
        await self._stored_again()

    async def _stored_again(self) -> None:
        """Let the daemon try its disk again, and tidy up as it does when it synchronizes."""
        self.node.levers.clock += 10
        if self.node.process.alive:
            before = self.node.runtime.synchronizations
            await self.node.runtime.restart()
            await self.node.synchronized(before)

    async def _struck(self, delay: float, number: signal.Signals) -> None:
        working = asyncio.create_task(self.busy())
        await asyncio.sleep(delay)
        self.node.process.signal(number)
        await working
        await self.node.process.ended()

    # ---- what must hold

    async def settled(self) -> None:
        """Bring the daemon back, and let everything be told."""
        node = self.node
        if not node.process.alive:
            if self.random.random() < 0.3 and not self.lost:
                books.replayed(node)
                self.counts["journals replayed"] += 1
            held = {} if self.lost else books.stored_grants(node)
            before = node.runtime.synchronizations
            node.start()
            await node.synchronized(before)
            self._check_kept(held)
        for _ in range(10):
            before = node.runtime.synchronizations
            await self._probe()
            await node.synchronized(before - 1)
            # a runtime that found it too slow for an answer lets it go: it is on its way back
            if node.runtime.synchronizations == before and node.runtime.plugins:
                return
        raise AssertionError(f"the daemon does not stay:\n{node.tail()}")

    async def _probe(self) -> None:
        """Start and delete a pod: the answers bring what could not be told before."""
        with suppress(CRIError):
            await self.node.runtime.start_pod(PROBE)
        with suppress(KeyError):
            await self.node.runtime.delete_pod(self.node.runtime.pod("probe"))

    def _check_kept(self, held: Mapping[str, StoredGrant]) -> None:
        """Assert that who ran on goes on with the very grant that was *held*."""
        now = books.stored_grants(self.node)
        for container_id in self._unchanged(held):
            before, after = held[container_id].grant, now[container_id].grant
            # memory zones grow to make room, guests go where there is any, and nobody is put on
            # overbooked reserved CPUs who is not there yet
            updated_by = books.living(self.node)[container_id].updated_by
            spilled = before.sort is Sort.RESERVED and bool(updated_by)
            if not (before.preemptible or spilled):
                name = held[container_id].full_name
                assert replace(after, mems=before.mems) == before, f"{name}: {before} to {after}"
            self.counts["grants kept by a new process"] += 1

    def _unchanged(self, container_ids: Iterable[str]) -> Iterator[str]:
        """Yield those that run on and hold what they ask for."""
        for container_id in {*container_ids} & books.living(self.node).keys():
            if container_id not in self.pods.resized | self.pending:
                yield container_id

    def check(self) -> None:
        """Check all that must hold."""
        found = books.audited(self.node)
        own = found.own
        for container_id in self._unchanged(self.own):
            cpus, shares = self.own[container_id]
            if self.lost and shares:
                continue  # its cpuset does not show which of its CPUs are exclusive
            assert container_id in own, f"{container_id} lost its CPUs {cpus}"
            now = own[container_id][0]
            assert now == cpus, f"{found.grants[container_id].full_name} was moved: {cpus} to {now}"
        self.own = own
        self.pending = found.pending
        of_rooms = sum(each.of_room for each in found.grants.values())
        self.counts["containers checked"] += len(found.grants) - of_rooms
        self.counts["rooms checked"] += of_rooms
        assert "Traceback" not in self.node.said()

    async def cleared(self) -> None:
        """Delete all pods and look whether anything is left."""
        for pod in self.node.runtime.pods:
            await self.node.runtime.delete_pod(pod)
        await self.settled()
        found = books.audited(self.node)
        assert not found.grants


async def run(rounds: int, seed: int, folder: Path) -> Counter[str]:
    """Run a campaign in *folder*; FailedRoundError."""
    counts: Counter[str] = Counter()
    began = time.monotonic()
    for first in range(0, rounds, ROUNDS_OF_A_NODE):
        node_seed = seed + first
        random = Random(node_seed)
        machine, spec = random.choice(NODES)
        runtime = random.choice(RUNTIMES)
        with host(folder / f"n{first}", machine, {**RESERVED, **spec}, runtime=runtime) as node:
            campaign = Campaign(node, random)
            try:
                async with node.runtime:
                    await campaign.prepare()
                    for _ in range(min(ROUNDS_OF_A_NODE, rounds - first)):
                        await campaign.round()
                    await campaign.cleared()
                    counts += campaign.counts
                    counts["lives"] += node.lives
            except Exception as error:
                raise FailedRoundError(
                    f"{error}\nin round {first + campaign.rounds} of seed {seed}: {campaign.fault};"
                    f" to see it again: --seed {node_seed} --rounds {campaign.rounds}\n"
                    f"{machine}, {' '.join(runtime)}; the daemon's log ends:\n{node.tail(60)}"
                ) from error
    counts["milliseconds a round"] = int(1000 * (time.monotonic() - began) / rounds)
    return counts
