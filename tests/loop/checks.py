"""What must hold in a play: at once, within a bound, when all is quiet, and long after.

- When the answer to START or to a resize is given: no other running container in the books has the
  owner's CPUs, if cgroups can be written. One that is being resized may have got them within the
  last 50 ms, by the runtime, as the resize was answered before: it is in the row of 50 ms. So may
  one that systemd has written again while the answer was on its way.
- Once a new life has the runtime's list: containers that go on have the CPUs of their own that they
  had.
- Every 50 ms: no other container has them for longer than its bound, while the daemon can work.
- After 45 quiet seconds: every running container is where it is to be; no CPU has two owners; the
  kernel has the partitions that are due and no others; what systemd would write changes nothing.
- A minute after a disk was full: what was decided meanwhile is stored.
- A minute after a cgroup above containers was given fewer CPUs, or all again: what lacks CPUs is
  named, and nothing else.
- After 850 more: the books have what exists; store and replay agree; the runtime knows all; next to
  nothing was written since.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Iterator

from nri_policy.audit.above_pods import find_narrow
from nri_policy.audit.auditor import GRACE
from nri_policy.audit.auditor import PERIOD as AUDIT_PERIOD
from nri_policy.audit.deviations import DeviationKind
from nri_policy.daemon.daemon import STORE_AGAIN
from nri_policy.delivery.executor import MAX_WAIT
from nri_policy.delivery.partition_files import ancestors
from nri_policy.delivery.record import Phase
from nri_policy.engine.grant import Placement
from nri_policy.engine.state.partition_rules import Partition
from nri_policy.foundation.cpuset import EMPTY, CPUSet
from nri_policy.node import NodeView
from nri_policy.simulation.containers import RuntimeState, SimulatedContainer
from nri_policy.simulation.cpusets import EFFECTIVE, EXCLUSIVE, PARTITION, ROOT
from nri_policy.store.store import RETRY_AFTER
from nri_policy.workload.request import Sort
from tests.loop.world import World, is_stored
from tests.support import stores

PERIOD = 0.05  # seconds
OWN_STEPS = 2  # callbacks by which a look comes: its timer, and the task that waited for it
# Seconds that a running container may have CPUs of another's own, by what can be done about it: a
# file is written, a call can be made, or it takes a registration (spec nri.md §3.7).
BOUND_WRITABLE, BOUND_TOLD = 1.5, 20.0
BOUND_UNDONE = 2.3  # the same by systemd: here no kernel tells of writes, so a look finds it
# Seconds from when a disk was full until all is stored: a try waits after one that failed just now.
RESTORED = STORE_AGAIN + RETRY_AFTER + 1.0
# Seconds until what lacks CPUs is named: an audit looks twice, and reads containers in threads.
NAMED = AUDIT_PERIOD + 5 * GRACE
# Writes of a container, and calls of systemd about it, after a quiet while: a cold start may end.
MOST_AT_REST = 3

# By the ids of an owner and another container: both, and the owner's CPUs that the other has.
Overlapping = dict[tuple[str, str], tuple[SimulatedContainer, SimulatedContainer, CPUSet]]


class BrokenError(AssertionError):
    """Something did not hold."""


class Checks:
    """Looks at one world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._since: dict[tuple[str, str], float] = {}  # owner and other → since when they overlap
        self._overlapping: Overlapping = {}  # what the last look found
        self._steps = 0  # callbacks of the loop until then
        self._at_rest: dict[str, int] = {}  # what was done to running containers when all was quiet
        self._seen: dict[str, int] = {}  # updates of running containers until the last look
        self._placed: set[str] = set()  # containers that were in the books of any life
        self.broken: list[str] = []
        self.starts = 0  # owners whose start was looked at
        world.answered = self.answered

    def answered(self, where: str, container: SimulatedContainer) -> None:
        """Look at the instant at which an answer is given (S1, S2 of spec delivery.md §3)."""
        world = self._world
        if not world.works or not world.can_write:
            return
        assert world.daemon is not None
        view = world.daemon.node.view
        now = world.loop.time()
        if container.id not in view.placed or now - world.disturbed < BOUND_WRITABLE:
            return
        if now - world.reloaded < MAX_WAIT:
            return  # its CPUs may be others since it was answered
        self.starts += where == "started"
        for _, other, cpus in self._overlaps(view, [container]):
            if world.foreign.get(other.id) == other.cpus:
                continue  # nobody could know before the CPUs were the owner's
            if now - world.undone.get(other.id, -math.inf) < MAX_WAIT:
                continue  # systemd has written it since the daemon has looked
            updating = world.daemon.executor.state.phase(other.id) is Phase.UPDATING
            last = other.updated_by[self._seen.get(other.id, 0) :][-1:]
            if updating and any(each.cause == f"UpdateContainer {other.key}" for each in last):
                continue  # a resize that was answered before was written last, since the last look
            self._break(f"{container.key} is {where}, and {other.key} still has its CPUs {cpus}")

    async def watch(self) -> None:
        """Look every 50 ms, until cancelled."""
        loop = self._world.loop
        while True:
            await asyncio.sleep(PERIOD)
            self._look(something_ran=loop.steps > self._steps + OWN_STEPS)
            self._steps = loop.steps

    def _look(self, *, something_ran: bool) -> None:
        world, now = self._world, self._world.loop.time()
        if something_ran:
            self._find()
        bound = BOUND_WRITABLE if world.can_write else BOUND_TOLD
        if world.can_write and world.systemd is not None:
            bound = BOUND_UNDONE
        overlaps = self._overlapping
        self._since = {each: self._since.get(each, now) for each in overlaps}
        for pair, since in self._since.items():
            if now - max(since, world.disturbed) > bound:
                owner, other, cpus = overlaps[pair]
                self._break(
                    f"{other.key} has had CPUs {cpus} of {owner.key} for {now - since:.2f}s"
                )

    def _find(self) -> None:
        """Take note of what there is now; nothing overlaps while no daemon can work."""
        world = self._world
        self._seen = {each.id: len(each.updated_by) for each in self._running()}
        self._overlapping = {}
        if not world.works or world.daemon is None or not world.daemon.synchronized.is_set():
            return
        view = world.daemon.node.view
        self._placed.update(view.placed)
        if world.before is not None:
            self._kept(world.before, view)
            world.before = None
        self._overlapping = {
            (owner.id, other.id): (owner, other, cpus)
            for owner, other, cpus in self._overlaps(view, self._running())
        }

    def _kept(self, before: NodeView, now: NodeView) -> None:
        """Look whether a new life left containers the CPUs of their own that the last one gave."""
        for each in before.placed.keys() & now.placed.keys():
            was, placed = before.placed[each], now.placed[each]
            if was.request.entitlement != placed.request.entitlement:
                continue  # it was resized meanwhile
            if was.grant.exclusive and was.grant.exclusive != placed.grant.exclusive:
                name, cpus = placed.container.full_name, placed.grant.exclusive
                self._break(f"{name} had CPUs {was.grant.exclusive}, and a new life gave it {cpus}")

    def in_force(self) -> None:
        """Look whether each container that runs is where it is to be, after a quiet while."""
        daemon = self._world.daemon
        assert daemon is not None
        view = daemon.node.view
        taken: CPUSet = EMPTY
        for each in self._running():
            placement = view.placement(each.id)
            if placement is None:
                self._break(f"{each.key} runs, and is in no books")
                continue
            if not _has(self._world, each, placement):
                self._break(
                    f"{each.key} has CPUs {each.cpus} and memory nodes {each.mems}, and is due "
                    f"{placement.cpus} and {placement.mems}"
                )
            grant = view.placed[each.id].grant
            if not grant.tenant:
                if taken & grant.exclusive:
                    self._break(f"{each.key} is not the only owner of {taken & grant.exclusive}")
                taken |= grant.exclusive
        if self._world.partitions != "off" and self._world.can_write:
            self._partitions(view)
        self._kept_by_systemd()

    def _kept_by_systemd(self) -> None:
        """Look whether systemd would leave all as it is, whatever it writes again."""
        systemd = self._world.systemd
        if systemd is None or not systemd.manner.keeps:
            return
        for each in self._running():
            kept = systemd.kept(each)
            if kept is not None and kept != each.cpus:
                self._break(f"{each.key} has CPUs {each.cpus}, and systemd keeps {kept} for it")

    def _partitions(self, view: NodeView) -> None:
        """Look whether the kernel has the partitions due, and no other CPUs are taken from all."""
        cgroups, kept = self._world.cgroups, dict[str, CPUSet]()
        due = {each: view.partition(each.id) for each in self._running()}
        for container, partition in due.items():
            path = self._world.path_of(container)
            found = cgroups.read(path, PARTITION), cgroups.read(path, EXCLUSIVE)
            if not isinstance(partition, Partition):
                wanted = ("member", "")
            else:
                wanted = (str(partition.kind), str(partition.cpus))
                for above in ("", *ancestors(path)):
                    kept[above] = kept.get(above, EMPTY) | partition.cpus
            if found != wanted:
                self._break(f"{container.key} is the partition {found}, and is due {wanted}")
        for above in {each for path in map(self._world.path_of, due) for each in ancestors(path)}:
            exclusive = cgroups.read(above, EXCLUSIVE)
            if exclusive != str(kept.get(above, EMPTY)):
                self._break(f"{above} keeps {exclusive}, and is due {kept.get(above, EMPTY)}")
        left = self._world.runtime.machine.online_cpus - kept.get("", EMPTY)
        if (effective := cgroups.read(ROOT, EFFECTIVE)) != str(left):
            self._break(f"the machine has CPUs {effective}, and {left} are in no partition")

    def rests(self) -> None:
        """Take note of what was done so far: after a quiet while next to nothing is left to do."""
        self._at_rest = {each.id: self._done_to(each) for each in self._running()}

    def _rested(self) -> None:
        """Look whether little was written since (L2 of spec delivery.md §3)."""
        for each in self._running():
            done = self._done_to(each) - self._at_rest[each.id]
            if done > MOST_AT_REST:
                self._break(f"{each.key} was written {done} times, and nothing has happened")

    def _done_to(self, container: SimulatedContainer) -> int:
        systemd = self._world.systemd
        asked = 0 if systemd is None else systemd.asked[container.id]
        return asked + len(container.updated_by)

    def stored(self) -> None:
        """Look whether all is stored that a full disk did not take, though nothing is decided."""
        daemon = self._world.daemon
        assert daemon is not None
        view, path = daemon.node.view, self._world.state / "store" / "state.db"
        if not is_stored(daemon):
            self._break("what a full disk did not take is not stored")
        if stores.on_disk(path) != {each: view.to_store(each) for each in view.holders}:
            self._break("the store differs from the books")

    def narrowed(self) -> None:
        """Look whether all is named, and only that, that lacks CPUs by a cgroup above."""
        daemon, world = self._world.daemon, self._world
        assert daemon is not None
        view = daemon.node.view
        due = find_narrow(world.cgroups.cpus_above(()), view.layout.capacity.available)
        if (named := dict(daemon.parents.narrow)) != due:
            self._break(f"cgroups that lack CPUs are {due}, and {named} are named")
        has = world.run_on(self._running())
        lacking = {
            each.key
            for each in self._running()
            if (cpus := view.sent[each.id][0]) and has[each.id] != cpus
        }
        drifts = daemon.auditor.report.drifts
        drifted = {each.name for each in drifts if each.deviation.kind is DeviationKind.CPUS}
        if drifted != lacking:
            self._break(f"containers that lack CPUs are {lacking}, and {drifted} have drifted")
        if lacking and not world.cgroups.narrowed:
            self._break(f"{lacking} lack CPUs that no cgroup above lacks")

    def books(self) -> None:
        """Look whether books, store and runtime agree, long after."""
        world = self._world
        daemon = world.daemon
        assert daemon is not None
        self._rested()
        view = daemon.node.view
        living = {
            each.id: each.key
            for each in world.runtime.containers
            if each.state in (RuntimeState.CREATED, RuntimeState.RUNNING)
        }
        blind = (
            world.cgroups_are == "invisible" and not world.runtime.release.tells_failed_creations
        )
        gone = [view.placed[each].container.full_name for each in view.placed.keys() - living]
        if gone and not blind:  # CRI-O says nothing, and no process can be missed
            self._break(f"{gone} are in the books, and gone")
        if strays := [living[each] for each in living.keys() - view.placed.keys()]:
            self._break(f"{strays} exist, and are in no books")
        self.stored()
        path = world.state / "store" / "state.db"
        if stores.grants(stores.replayed(path)) != stores.on_disk(path):
            self._break("a replay of the journal differs from the store")
        state = daemon.executor.state
        if state.pending:
            self._break(f"not in force and not sent: {[*state.pending]}")
        if ended := state.records.keys() - view.placed.keys():
            self._break(f"deliveries to {[*ended]} are recorded, and they have ended")
        if state.unrecorded and world.runtime.release.updates_safely:  # others hear in answers
            self._break(f"the runtime does not know of {[*state.unrecorded]}")

    def _running(self) -> list[SimulatedContainer]:
        return [
            each for each in self._world.runtime.containers if each.state is RuntimeState.RUNNING
        ]

    def _overlaps(
        self, view: NodeView, owners: Iterable[SimulatedContainer]
    ) -> Iterator[tuple[SimulatedContainer, SimulatedContainer, CPUSet]]:
        """Yield an owner, a running container that has CPUs of the owner's own, and these CPUs."""
        owned = [
            (each, placed.grant.own)
            for each in owners
            if (placed := view.placed.get(each.id)) is not None and placed.grant.own
        ]
        if not owned:
            return
        may_have = [(each, self._may_have(each, view)) for each in self._running()]
        bound = [(each, own) for each, own in may_have if own is not None]
        has = self._world.effective([each for each, _ in bound])
        others = [(each, has[each.id] - own) for each, own in bound]
        for owner, own in owned:
            for other, cpus in others:
                if other is not owner and cpus & own:
                    yield owner, other, cpus & own

    def _may_have(self, container: SimulatedContainer, view: NodeView) -> CPUSet | None:
        """Return the own CPUs that a running container may have; None: it may have any.

        None that were in the books may have any after they have left them.
        """
        placed = view.placed.get(container.id)
        if placed is None:
            return EMPTY if container.id in self._placed else None
        return None if placed.grant.sort is Sort.PRESERVE else placed.grant.own | placed.grant.rest

    def _break(self, what: str) -> None:
        if what not in self.broken:
            self.broken.append(what)
            self._world.note(f"BROKEN: {what}")


def _has(world: World, container: SimulatedContainer, due: Placement) -> bool:
    """Return whether a container runs where it is due; a file that is empty stands for all."""
    machine = world.runtime.machine
    cpus, mems = container.cpus or machine.online_cpus, container.mems or machine.memory_nodes
    return (not due.cpus or cpus == due.cpus) and (not due.mems or mems == due.mems)
