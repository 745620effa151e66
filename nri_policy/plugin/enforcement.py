"""Enforcement: sees in force what the runtime was told, and puts in force what cannot wait for it.

Owns when a cgroup is looked at. The runtime is given time to set the cgroups of those that it was
told of. Two kinds of container cannot wait for it: one whose update the runtime has lost
(`confirmation`), and one that is on a CPU of somebody else's own. Their cpuset is written here.

Rule 1: files are read and written in a thread; a request waits for that only where the container
that starts is in doubt, or has CPUs of its own that others are still to leave, and never longer
than `MAX_WAIT`. Rule 2: first everybody leaves what is another's; only then does anybody get more.
Rule 3: only what is decided at that moment is written; what changes meanwhile is looked at again.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NoReturn, Protocol

from msgspec import Struct
from msgspec.structs import replace

from nri_policy.engine.grant import Placement
from nri_policy.engine.listing import parse_cpus
from nri_policy.foundation.cpuset import EMPTY, CPUSet
from nri_policy.node import Node
from nri_policy.plugin.confirmation import LIVING, SETTLED, Phase
from nri_policy.plugin.cpuset_files import Change, Confined
from nri_policy.plugin.lasting import Kept
from nri_policy.plugin.ledger import cpuset_of
from nri_policy.plugin.update_queue import MAX_TRIES, UpdateQueue
from nri_policy.plugin.writing import CgroupFiles, Writing
from nri_policy.workload.pod import Container, Resources

log = logging.getLogger(__name__)

MAX_WAIT = 0.2  # seconds that a request waits for files
MAX_SURVEY = 0.5  # seconds that the runtime's inventory waits for files
FIRST_LOOK, LAST_LOOK = 0.05, 0.5  # seconds between looks at what is not in force yet
GRACE = 2.0  # seconds that a runtime has to do what it was told
BLIND_GRACE = 10.0  # the same, where no cgroup shows whether it has


class Cgroups(CgroupFiles, Kept, Protocol):
    """The containers' cgroups: `audit.cgroup.Cgroups`."""

    def resources(self, cgroup: str) -> Resources | None:
        """Return what the kernel says of a cgroup, by the runtime's name; None if not here."""
        ...

    def processes(self, cgroup: str) -> Collection[int]:
        """Return the threads in a cgroup; 0 stands for those that cannot be seen from here."""
        ...


class Overlap(Struct, frozen=True, kw_only=True):
    """A container that was found on CPUs of somebody else's own."""

    container: Container
    cpus: CPUSet  # those
    owners: tuple[str, ...]  # namespace/pod/container
    error: str  # why it could not be made to leave them at once; empty if it was


@dataclass(slots=True, kw_only=True)
class Case:
    """A container that is looked at: what is decided, then what was found and done."""

    container_id: str
    placement: Placement
    cgroup: str
    own: CPUSet  # CPUs that nobody else may use
    lost: bool
    settled: bool  # nothing about it is under way
    found: Resources | None = None
    cpus: CPUSet = EMPTY  # of the cgroup, at the end
    overlap: CPUSet = EMPTY  # those that were found in it, and are somebody else's own
    written: bool = False
    error: str = ""

    def conclude(self, done: Confined) -> None:
        """Take in what became of the cgroup."""
        self.error = done.error
        if done.cpus is not None:
            self.cpus, self.written = done.cpus, done.written


def enforce(cgroups: Cgroups, cases: Sequence[Case], taken: CPUSet) -> None:
    """Look at *cases*, and write what cannot wait; *taken* are all CPUs that are somebody's own."""
    for case in cases:
        case.found = cgroups.resources(case.cgroup)
        case.cpus = EMPTY if case.found is None else parse_cpus(case.found.cpus)
    pinned = [case for case in cases if case.found is not None and case.placement.cpus]
    leaving = []
    for case in pinned:
        surplus = case.cpus - case.placement.cpus
        case.overlap = surplus & (taken - case.own)
        if surplus and (case.lost or case.overlap):
            leaving.append(case)
    _write(cgroups, leaving, Change.LEAVE)
    left = CPUSet.union(case.cpus - case.placement.cpus for case in pinned)
    gaining = [
        case
        for case in pinned
        if case.lost
        and case.cpus != case.placement.cpus
        and not case.error
        # what one could not be made to leave nobody gets
        and not (case.placement.cpus - case.cpus) & left
    ]
    _write(cgroups, gaining, Change.WHOLE)


def _write(cgroups: Cgroups, cases: Sequence[Case], change: Change) -> None:
    if not cases:
        return
    done = cgroups.confine({case.cgroup: case.placement.cpus for case in cases}, change)
    for case in cases:
        case.conclude(done[case.cgroup])


class Enforcement:
    """Sees to it that the containers of one engine run where they are to."""

    def __init__(  # noqa: PLR0913 - keywords: who hears of what
        self,
        node: Node,
        update_queue: UpdateQueue,
        cgroups: Cgroups | None,
        *,
        writing: Writing,
        resize_overdue: Callable[[str, Resources | None], Awaitable[None]],
        wrote: Callable[[], None] = lambda: None,
        overlapped: Callable[[Overlap], None] = lambda _: None,
    ) -> None:
        """Look at *cgroups*, if there are any; *wrote* is called for each that was set here.

        *writing* is who else writes cgroups.
        *overlapped* is called with what no change that is under way explains.
        *resize_overdue* is called with each container whose resize seems not to have ended, and
        what was found of its cgroup.
        """
        self._node = node
        self._update_queue = update_queue
        self._confirmations = update_queue.confirmations
        self._cgroups = cgroups
        self._clock = update_queue.clock
        self._resize_overdue = resize_overdue
        self._wrote = wrote
        self._overlapped = overlapped
        self._writing = writing
        self._ledger = update_queue.ledger
        # those that a request did not wait for any longer
        self._looks: set[asyncio.Task[Sequence[Case]]] = set()
        self._tries: dict[str, int] = {}  # how often a container was told in vain
        self._overlaps: dict[str, CPUSet] = {}  # by container: those that last, and were reported

    @property
    def unconfirmed(self) -> int:
        """How many containers have a change that was told, and not seen in force."""
        return len(self._confirmations.sent)

    @property
    def overdue(self) -> int:
        """How many of them had more time for it than a runtime needs."""
        now = self._clock.now()
        return sum(now - each.since > GRACE for each in self._confirmations.sent.values())

    async def run(self) -> NoReturn:
        """Look at what was told until it is seen in force."""
        delay = FIRST_LOOK
        while True:
            self._update_queue.sent.clear()
            patience = delay if self._polled() else math.inf
            if await self._clock.set_within(patience, self._update_queue.sent):
                delay = FIRST_LOOK
                await self._clock.sleep(delay)
            else:
                delay = min(2 * delay, LAST_LOOK)
            try:
                for case in await self.look():
                    if self._is_overdue(case):
                        await self._resize_overdue(case.container_id, case.found)
            except Exception:
                log.exception("enforcement-failed")

    def expect(self) -> None:
        """Look soon: what was told can be in force now."""
        self._update_queue.sent.set()

    async def observe(
        self, paths: Mapping[str, str], *, living: bool = False
    ) -> Mapping[str, Resources] | None:
        """Return what the kernel says of containers, by id; *paths* are the runtime's names.

        Nothing of those that are not here, or, if only the *living* are asked about, that have no
        process. None where that takes too long: what is found then is entered when it comes, for
        those of whom nothing newer is known, and who is not where it is to be hears of that again.
        """
        cgroups = self._cgroups
        if cgroups is None or not paths:
            return {}

        def read() -> dict[str, Resources]:
            seen = (
                (each, cgroups.resources(path))
                for each, path in paths.items()
                if not living or cgroups.processes(path)
            )
            return {each: found for each, found in seen if found is not None}

        reading = asyncio.ensure_future(asyncio.to_thread(read))
        if not await self._clock.done_within(MAX_SURVEY, reading):
            log.warning("cgroups-slow", extra={"containers": len(paths)})
            reading.add_done_callback(partial(self._surveyed_late, paths))
            return None
        return reading.result()

    async def living(self, paths: Mapping[str, str]) -> Collection[str]:
        """Return who has a process, by id, as far as that can be seen soon.

        *paths* are the runtime's names of cgroups.
        """
        cgroups = self._cgroups
        if cgroups is None or not paths:
            return ()

        def read() -> list[str]:
            return [each for each, path in paths.items() if cgroups.processes(path)]

        reading = asyncio.ensure_future(asyncio.to_thread(read))
        done = await self._clock.done_within(MAX_SURVEY, reading)
        return reading.result() if done else ()

    def _surveyed_late(
        self, container_ids: Iterable[str], reading: asyncio.Task[dict[str, Resources]]
    ) -> None:
        if reading.cancelled() or reading.exception() is not None:
            return
        found, ledger = reading.result(), self._ledger
        for each in container_ids:
            newer = each in self._confirmations.sent or each in self._update_queue.unsent
            if newer or ledger.in_force(each) is not None:
                continue
            if each in found:
                ledger.seen(each, cpuset_of(found[each]))
            has, due = ledger.in_force(each), self._node.view.placement(each)
            if due is not None and (due.cpus or due.mems) and not (has and has.has(due)):
                self._update_queue.note({each: due})  # the list, which was believed, may be wrong

    async def settle(self, container_id: str, *, starts: bool = True) -> None:
        """Look now if a container is in doubt, or one that *starts* takes CPUs from others."""
        placed = self._node.view.placed.get(container_id)
        if placed is None or self._cgroups is None:
            return
        takes = starts and placed.grant.own and len(self._confirmations.sent) > 1
        unsent = self._is_unsent(container_id)
        if not (unsent or self._confirmations.may_be_lost(container_id) or takes):
            return
        look = asyncio.create_task(self.look(container_id), name="look")
        self._looks.add(look)
        look.add_done_callback(self._looks.discard)
        if not await self._clock.done_within(MAX_WAIT, look):
            log.warning("cgroups-slow", extra={"container": placed.container.full_name})

    async def look(self, *also: str) -> Sequence[Case]:
        """Look at all that is in doubt, and at *also*; put in force what cannot wait.

        Needs no turn: a request that has it waits for this.
        """
        async with self._writing.lock:
            if self._update_queue.leaving:
                return ()
            unsent = filter(self._is_unsent, self._update_queue.unsent)
            ids = dict.fromkeys([*also, *self._confirmations.sent, *unsent])
            cases = [case for each in ids if (case := self._case(each)) is not None]
            if self._cgroups is not None and cases:
                await self._enforce(self._cgroups, cases)
            for case in cases:
                self._conclude(case)
        return cases

    async def _enforce(self, cgroups: Cgroups, cases: Sequence[Case]) -> None:
        lost = {each.container_id: each.placement.cpus for each in cases if each.lost}
        self._writing.giving = lost
        try:
            await asyncio.to_thread(enforce, cgroups, cases, self._node.view.taken)
        finally:
            self._writing.giving = {}

    def _polled(self) -> bool:
        """Whether anything is in doubt that can come into force without another request."""
        phase = self._confirmations.phase
        return any(phase(each) in LIVING for each in self._confirmations.sent)

    def _is_unsent(self, container_id: str) -> bool:
        """Whether the runtime is still to put a container's latest in force."""
        queue = self._update_queue
        return container_id in queue.unsent and container_id not in queue.claimed

    def _case(self, container_id: str) -> Case | None:
        view = self._node.view
        placement = view.placement(container_id)
        if placement is None:
            self._confirmations.forget(container_id)
            self._tries.pop(container_id, None)
            return None
        placed, resizing = view.placed[container_id], view.resizing.get(container_id)
        return Case(
            container_id=container_id,
            placement=placement,
            cgroup=placed.container.cgroup,
            own=placed.grant.own | (resizing.kept if resizing else EMPTY),
            lost=self._confirmations.may_be_lost(container_id)
            or (
                self._is_unsent(container_id)
                and self._confirmations.phase(container_id) is Phase.STARTING
            ),
            settled=container_id not in self._confirmations.sent
            and container_id not in self._update_queue.unsent,
        )

    def _conclude(self, case: Case) -> None:
        """Take in what was found; have told again what is not in force and should be."""
        each = case.container_id
        self._note_written(case)
        now = self._node.view.placement(each)
        if now is None or (now.cpus, now.mems) != (case.placement.cpus, case.placement.mems):
            return  # decided anew: it is told, and looked at again
        if case.overlap and (case.settled or case.error):
            self._report(case)
        sent = self._confirmations.sent.get(each)
        if sent is None:
            return
        late = self._clock.now() - sent.since > GRACE
        phase = self._confirmations.phase(each)
        if case.found is None:
            if phase is Phase.RUNNING and sent.lost:
                self._again(each, case.placement, hurry=True)
            elif phase is Phase.RUNNING and (late or self._confirmations.has_handled(each)):
                self._confirm(each)
        elif self._in_force(case):
            if phase in SETTLED:
                self._ledger.seen(each, replace(cpuset_of(case.found), cpus=case.cpus))
                self._confirm(each)
        elif phase is Phase.RUNNING and (late or sent.lost):
            self._again(each, case.placement, hurry=bool(case.error))

    def _note_written(self, case: Case) -> None:
        """Have the runtime hear of what was written here, and people of what could not be."""
        each = case.container_id
        placed = self._node.view.placed.get(each)
        if placed is None:  # it has ended meanwhile
            return
        name = placed.container.full_name
        if case.written:
            self._wrote()
            log.info("enforced", extra={"container": name, "cpus": case.cpus})
            if case.lost:
                self._ledger.unsure(each)
            self._ledger.written(each, case.placement, case.cpus, self._clock.now())
            now = self._node.view.placement(each)
            if case.settled and now is not None and case.cpus != now.cpus:
                # it has left what is another's, and lacks some of its own: nothing else is due
                self._update_queue.note({each: now})
        elif case.error:
            self._writing.failed(each, case.error)

    def keep_overlaps(self, container_ids: Collection[str]) -> None:
        """Forget the overlaps of all other containers: they have ended."""
        for ended in self._overlaps.keys() - container_ids:
            del self._overlaps[ended]

    def _report(self, case: Case) -> None:
        """Report an overlap, and one that lasts once."""
        each, placed = case.container_id, self._node.view.placed
        if case.error:
            if self._overlaps.get(each) == case.overlap:
                return
            self._overlaps[each] = case.overlap
        self._overlapped(
            Overlap(
                container=placed[case.container_id].container,
                cpus=case.overlap,
                owners=tuple(
                    each.container.full_name
                    for each in placed.values()
                    if each.grant.own & case.overlap
                ),
                error=case.error,
            )
        )

    def _is_overdue(self, case: Case) -> bool:
        """Whether a container's resize should have ended, by all that is known."""
        each = case.container_id
        sent = self._confirmations.sent.get(each)
        if sent is None or self._confirmations.phase(each) is not Phase.UPDATING:
            return False
        grace = BLIND_GRACE if case.found is None else GRACE
        return self._clock.now() - sent.since > grace

    def _in_force(self, case: Case) -> bool:
        cpus, mems = case.placement.cpus, case.placement.mems
        found = EMPTY if case.found is None else parse_cpus(case.found.mems)
        quota, has = case.placement.quota, case.found.cpu_quota if case.found else 0
        return (
            (not cpus or case.cpus == cpus)
            and (not mems or found == mems)
            and (quota is None or not has or (has > 0) == (quota > 0))
        )

    def _confirm(self, container_id: str) -> None:
        self._confirmations.confirm(container_id)
        self._tries.pop(container_id, None)

    def _again(self, container_id: str, placement: Placement, *, hurry: bool) -> None:
        """Have the runtime told again, but not for ever."""
        name = self._node.view.placed[container_id].container.full_name
        self._confirmations.confirm(container_id)  # what was sent counts no more
        self._tries[container_id] = self._tries.get(container_id, 0) + 1
        if self._tries[container_id] < MAX_TRIES:
            log.info("sending-again", extra={"container": name, "cpus": placement.cpus})
            self._update_queue.note({container_id: placement}, hurry=hurry)
            return
        del self._tries[container_id]
        self._update_queue.refused[container_id] = placement
        log.error("not-in-force", extra={"container": name, "cpus": placement.cpus})
