"""One node in one loop: lives of the real daemon, a runtime, kubelets, and mischief.

A party (`tests.loop.deterministic`) is each life of the daemon,
the runtime, each of the kubelet's workers, and the mischief that strikes them. What must hold, and
when, is in `tests.loop.checks`.
"""

from __future__ import annotations

import asyncio
import math
import shutil
import sqlite3
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

from msgspec import Struct

from nri_policy.audit.cgroup import Cgroups
from nri_policy.audit.cgroup_paths import folder_of
from nri_policy.daemon.daemon import Daemon, Environment
from nri_policy.daemon.process import tasks_of
from nri_policy.delivery.partition_files import ancestors
from nri_policy.engine.event import Event
from nri_policy.foundation.cpuset import EMPTY, CPUSet
from nri_policy.foundation.refusal import Refused
from nri_policy.hardware.machine import Machine
from nri_policy.kubelet.runtime_requests import Kubelet
from nri_policy.node import NodeView, Outcome
from nri_policy.nri.session import registration_delay
from nri_policy.settings import from_spec
from nri_policy.simulation.containers import CRIError, SimulatedContainer
from nri_policy.simulation.cpusets import PARTITION
from nri_policy.store.errors import NOT_STORED
from nri_policy.store.writer import StoreWriter
from tests.faults.pods import Kubelets
from tests.loop import systemd
from tests.loop.cgroups import LoopCgroups, LoopRuntime
from tests.loop.deterministic import LONGEST_THREAD, DeterministicLoop
from tests.loop.systemd import Systemd
from tests.support import nodes

NODES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("package:2 numa:2(memory=4GiB) core:2 pu:2", {}),
    ("package:1 numa:2(memory=4GiB) core:4 pu:1", {}),
    ("package:2 numa:1(memory=8GiB) core:4 pu:2", {"colocatePods": True}),
)
SPEC = {"reservedResources": {"cpu": "750m"}, "audit": "repair"}
RUNTIMES = (
    ("containerd", "1.7.24"),
    ("containerd", "2.1.9"),
    ("containerd", "2.2.1"),
    ("containerd", "2.4.0"),
    ("cri-o", "1.31.0"),
    ("cri-o", "1.34.0"),
)
PARTITIONS = ("off", "root", "off", "isolated")  # by the seed, where cgroups can be seen
CGROUPS = ("writable", "writable", "writable", "read-only", "invisible")
BUSY = 15.0  # seconds with workers and mischief
WORKERS = 4
WITH_SYSTEMD = 0.5  # of the histories with visible cgroups; in the others the runtime makes them
SLOWEST_HOOK = 3.0  # seconds
# What is done with systemd at the end of a history: nothing that comes later makes up for it.
LAST_OF_SYSTEMD = "killed before it asks systemd"
SLOW_THREAD = 0.6  # seconds that files may take on a bad day


class Chances(Struct, frozen=True, kw_only=True):
    """What a history is made of; shrinking leaves parts of it out."""

    seed: int
    workers: int = WORKERS
    faults: int = 6  # how often mischief strikes, at most
    busy: float = BUSY
    without: frozenset[str] = frozenset()  # kinds of mischief that are left out


@contextmanager
def disk(world: World) -> Iterator[None]:
    """Let nothing be stored while the disk of a *world* is full."""
    write = StoreWriter.write

    def unless_full(
        self: StoreWriter, event: Event, outcome: Outcome, view: NodeView, at: float
    ) -> int:
        if world.disk_is_full:
            raise sqlite3.OperationalError("database or disk is full")
        return write(self, event, outcome, view, at)

    with mock.patch.object(StoreWriter, "write", unless_full):
        yield


def is_stored(daemon: Daemon) -> bool:
    """Return whether a daemon says that all its decisions are stored."""
    return not any(NOT_STORED in each for each in daemon.status.doubts())


class World:
    """One node, to be played with in a loop."""

    def __init__(self, loop: DeterministicLoop, folder: Path, chances: Chances) -> None:
        self.loop = loop
        self.chances = chances
        random = self.random = Random(chances.seed)
        self.layout, spec = random.choice(NODES)
        self.spec: dict[str, Any] = {**SPEC, **spec}
        self.release = random.choice(RUNTIMES)
        self.cgroups_are = random.choice(CGROUPS)
        self.partitions = "off"
        if self.cgroups_are != "invisible":
            self.partitions = PARTITIONS[chances.seed % len(PARTITIONS)]
        self.spec["exclusivePartitions"] = self.partitions
        self.machine = nodes.machine(self.layout)
        self.folder = folder
        self.history: list[str] = []
        self.lives = 0
        self.daemon: Daemon | None = None
        self._replacing = asyncio.Lock()
        self.calm = False  # no mischief any more
        self.disturbed = 0.0  # when something last kept the daemon from its work
        self.reloaded = -math.inf  # when settings last took effect
        self.lost_store = False
        self.disk_is_full = False
        self.disk_freed = -math.inf  # when it was no longer full, last
        self.before: NodeView | None = None  # the books of a life that was killed
        # cpusets that another program has written, by container id: only the audit sees them
        self.foreign: dict[str, CPUSet] = {}
        # systemd has a stream of its own: histories without it stay the same
        self.systemds_random = Random(f"systemd {chances.seed}")
        has_systemd = (
            self.cgroups_are != "invisible" and self.systemds_random.random() < WITH_SYSTEMD
        )
        has_systemd &= "systemd" not in chances.without
        self.runtime = LoopRuntime(
            folder / "nri.sock",
            online_cpus=self.machine.online,
            memory_nodes=CPUSet(node.id for node in self.machine.nodes),
            name=self.release[0],
            version=self.release[1],
            kubelet=Kubelet(
                memory_capacity=self.machine.memory,
                cgroup_driver="systemd" if has_systemd else "cgroupfs",
            ),
            clock=loop.clock,
        )
        self.runtime.between = self._between
        self.systemd: Systemd | None = None
        self.undone: dict[str, float] = {}  # when systemd undid what was written, by container id
        if has_systemd:
            self.systemd = Systemd(
                folder, self.runtime, self.systemds_random, self._undid, self._endangers
            )
        self.cgroups = LoopCgroups(self.runtime, loop, Random(f"cgroups {chances.seed}"))
        self.cgroups.read_only = self.cgroups_are == "read-only"
        self.cgroups.has_daemon = lambda: (
            self.daemon is not None and self.daemon.synchronized.is_set()
        )
        # called when the answer to a container's start was given, or that to its resize
        self.answered: Callable[[str, SimulatedContainer], None] = lambda _where, _container: None

    @property
    def party(self) -> str:
        """The life of the daemon that is the latest."""
        return f"daemon {self.lives}"

    @property
    def state(self) -> Path:
        """The state folder of the latest life."""
        return self.folder / f"state{self.lives}"

    @property
    def only_the_audit_sees(self) -> bool:
        """Whether cpusets were written that no look finds, as nobody has CPUs of their own there.

        By another program, or by a systemd that nobody can ask to keep anything else.
        """
        helpless = self.systemd is not None and not self.systemd.manner.keeps
        return bool(self.foreign) or (helpless and bool(self.undone))

    @property
    def setting(self) -> str:
        """Machine, runtime, cgroups and how systemd is."""
        manner = "no systemd" if self.systemd is None else self.systemd.manner.name
        return f"{self.layout}, {' '.join(self.release)}, cgroups {self.cgroups_are}, {manner}"

    def note(self, what: str) -> None:
        """Write something into the history."""
        self.history.append(f"{self.loop.time():10.6f}  {what}")

    # ---- the daemon's lives

    def start(self) -> None:
        """Start the daemon; a life before left its folder as it is."""
        before = self.state
        self.lives += 1
        if before.exists() and not self.lost_store:
            shutil.copytree(before, self.state)
        else:
            self.state.mkdir(mode=0o700)
            self.before = None
        self.lost_store = False
        self.note(f"{self.party} starts")
        self.disturbed = self.loop.time()
        self.loop.spawn(self.party, self._live()).add_done_callback(self._ended)

    def _ended(self, life: asyncio.Task[None]) -> None:
        self.loop.errors.append(f"a daemon has ended: {life.exception()!r}")

    async def _live(self) -> None:
        chance = Random(self.random.random())
        host = Environment(
            state_dir=self.state,
            containers_dir=self.folder / "containers",
            root=self.folder,
            cgroups=Cgroups(self.folder) if self.cgroups_are == "invisible" else self.cgroups,
            clock=self.loop.clock,
            delay=lambda failures: registration_delay(failures, chance.random),
            kubelet_dir=self.folder,
            cdi_dir=self.folder / "cdi",
        )
        self.daemon = daemon = Daemon(self.machine, from_spec(self.spec, "the play"), host)
        tasks = tasks_of(daemon)
        # without the kernel's events of drivers, which come from the machine that plays
        tasks["tuner"] = partial(daemon.tuner_link.run, lambda _: nullcontext(False))
        async with (
            daemon.serving(self.runtime.socket_path) as session,
            asyncio.TaskGroup() as beside,
        ):
            for name, task in tasks.items():
                beside.create_task(task(), name=name)
            await session

    def kill(self) -> None:
        """End the daemon at once."""
        self.note(f"{self.party} is killed")
        daemon, self.daemon = self.daemon, None
        if daemon is not None and daemon.synchronized.is_set() and is_stored(daemon):
            self.before = daemon.node.view
        self.loop.kill(self.party)

    @property
    def works(self) -> bool:
        """Whether there is a daemon that the runtime can ask."""
        return (
            self.daemon is not None
            and bool(self.runtime.plugins)
            and not self.loop.is_frozen(self.party)
        )

    @property
    def can_write(self) -> bool:
        """Whether the daemon can write cgroups, and at once."""
        written = self.cgroups_are == "writable" and not self.cgroups.read_only
        return written and self.loop.longest_thread == LONGEST_THREAD

    # ---- what comes between

    async def _between(self, where: str, container: SimulatedContainer) -> None:
        if where in {"started", "updating"}:
            self.answered(where, container)
        if self.calm:
            return
        chance = self.random.random()
        if where != "started" and chance < 0.04 and "failures" not in self.chances.without:
            self.note(f"{container.key} {container.id[:6]} fails while {where}")
            raise CRIError(f"failed while {where}")
        slow = chance > 0.98 and "slow hooks" not in self.chances.without
        if slow or chance > 0.5:  # else the runtime goes on at once
            await asyncio.sleep(self.random.uniform(0, SLOWEST_HOOK if slow else 0.02))

    # ---- the kubelet

    async def worker(self, name: str) -> None:
        """Let pods of this worker come, change and go."""
        random = Random(self.random.random())
        kubelets = Kubelets(self.runtime, random, prefix=name)
        while self.loop.time() < self.chances.busy:
            await asyncio.sleep(random.expovariate(4.0))
            self.note(f"{name} {await kubelets.act()}")
        await kubelets.tidy()

    # ---- mischief

    async def mischief(self) -> None:
        """Strike now and then."""
        kinds: Mapping[str, Callable[[], Awaitable[None]]] = {
            "kill": self._kill,
            "freeze": self._freeze,
            "restart of the runtime": self._restart_runtime,
            "lost store": self._lose_store,
            "clock": self._turn_clock,
            "reload": self._reload,
            "slow files": self._slow_files,
            "files that cannot be written": self._deny_writes,
            "stale writes": self._write_stale,
            "hotplug": self._hotplug,
            "full disk": self._fill_disk,
            "narrowed parents": self._narrow_parents,
        }
        able = [each for each in kinds if each not in self.chances.without]
        for _ in range(self.chances.faults):
            await asyncio.sleep(self.random.expovariate(self.chances.faults / self.chances.busy))
            if self.loop.time() > self.chances.busy or not able:
                break
            kind = self.random.choice(able)
            self.note(f"mischief: {kind}")
            await kinds[kind]()

    def _undid(self, container: SimulatedContainer) -> None:
        self.undone[container.id] = self.loop.time()
        self.note(f"systemd writes {container.cpus} to {container.key} again")

    async def mischief_of_systemd(self) -> None:
        """Have systemd write everything again, or not do what it is asked for, now and then."""
        random, own = self.systemds_random, self.systemd
        kinds: Mapping[str, Callable[[Systemd], Coroutine[Any, Any, None]]] = {
            "daemon-reload": Systemd.reload,
            "daemon-reexec": lambda own: own.execute_again(random.choice((0.0, 0.5, 3.0))),
            "set-property": self._set_property,
            "systemd is busy": self._keep_systemd_busy,
            "systemd is gone": self._hide_systemd,
            LAST_OF_SYSTEMD: self._kill_before_it_asks,
        }
        able = [each for each in kinds if each not in self.chances.without]
        most = 2 * self.chances.faults
        for _ in range(most):
            await asyncio.sleep(random.expovariate(most / self.chances.busy))
            if self.loop.time() > self.chances.busy or not able or own is None:
                break
            kind = random.choice(able)
            self.note(f"mischief: {kind}")
            await self.loop.spawn(systemd.PARTY, kinds[kind](own))
        if own is not None and LAST_OF_SYSTEMD in able:
            self.note(f"mischief: {LAST_OF_SYSTEMD}, the last of it")
            await self.loop.spawn(systemd.PARTY, kinds[LAST_OF_SYSTEMD](own))

    async def _set_property(self, own: Systemd) -> None:
        there = [each for each in self.runtime.containers if each.in_force is not None]
        await own.set_other([each for each in there if self.systemds_random.random() < 0.5])

    async def _keep_systemd_busy(self, _: Systemd) -> None:
        async def go_on() -> None:
            await asyncio.sleep(self.systemds_random.choice((0.3, 1.5, 3.0)))
            self.loop.thaw(systemd.PARTY)

        self.loop.freeze(systemd.PARTY)
        self.loop.spawn("mischief of systemd", go_on())

    async def _hide_systemd(self, own: Systemd) -> None:
        await own.hang_up()
        await asyncio.sleep(self.systemds_random.choice((0.5, 2.0, 6.0)))
        await own.listen()

    async def _kill_before_it_asks(self, own: Systemd) -> None:
        await own.hang_up()
        await asyncio.sleep(self.systemds_random.choice((0.5, 2.0)))
        await self.loop.spawn("mischief of systemd", self._replace(self.systemds_random))
        await own.listen()

    async def _kill(self) -> None:
        await self._replace(self.random)

    async def _replace(self, random: Random) -> None:
        """Kill the daemon, and start it anew."""
        async with self._replacing:
            self.kill()
            await asyncio.sleep(random.choice((0.05, 0.5, 2.0)))
            self.start()

    async def _lose_store(self) -> None:
        self.lost_store = True
        await self._kill()

    async def _freeze(self) -> None:
        self.loop.freeze(self.party)
        await asyncio.sleep(self.random.choice((0.3, 1.5, 3.0)))
        self.loop.thaw(self.party)
        self.disturbed = self.loop.time()

    async def _restart_runtime(self) -> None:
        await self.loop.spawn("runtime", self.runtime.restart())
        self.disturbed = self.loop.time()

    async def _turn_clock(self) -> None:
        self.loop.clock_error += self.random.choice((-86400.0, -30.0, 30.0, 7200.0))

    async def _reload(self) -> None:
        daemon = self.daemon
        if daemon is None or not daemon.synchronized.is_set():
            return
        reserved = self.random.choice(("750m", "1500m", "cpuset:1", "cpuset:0,4"))
        spec = {**self.spec, "reservedResources": {"cpu": reserved}}
        if self.partitions != "off":
            spec["exclusivePartitions"] = self.random.choice(PARTITIONS)
        settings = from_spec(spec, "the play")

        async def reconfigure() -> None:
            try:
                await daemon.events.reconfigure(settings=settings)
            except Refused as error:
                self.note(f"reload refused: {error}")
            else:
                self.spec = spec
                self.reloaded = self.loop.time()

        await asyncio.wait({self.loop.spawn(self.party, reconfigure())}, timeout=5.0)

    async def _slow_files(self) -> None:
        self.loop.longest_thread = SLOW_THREAD
        await asyncio.sleep(self.random.uniform(0.5, 3.0))
        self.loop.longest_thread = LONGEST_THREAD
        self.disturbed = self.loop.time()

    async def _deny_writes(self) -> None:
        usual, self.cgroups.read_only = self.cgroups.read_only, True
        await asyncio.sleep(self.random.uniform(0.5, 3.0))
        self.cgroups.read_only = usual
        self.disturbed = self.loop.time()

    def _endangers(self, container: SimulatedContainer) -> bool:
        """Whether a write could make a partition invalid: the kernel may lose its CPUs then."""
        beside = (each for each in container.pod.containers if each is not container)
        return self.partitions != "off" and any(
            self.cgroups.read(self.path_of(each), PARTITION) in {"root", "isolated"}
            for each in beside
        )

    def path_of(self, container: SimulatedContainer) -> str:
        """Return the path of a container's cgroup."""
        return folder_of(container.message.linux.cgroups_path) or ""

    def effective(self, containers: Collection[SimulatedContainer]) -> dict[str, CPUSet]:
        """Return the CPUs that containers may really run on, by id.

        Without those on which one runs as a cgroup above has none of its own: nobody can end that.
        """
        cpus = {each.id: each.cpus for each in containers}
        if self.partitions == "off":
            return cpus
        effective = self.run_on(containers)
        if self.cgroups.narrowed:
            return {each: effective[each] & cpus[each] for each in cpus}
        return effective

    def run_on(self, containers: Collection[SimulatedContainer]) -> dict[str, CPUSet]:
        """Return the CPUs that containers may run on, as the kernel says, by id."""
        paths = {each.id: self.path_of(each) for each in containers}
        found = self.cgroups.effective(paths.values())
        return {each: found.get(path, EMPTY) for each, path in paths.items()}

    async def _write_stale(self) -> None:
        """Let another program write cpusets: what the runtime has recorded, or all CPUs."""
        if not self.can_write:
            return  # only the audit could put that right, a minute later
        for each in self.runtime.containers:
            chance = self.random.random()
            if each.in_force is not None and chance < 0.5 and not self._endangers(each):
                every = str(self.machine.online)
                recorded = each.message.linux.resources.cpu.cpus or every  # the kernel takes no ""
                each.in_force.cpu.cpus = recorded if chance < 0.3 else every
                self.foreign[each.id] = each.cpus
        self.disturbed = self.loop.time()

    async def _fill_disk(self) -> None:
        self.disk_is_full = True
        await asyncio.sleep(self.random.uniform(0.5, 3.0))
        self.disk_is_full, self.disk_freed = False, self.loop.time()

    async def _narrow_parents(self) -> None:
        """Take CPUs from a cgroup above containers, for a while or until all is quiet."""
        if self.cgroups_are == "invisible" or not self.runtime.pods:
            return
        pod = self.random.choice(self.runtime.pods)
        path = folder_of(pod.message.linux.cgroup_parent) or ""
        every = [*self.machine.online]
        left = CPUSet(self.random.sample(every, self.random.randrange(1, len(every))))
        self.cgroups.narrow(self.random.choice([*ancestors(path), path]), left)
        if self.random.random() < 0.5:
            await asyncio.sleep(self.random.uniform(0.5, 3.0))
            self.widen_parents()

    def widen_parents(self) -> None:
        """Give cgroups above containers all CPUs again."""
        self.cgroups.widen(nodes.machine(self.layout).online)

    async def _hotplug(self) -> None:
        """Take a core away for a while; the kernel takes its CPUs from all cpusets."""
        core = self.random.choice(self.machine.cores[1:])  # the first cannot go offline
        await self._replace_machine(self.machine.restricted(self.machine.online - core.cpus))
        await asyncio.sleep(self.random.uniform(0.5, 3.0))
        await self._replace_machine(nodes.machine(self.layout))

    async def _replace_machine(self, machine: Machine) -> None:
        self.machine = machine
        self.runtime.machine.online_cpus = machine.online
        for each in self.runtime.containers:
            if each.in_force is not None and each.in_force.cpu.cpus:
                each.in_force.cpu.cpus = str((each.cpus & machine.online) or machine.online)
        self.disturbed = self.loop.time()
        if (daemon := self.daemon) is not None:
            change = daemon.events.reconfigure(machine=machine)
            await asyncio.wait({self.loop.spawn(self.party, change)}, timeout=5.0)
        self.disturbed = self.loop.time()
