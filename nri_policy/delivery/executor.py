"""The executor carries out the plan, and passes the results to the state.

Owns the clock, the files and the only lock for writing them. One loop starts each action when it
is due; requests write and look by themselves, with the same lock, where they cannot wait. It
decides nothing: the state names the containers of each action.

Files are read and written in a thread, in slices, and no request waits longer than it may.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import (
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from itertools import islice
from typing import Any, NoReturn, Protocol, TypeVar

from nri_policy.delivery import inputs
from nri_policy.delivery.alarm import Alarm
from nri_policy.delivery.cpuset_checks import CpusetCheck, enforce
from nri_policy.delivery.cpuset_files import Change
from nri_policy.delivery.delivery_state import DeliveryState
from nri_policy.delivery.desired import Desired
from nri_policy.delivery.host_cgroups import HostCgroups
from nri_policy.delivery.inputs import Action, Input
from nri_policy.delivery.messages import RETRY_INFORM, Link, Messages
from nri_policy.delivery.record import Phase
from nri_policy.delivery.reporter import Observers, Reporter
from nri_policy.delivery.survey import Survey
from nri_policy.engine.grant import Changes
from nri_policy.foundation.clock import SYSTEM_CLOCK, Clock
from nri_policy.foundation.cpuset import EMPTY, CPUSet
from nri_policy.node import Node, Placed
from nri_policy.workload.pod import Resources

log = logging.getLogger(__name__)

_T = TypeVar("_T")

MAX_BATCH = 0.3  # seconds that an answer waits for files
MAX_START = 1.0  # seconds that a container's start waits for those that leave its CPUs
MAX_WAIT = 0.2  # seconds that a request waits for a look at files
MAX_TURN = 0.05  # seconds that writes wait for systemd, which is asked to keep a cpuset
SLICE = 128  # cgroups that are written before another batch may come in between: 5 to 10 ms


class SystemdScopes(Protocol):
    """systemd's scopes: `systemd.scopes.Scopes`."""

    async def allow(self, cgroup: str, cpus: CPUSet) -> str:
        """Ask systemd to keep a scope's CPUs; return its refusal, or nothing."""
        ...


class Executor:
    """Brings decisions about the containers of one runtime into force."""

    def __init__(
        self,
        node: Node,
        cgroups: HostCgroups | None,
        scopes: SystemdScopes | None = None,
        *,
        clock: Clock = SYSTEM_CLOCK,
        observers: Observers | None = None,
    ) -> None:
        """Take the files and systemd, if there are any."""
        self._node = node
        self._cgroups = cgroups
        self._scopes = scopes
        self.clock = clock
        self._observers = observers or Observers()
        self._reporter = Reporter(node, self._observers)
        self.state = DeliveryState(Desired(node), has_files=cgroups is not None)
        # Actions of other parts; they return the pause until the next, where the state needs it.
        self.looks: dict[Action, Callable[[], Awaitable[float | None]]] = {}
        # returns the containers on exclusive CPUs of others whose write systemd may have undone
        self.find_undone: Callable[[], Awaitable[Collection[str]]] | None = None
        # takes back an overdue resize, unless its cgroup shows that it is in force
        self.take_back: Callable[[str, Resources | None], Awaitable[None]] | None = None
        self.leave_partitions: Callable[[], Awaitable[None]] | None = None
        self.lock = asyncio.Lock()
        self.scope_trouble = ""  # the latest refusal of systemd, or empty
        self._tasks: set[asyncio.Task[Any]] = set()  # that no request waits for any longer
        self._alarm = Alarm(clock)  # wakes up the loop
        self.messages = Messages(self.state, self.apply, self.clock, self._unbar_in_time)
        self.survey = Survey(self.state, cgroups, self.apply, self.clock, self._begin)

    def apply(self, event: Input) -> None:
        """Pass an input to the state, and report its events."""
        now = self.clock.now()
        for each in self.state.apply(event, now):
            self._reporter.report(each)
        if (at := self.state.next_due()) < self._alarm.at:
            self._alarm.set(at, now)
        self.messages.note_pending()

    def note_request(self) -> None:
        """Pass a request of the runtime to the state: it makes nothing due, and reports nothing."""
        self.state.apply(inputs.RequestBegan(), self.clock.now())

    def decide(self, changes: Changes, *, hurry: bool = False) -> None:
        """Have changes come into force."""
        if changes:
            self.apply(inputs.Decided(changes=changes, hurry=hurry))

    # ---- the loop

    async def run(self, link: Link) -> NoReturn:
        """Carry out the plan."""
        running = set[Action]()
        try:
            async with asyncio.TaskGroup() as group:
                while True:
                    self._begin_due(group, link, running)
                    await self._alarm.rang.wait()
        finally:
            self._alarm.stop()

    def _begin_due(self, group: asyncio.TaskGroup, link: Link, running: set[Action]) -> None:
        """Begin the actions that are due, and wake up for the next one."""
        now, wake = self.clock.now(), math.inf
        self.state.calls_are_safe = link.calls_are_safe is not False
        self.state.apply(inputs.TimePassed(), now)
        for action, at in self.state.plan(now).items():
            if action in running:
                continue
            if at > now:
                wake = min(wake, at)
                continue
            running.add(action)
            group.create_task(self._do(action, link, running), name=action.value)
        self._alarm.set(wake, now)

    async def _do(self, action: Action, link: Link, running: set[Action]) -> None:
        # it makes nothing due, so the loop need not look again
        self.state.apply(inputs.ActionBegan(action), self.clock.now())
        try:
            pause = await self._act(action, link)
        except Exception:
            log.exception("delivery-failed", extra={"action": action.value})
            pause = RETRY_INFORM
        running.remove(action)  # first: if it is due again, the loop begins it again
        self.apply(inputs.ActionEnded(action=action, pause=pause))

    async def _act(self, action: Action, link: Link) -> float:
        """Carry out an action; return the pause until the next, where the state needs it."""
        match action:
            case Action.WRITE:
                await self.settle()
            case Action.READ:
                await self._look_at_flights()
                if self.state.misses_starts:
                    link.register(needed=False)  # to hear their ends from now on
            case Action.SEND:
                await self.messages.send(link)
            case Action.PERSIST:
                await self.persist()
            case Action.INFORM:
                return await self.messages.inform(link)
            case _ if action in self.looks:
                if (pause := await self.looks[action]()) is not None:
                    return pause
            case _:
                pass
        return math.inf

    # ---- writing

    async def narrow(self, *, moved: bool = True) -> None:
        """Shrink the cgroups of containers that lose CPUs, before an answer.

        After a timeout the answer carries the rest. If the request *moved* no container, do not
        wait for a running batch, unless some container must still shrink.
        """
        if self._is_still(moved=moved):
            return
        if not await self.in_time(self._narrow(), MAX_BATCH):
            log.warning("cgroups-slow", extra={"containers": len(self.state.shrink())})
            self.apply(inputs.WritesMissed())

    async def make_room(self, container_id: str, *, moved: bool) -> None:
        """Do the same for a creation: its container starts only after `wait_until_clear`.

        A kernel partition needs no neighbour to leave: they are written after `SETTLE`.
        """
        state = self.state
        if not state.proven or state.unwritable or state.bars_a_move():
            await self.narrow(moved=moved)
        elif state.kernel_partitions.due(container_id) is None and not self._is_still(moved=moved):
            self._begin(self._narrow())

    def makes_up_for_starts(self) -> bool:
        """Return whether looks see, and files make up for, what a start loses (§3.6)."""
        cgroups, state = self._cgroups, self.state
        return cgroups is not None and cgroups.are_usable() and not (state.blind or state.trouble)

    def start_deadline(self) -> float:
        """Return until when a container's start may wait that begins now."""
        return self.clock.now() + MAX_START

    def left(self, until: float) -> float:
        """Return the seconds until a time of the clock."""
        return max(until - self.clock.now(), 0.0)

    async def wait_until_clear(self, own: CPUSet, *, until: float) -> None:
        """Wait until no other container occupies *own*, the exclusive CPUs of one that starts.

        After that time of the clock, or where files fail, the runtime gets these changes soon.
        """
        if not self.state.occupants(own):
            return
        if not await self.in_time(self._narrow(), self.left(until)):
            log.warning("cgroups-slow", extra={"containers": len(self.state.occupants(own))})
        waiting = self.state.changes_to_send()
        remaining = self.state.occupants(own)
        self.decide({each: waiting[each] for each in remaining if each in waiting}, hurry=True)

    async def release(self) -> None:
        """Do the same for an answer that gives no CPUs away, if it carries changes of others.

        Otherwise the changes are written later, with those of containers that grow.
        """
        if self.state.waiting:
            await self.narrow()

    async def settle(self) -> None:
        """Write all pending changes that files can make."""
        state = self.state
        if state.probe_is_due(self.clock.now()):
            await self.probe(self._node.view.placed)
        self.apply(inputs.Rechecked())
        if not state.by_file:
            return
        await self._narrow()
        for part in _slices(sorted(state.by_file)):
            async with self.lock:
                await self._write(state.grow(part))

    async def widen(self) -> None:
        """Let all containers use all CPUs and nodes from now on, because the daemon leaves.

        The files are written first, those of partitions before the cpusets, which would overlap.
        The runtime gets the same changes, because no daemon will correct its own writes later.
        """
        self.apply(inputs.Leaving())
        if self._cgroups is None:
            return
        if self.leave_partitions is not None:
            await self.leave_partitions()
        changes = self.state.changes_to_send()
        async with self.lock:
            await self._write(changes)
        self.decide(changes)

    async def probe(self, container_ids: Iterable[str]) -> None:
        """Find out on the first visible of these cgroups whether it can be written."""
        probed, cgroups, known = inputs.Probed(), self._cgroups, self.state.known
        visible = (each for each in container_ids if known(each).observed is not None)
        for cgroup in self._paths(visible).values():
            if cgroups is None:
                break
            async with self.lock:
                done = await asyncio.to_thread(cgroups.confine, {cgroup: EMPTY}, Change.REWRITE)
            if done[cgroup].cpus is None:  # it has ended: that shows nothing
                continue
            error = done[cgroup].error
            if error:
                log.warning("not-writable", extra={"cgroup": cgroup, "reason": error})
            probed = inputs.Probed(proven=not error, error=error)
            break
        self.apply(probed)

    def _is_still(self, *, moved: bool) -> bool:
        state = self.state
        writes = state.by_file and (moved or state.shrink())
        return not (writes or state.bars_a_move())

    async def in_time(self, work: Coroutine[Any, Any, object], seconds: float) -> bool:
        """Do work; return whether it took no longer than *seconds*, after which it goes on."""
        return await self.clock.done_within(seconds, self._begin(work))

    def _begin(self, work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        task = asyncio.create_task(work, name="delivery")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _narrow(self) -> None:
        await self._unbar_moves()
        async with self.lock:
            await self._write(self.state.shrink(), Change.LEAVE)

    async def _unbar_moves(self) -> None:
        """Take CPUs out of partitions that a container is about to be moved onto."""
        if self.state.bars_a_move():
            await self.looks[Action.PARTITIONS]()

    async def _unbar_in_time(self) -> None:
        """Do the same before a call, which goes on without it after `MAX_BATCH`."""
        if not await self.in_time(self._unbar_moves(), MAX_BATCH):
            log.warning("cgroups-slow", extra={"containers": len(self.state.waiting)})

    async def _write(self, container_ids: Iterable[str], change: Change = Change.WHOLE) -> None:
        """Write the latest decisions about these containers; the caller has the lock.

        In slices: what is written counts, however long the rest takes.
        """
        began, written, state = self.clock.now(), 0, self.state
        for part in _slices(container_ids):
            latest = ((each, state.latest_change(each)) for each in part)
            wanted = {each: new for each, new in latest if new is not None and new.cpus}
            assert self._cgroups is not None, "only cgroups that are visible are written"
            paths = self._paths(wanted)
            cpus = {paths[each]: placement.cpus for each, placement in wanted.items()}
            whole = wanted if change is Change.WHOLE else {}
            giving = {each: placement.cpus for each, placement in whole.items()}
            done = await self._batch(giving, self._cgroups.confine, cpus, change)
            for each, placement in wanted.items():
                outcome = done[paths[each]]
                self.apply(
                    inputs.Written(
                        container_id=each,
                        placement=placement,
                        cpus=outcome.cpus,
                        error=outcome.error,
                    )
                )
            written += sum(each.written for each in done.values())
        if written:
            self._observers.wrote(written, self.clock.now() - began)

    async def _batch(
        self, giving: Mapping[str, CPUSet], work: Callable[..., _T], *arguments: Any
    ) -> _T:
        """Do work in a thread that may be *giving* containers these CPUs at any moment."""
        self.state.giving = giving
        try:
            return await asyncio.to_thread(work, *arguments)
        finally:
            self.state.giving = {}

    def _paths(self, container_ids: Iterable[str]) -> dict[str, str]:
        placed = self._node.view.placed
        return {each: placed[each].container.cgroup for each in container_ids if each in placed}

    # ---- looking

    async def look_before(self, container_id: str) -> None:
        """Check before the answer if a change may be lost, or if it starts on exclusive CPUs."""
        placed = self._node.view.placed.get(container_id)
        if placed is not None:
            takes = self._takes(placed)
            starting = self.state.phase(container_id) is Phase.STARTING
            await self._look_if_needed(placed, takes=takes, undone=takes and starting)

    async def look_before_resize(self, container_id: str) -> None:
        """Check before the answer if others are on exclusive CPUs of a resized container.

        They are back on them, or about to leave: by the answer to a resize of their own.
        """
        placed = self._node.view.placed.get(container_id)
        if placed is not None and self._takes(placed):
            await self._look_if_needed(placed, takes=True, undone=True)

    def _takes(self, placed: Placed) -> bool:
        """Whether a container has exclusive CPUs, and no partition keeps others off them."""
        own, partitions = placed.grant.own, self.state.kernel_partitions
        return bool(own) and not partitions.keeps(placed.container.id, own)

    async def _look_if_needed(self, placed: Placed, *, takes: bool, undone: bool) -> None:
        """Look at the cgroup of one that may lack its change, or *takes* CPUs that are in doubt.

        *undone*: and at those that systemd may have undone (nri.md §3.7a 7).
        """
        cgroups, container = self._cgroups, placed.container
        if cgroups is None:
            return
        also = [container.id] if self.state.needs_look(container.id, takes=takes) else []
        undone = undone and bool(self.state.volatile) and cgroups.kept_by_systemd(container.cgroup)
        if undone or also:
            await self._look_in_time(placed, also, undone=undone)

    async def _look_in_time(self, placed: Placed, also: Collection[str], *, undone: bool) -> None:
        """Look at the cgroups of *also*, and at those that systemd has *undone*."""

        async def look() -> None:
            if also:
                await self.look(*also)
            if not undone or self.find_undone is None:
                return
            for _ in range(2):  # systemd can undo what the first of these looks writes
                if not (found := await self.find_undone()):
                    return
                await self.look(*found)

        if not await self.in_time(look(), MAX_WAIT):
            log.warning("cgroups-slow", extra={"container": placed.container.full_name})

    async def look(self, *also: str) -> Sequence[CpusetCheck]:
        """Check all changes in flight, and *also*; write those that cannot wait.

        It does not take the node's turn, because requests hold the turn while they wait for this.
        """
        await self._unbar_moves()
        async with self.lock:
            placed = self._node.view.placed
            checks = [each for each in self.state.begin_check(*also) if each.container_id in placed]
            if self._cgroups is not None and checks:
                await self._enforce(self._cgroups, checks)
            self.apply(inputs.Checked(checks=checks))
        return checks

    async def _enforce(self, cgroups: HostCgroups, checks: Sequence[CpusetCheck]) -> None:
        lost = {each.container_id: each.placement.cpus for each in checks if each.lost}
        paths = self._paths(each.container_id for each in checks)
        taken, kept = self.state.desired.taken, self.state.kept
        await self._batch(lost, enforce, cgroups, paths, checks, taken, kept)

    async def _look_at_flights(self) -> None:
        checks = await self.look()
        for each in self.state.overdue_resizes(checks):
            if self.take_back is not None:
                await self.take_back(each.container_id, each.found)

    async def look_at_overlaps(self, container_ids: Collection[str]) -> None:
        """Check the containers that a look has found on exclusive CPUs of other containers.

        Containers about to be written are skipped: neighbours of a new partition leave later.
        """
        self.apply(inputs.OverlapsSeen(container_ids=container_ids))
        leaving = frozenset(self.state.shrink())
        if astray := [each for each in container_ids if each not in leaving]:
            await self.look(*astray)

    # ---- systemd

    async def persist(self) -> None:
        """Ask systemd to keep the written cpusets, one after the other."""
        trouble = ""
        for each in self.state.persistable():
            trouble = await self._persist(each) or trouble
        if trouble and trouble != self.scope_trouble:
            log.warning("not-persistent", extra={"reason": trouble})
        self.scope_trouble = trouble

    async def _persist(self, container_id: str) -> str:
        """Ask systemd to keep one; return its refusal, or nothing.

        At first no cpuset is written meanwhile: systemd would set the older one over it. A busy
        systemd holds up no write: it is asked again about what is written before it answers.
        """
        async with self.lock:
            known = self.state.records.get(container_id)
            if known is None or known.persistent or known.phase is not Phase.RUNNING:
                return ""
            has, scope, asking = known.observed, self._scope(container_id), None
            if has is not None and scope:
                asking = self._begin(self._keep(scope, has.cpus))
                await self.clock.done_within(MAX_TURN, asking)
        trouble = "" if asking is None else await asking
        self.apply(inputs.ScopeSet(container_id=container_id, asked=has, error=trouble))
        return trouble

    def _scope(self, container_id: str) -> str:
        """Return a container's cgroup if systemd manages it, else nothing."""
        cgroup, cgroups = self._paths([container_id]).get(container_id, ""), self._cgroups
        managed = cgroup and cgroups is not None and cgroups.kept_by_systemd(cgroup)
        return cgroup if managed else ""

    async def _keep(self, scope: str, cpus: CPUSet) -> str:
        if self._scopes is None:
            return "systemd cannot be asked"
        return await self._scopes.allow(scope, cpus)


def _slices(container_ids: Iterable[str]) -> Iterator[list[str]]:
    rest = iter(container_ids)
    while part := [*islice(rest, SLICE)]:
        yield part
