"""The queue of updates: what the runtime has not heard of its containers, and how it hears.

What a file can change is claimed by `writing`, and put in force there. For everything else there
are three ways, the first that is there in time (nri.md §3.7):

1. The next response with room for updates takes them along.
2. What still waits after a while is said in a call of our own, UpdateContainers, if the runtime's
   version cannot deadlock on that.
3. Elsewhere the plugin registers again: the answer to Synchronize can change any container. For a
   moment there is no plugin then, so this waits longer.

A runtime that calls us over gRPC, or one of an older version that started us, has the first way
only.

Rule 1: one call at a time, and none by who handles a request or has the engine's turn: the runtime
may be waiting for our answer with the lock that it needs for the call. Rule 2: so a response can
overtake a call, and the call's old news comes last; whoever that hits is told again at once.
Rule 3: a lost connection loses nothing, for Synchronize compares everything but limits of disks,
and those that were not told wait on. Rule 4: an update costs the node's requests 14 to 22 ms; of
those that are in force and only not told (`ledger`) a response takes at most `WITH_CREATION`,
`WITH_STOP` or `WITH_LIST` along, oldest first, and none soon after another one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import NoReturn

from msgspec.structs import replace

from nri_policy.engine.grant import Changes, Placement
from nri_policy.foundation.clock import Clock
from nri_policy.foundation.cpuset import EMPTY, CPUSet
from nri_policy.node import Node, NodeView
from nri_policy.nri.errors import CallRefused
from nri_policy.nri.plugin import Call
from nri_policy.nri.session import Session
from nri_policy.plugin.confirmation import Confirmations, Phase
from nri_policy.plugin.convert import update_of
from nri_policy.plugin.ledger import Ledger
from nri_policy.proto.nri_pb2 import ContainerUpdate
from nri_policy.workload.request import Sort

log = logging.getLogger(__name__)

PATIENCE = 1.0  # seconds for a response to come by, before a call of our own
PATIENCE_TO_REGISTER = 5.0  # seconds, where it takes a new registration
MAX_TRIES = 4  # calls that may fail for a container; each waits twice as long as the one before
MAX_MESSAGE = 1 << 20  # bytes of updates in one message; a runtime takes 4 MiB
LINGER = 1.0  # seconds for a runtime to read the answer to its Synchronize
_OVERHEAD = 8  # bytes of an update in its message, at most
# containers that are in force and not told, in one response: to a creation or resize, to a stop,
# and to the runtime's list
WITH_CREATION, WITH_STOP, WITH_LIST = 1, 2, 10
PAUSE = 1.0  # seconds without a response, before one takes such along


class UpdateQueue:
    """What one runtime is still to be told."""

    def __init__(self, node: Node, clock: Clock | None = None) -> None:
        self._node = node
        self.clock = clock or Clock()
        self.request: Call | None = None  # the one that is handled
        self._unsent: dict[str, Placement] = {}  # by container id, the latest
        # whose creation's answer took whom along, until it starts: if it fails, nobody was told
        self._along: dict[str, tuple[str, ...]] = {}
        self._tries: dict[str, int] = {}  # calls that failed for a container, one after the other
        self.ledger = Ledger()
        self.claimed: set[str] = set()  # of the unsent, those that `writing` takes care of
        self.noted = asyncio.Event()  # set whenever there is more for `writing` to look at
        self._responded = -PAUSE  # when the latest response was taken
        self._calling = asyncio.Lock()
        self._hurry = asyncio.Event()  # set while no response is waited for for long
        self.leaving = False
        self.confirmations = Confirmations()
        self.sent = asyncio.Event()  # set whenever something was sent
        self._some, self._none = asyncio.Event(), asyncio.Event()  # are unsent
        self._none.set()
        self.refused: dict[str, Placement] = {}  # what the runtime failed to do, however often told

    @property
    def is_overdue(self) -> bool:
        """Whether the request that is handled was answered already, without what comes of it."""
        return self.request is not None and self.request.answered

    @property
    def unsent(self) -> Changes:
        """The latest for containers that are not in force and not sent, by container id."""
        return self._unsent

    def note(self, changes: Changes, *, hurry: bool = False) -> None:
        """Have containers told of their new placements; in a *hurry* no response is waited for."""
        for each, change in changes.items():
            before, new = self._unsent.get(each), self.own(each, change)
            self._unsent[each] = new if before is None else new.after(before)
            self._tries.pop(each, None)
            self.refused.pop(each, None)
            self.noted.set()
        self._set_flags()
        if hurry:
            self._hurry.set()

    def supersede(self, container_id: str) -> None:
        """Forget what was to become of a container: an answer about it says something newer.

        Where nobody listens to that answer, what it says was noted instead, and stays.
        """
        if not self.is_overdue and self._unsent.pop(container_id, None) is not None:
            self.claimed.discard(container_id)
            self._set_flags()

    def claim(self, container_ids: Iterable[str]) -> None:
        """Leave those of the unsent out of all messages: they are written, all others are told."""
        self.claimed = {*container_ids}
        self._set_flags()

    def leave_to_runtime(self, container_ids: Iterable[str]) -> None:
        """Have the runtime told of these after all."""
        self.claimed.difference_update(container_ids)
        self._set_flags()

    def done(self, changes: Changes) -> None:
        """Take note that changes are in force, but for those decided anew meanwhile."""
        for each, change in changes.items():
            if self._unsent.get(each) is change:
                del self._unsent[each]
                self.claimed.discard(each)
                self._tries.pop(each, None)
        self._set_flags()

    def own(self, container_id: str, decided: Placement) -> Placement:
        """Return what a container is to be told that was *decided* to run there."""
        if not self.leaving:
            return decided
        left = _unmanaged_placement(self._node.view, container_id)
        return replace(left, shares=decided.shares, limits=decided.limits)

    def only(self, changes: Changes) -> None:
        """Have nobody else told: the runtime has just said what it has.

        It does not say how disks are limited: who was to hear of that still is.
        """
        still = {
            each: replace(now, limits=waiting.limits)
            for each, waiting in self._unsent.items()
            if waiting.limits and (now := self._node.view.placement(each)) is not None
        }
        self._unsent.clear()
        self._along.clear()
        self._tries.clear()
        self.claimed.clear()
        self.refused.clear()
        self._responded = -PAUSE
        self.note(still)
        self.note({each: new for each, new in changes.items() if not self._can_wait(each, new)})
        if self.leaving:
            self._widen()

    def _can_wait(self, container_id: str, change: Placement) -> bool:
        """Have a container told at leisure of which only the quota changes, and return True.

        It runs where it is to; and after an upgrade that can be all of a node's owners of CPUs.
        """
        has = self.ledger.in_force(container_id)
        if change.quota is None or change.limits or has is None or not has.has(change):
            return False
        self.ledger.owe(container_id, self.clock.now())
        return True

    def take(
        self, asked: str = "", *, untold: int = 0, creating: bool = False
    ) -> list[ContainerUpdate]:
        """Return the updates for a response about container *asked*, who hears of its own there.

        At most *untold* of them are of containers that are right already. All count as sent, except
        where nobody listens to the response any more. What goes along with *creating* a container
        is lost if that fails, as by another plugin's veto: `note_end`.
        """
        if self.is_overdue:
            return []
        waiting: dict[str, Placement] = {}
        if self._unsent or self._tries or self.refused:
            self.supersede(asked)
            self._drop_gone()
            waiting = self._unclaimed()
        if self._after_a_pause():
            waiting |= self.choose(untold, asked)
        if not waiting:
            return []
        taken = self._batch(waiting, response=True)
        for each in taken:
            self._unsent.pop(each, None)
        self.mark_sent({each: waiting[each] for each in taken})
        if creating and taken:
            self._along[asked] = (*taken,)
        self._set_flags()
        return [*taken.values()]

    def note_answer(
        self, container_id: str, placement: Placement, *, creating: bool = False
    ) -> None:
        """Take note that a container's own placement goes with the answer about it."""
        if self.is_overdue:
            return
        if creating:
            self.ledger.created(container_id, placement)
        else:
            self.ledger.told(container_id, placement)
        self.confirmations.note_answer(container_id, self.clock.now())
        self.sent.set()

    def note_creation(self, container_id: str) -> None:
        """Take note that the answer about a container's creation has arrived."""
        self._along.pop(container_id, None)

    def note_end(self, container_id: str) -> None:
        """Tell again what went along with a container's creation, if that seems to have failed."""
        along = self._along.pop(container_id, ())
        self.note(self._node.view.placements(each for each in along if each not in self._unsent))

    async def run(self, session: Session) -> NoReturn:
        """Tell what no response takes along in time."""
        while True:
            await self._some.wait()
            if not self._unclaimed():  # a response has taken it all along
                continue
            empty = asyncio.ensure_future(self._none.wait())
            hurry = asyncio.ensure_future(self._hurry.wait())
            end = asyncio.ensure_future(
                asyncio.wait({empty, hurry}, return_when=asyncio.FIRST_COMPLETED)
            )
            try:
                await self.clock.done_within(self._patience(session), end)
                if not empty.done() and hurry.done():
                    await self.clock.done_within(PATIENCE, empty)
                if not empty.done():
                    await self._flush(session)
            finally:
                self._hurry.clear()
                for each in (end, empty, hurry):
                    each.cancel()

    async def flush(self, session: Session) -> None:
        """Tell everything now, and return when it is told."""
        await self._flush(session)
        await self._none.wait()

    def widen(self) -> None:
        """Let all containers run wherever they like; from now on nobody is told anything else."""
        self.leaving = True
        self._widen()

    async def leave(self, session: Session, seconds: float, *, called: bool = False) -> bool:
        """Tell of that; return whether all was told in *seconds*.

        Where there is no runtime to be connected to nobody waits for one, unless we are *called* by
        another way.
        """
        if not self._unsent:
            return True
        flushing = asyncio.ensure_future(self.flush(session))
        ends = {flushing} if called else {flushing, asyncio.ensure_future(session.missing.wait())}
        end = asyncio.ensure_future(asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED))
        await self.clock.done_within(seconds, end)
        delivered = flushing.done()
        for each in (end, *ends):
            each.cancel()
        if delivered:
            await self.clock.sleep(LINGER)
        return delivered

    def _widen(self) -> None:
        view = self._node.view
        self.note({each: _unmanaged_placement(view, each) for each in view.placed})

    def _patience(self, session: Session) -> float:
        runtime = session.runtime
        calls = runtime is None or runtime.unsolicited_updates_safe
        tries = min((self._tries.get(each, 0) for each in self._unclaimed()), default=0)
        return (PATIENCE if calls else PATIENCE_TO_REGISTER) * 2.0**tries

    async def _flush(self, session: Session) -> None:
        """Tell by the way that there is; no way is no error: a response will do, or Synchronize."""
        async with self._calling:
            self._drop_gone()
            self._set_flags()
            runtime = session.runtime
            waiting = self._unclaimed()
            if not waiting or not session.synchronized or runtime is None:
                return
            if runtime.unsolicited_updates_safe:
                while await self._call(session):
                    pass
            elif session.can_register if self.leaving else session.may_register:
                log.info("sending", extra={"way": "register", "containers": len(waiting)})
                session.reconnect()

    async def _call(self, session: Session) -> bool:
        """Tell in a call of our own; return whether there is more to be told at once."""
        waiting = self._unclaimed()
        sent = self._batch(waiting, response=False)
        log.info("sending", extra={"way": "call", "containers": len(sent)})
        try:
            updates = await session.update_containers(sent.values())
            failed = {update.container_id for update in updates}
        except ConnectionError:
            return False
        except (CallRefused, TimeoutError) as error:
            log.warning("not-sent", extra={"containers": len(sent), "reason": str(error)})
            if session.may_register:  # nobody knows what came of it, but the runtime
                session.reconnect()
                return False
            failed = {*sent}
        told = {each: waiting[each] for each in sent if each not in failed}
        self.mark_sent(told)
        for each in failed & sent.keys():
            self._retry_later(each)
        again = self.repeat_overtaken(told)
        self.done(told)
        self._drop_gone()
        self._set_flags()
        return bool(again or len(sent) < len(waiting)) and not failed

    def repeat_overtaken(self, told: Changes) -> bool:
        """Have those told again who were decided anew during a call; return whether there are any.

        Rule 2: a response may have told them before the call did.
        """
        due = self._node.view.placements(told)
        now = {each: self.own(each, placement) for each, placement in due.items()}
        again = {
            each: new
            for each, new in now.items()
            if (new.cpus, new.mems) != (told[each].cpus, told[each].mems)
        }
        self.note(again, hurry=bool(again))
        return bool(again)

    def _retry_later(self, each: str) -> None:
        """Keep a container to be told again, but not for ever."""
        due = self._node.view.placement(each)
        if due is None:
            return
        now = self.own(each, due)
        tries = self._tries[each] = self._tries.get(each, 0) + 1
        if tries < MAX_TRIES:
            self._unsent.setdefault(each, now)
            return
        self.refused[each] = self._unsent.pop(each, now)
        del self._tries[each]
        log.error(
            "update-refused",
            extra={
                "container": self._node.view.placed[each].container.full_name,
                "cpus": now.cpus,
                "mems": now.mems,
                "tries": tries,
            },
        )

    def _drop_gone(self) -> None:
        """Forget the containers that hold nothing any more."""
        placed = self._node.view.placed
        for table in (self._unsent, self._tries, self.refused):
            # the difference of the two sets of keys would look at all that are placed
            for gone in [each for each in table if each not in placed]:
                del table[gone]
        self.claimed &= self._unsent.keys()

    def _unclaimed(self) -> dict[str, Placement]:
        """Return what the runtime has to put in force."""
        return {each: new for each, new in self._unsent.items() if each not in self.claimed}

    def choose(self, most: int, asked: str = "") -> dict[str, Placement]:
        """Return what the runtime may be told of containers that are right, the most urgent first.

        Of none that is *asked* about, or that something else is under way for.
        """
        view = self._node.view
        due = (
            each
            for each in self.ledger.by_urgency()
            if each != asked
            and each in view.placed
            and each not in self._unsent
            and each not in self.confirmations.sent
            and self.confirmations.phase(each) is Phase.RUNNING
        )
        return view.placements(islice(due, most))

    def doubt(self, sent: Changes) -> None:
        """Take note that nobody knows whether the runtime has heard what it was sent."""
        for each in sent:
            self.ledger.unsure(each)
        self.note(sent)

    def _after_a_pause(self) -> bool:
        """Whether a response may tell of those who are right already."""
        now = self.clock.now()
        paused, self._responded = now - self._responded >= PAUSE, now
        return paused

    def _batch(
        self, waiting: Mapping[str, Placement], *, response: bool
    ) -> dict[str, ContainerUpdate]:
        """Return as many updates as go into a message: a response, or a call of our own."""
        batch, size = {}, 0
        for each, placement in waiting.items():
            if response and each in self._tries:
                continue  # a response would not tell us that it failed again
            update = update_of(each, placement, ignore_failure=response)
            size += update.ByteSize() + _OVERHEAD
            if size > MAX_MESSAGE:
                break
            batch[each] = update
        return batch

    def mark_sent(self, placements: Changes) -> None:
        """Take note of updates that were sent beside what the runtime asked about."""
        for each, placement in placements.items():
            self.ledger.told(each, placement)
        self.confirmations.mark_sent(placements, self.clock.now())
        self.sent.set()

    def _set_flags(self) -> None:
        _set(self._some, on=len(self._unsent) > len(self.claimed))
        _set(self._none, on=not self._unsent)


def _set(event: asyncio.Event, *, on: bool) -> None:
    if on:
        event.set()
    else:
        event.clear()


def _unmanaged_placement(view: NodeView, container_id: str) -> Placement:
    """Return where a container would run if there were no policy: anywhere."""
    settings, machine = view.layout.settings, view.layout.machine
    placed = view.placed[container_id]
    request = placed.request
    told, _ = view.sent[container_id]  # nothing, of one that is left alone
    cpus = settings.pin_cpu and (request.sort is not Sort.PRESERVE or bool(told))
    mems = settings.pin_memory and not request.memory_preserve
    nodes = CPUSet(node.id for node in machine.nodes if node.memory)
    return Placement(
        cpus=((placed.grant.preserved & machine.online) or machine.online) if cpus else EMPTY,
        mems=nodes if mems else EMPTY,
        shares=None,
        quota=view.granted_quota(container_id),
        cause="the policy leaves",
    )
