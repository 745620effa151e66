"""The queue of updates: what the runtime has not heard of its containers, and how it hears.

Three ways, the first that is there in time (nri.md §3.7):

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
and those that were not told wait on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Mapping
from typing import NoReturn

from msgspec.structs import replace

from nri_policy.classes import join_changes
from nri_policy.clock import Clock
from nri_policy.cpuset import EMPTY, CPUSet
from nri_policy.engine.grant import Placement
from nri_policy.node import Node, NodeView
from nri_policy.nri.errors import CallRefused
from nri_policy.nri.plugin import overdue
from nri_policy.nri.session import Session
from nri_policy.plugin.confirmation import Confirmations
from nri_policy.plugin.convert import update_of
from nri_policy.proto.nri_pb2 import ContainerUpdate
from nri_policy.workload.request import Sort

log = logging.getLogger(__name__)

PATIENCE = 1.0  # seconds for a response to come by, before a call of our own
PATIENCE_TO_REGISTER = 5.0  # seconds, where it takes a new registration
MAX_TRIES = 4  # calls that may fail for a container; each waits twice as long as the one before
MAX_MESSAGE = 1 << 20  # bytes of updates in one message; a runtime takes 4 MiB
LINGER = 1.0  # seconds for a runtime to read the answer to its Synchronize
_OVERHEAD = 8  # bytes of an update in its message, at most


class UpdateQueue:
    """What one runtime is still to be told."""

    def __init__(self, node: Node, clock: Clock | None = None) -> None:
        self._node = node
        self.clock = clock or Clock()
        self._unsent: dict[str, Placement] = {}  # by container id, the latest
        # whose creation's answer took whom along, until it starts: if it fails, nobody was told
        self._along: dict[str, tuple[str, ...]] = {}
        self._tries: dict[str, int] = {}  # calls that failed for a container, one after the other
        # who is right by now, though the runtime may not know: it hears, but nobody hurries
        self._reminders: dict[str, Placement] = {}
        self._calling = asyncio.Lock()
        self._hurry = asyncio.Event()  # set while no response is waited for for long
        self.leaving = False
        self.confirmations = Confirmations()
        self.sent = asyncio.Event()  # set whenever something was sent
        self._some, self._none = asyncio.Event(), asyncio.Event()  # are unsent
        self._none.set()
        self.refused: dict[str, Placement] = {}  # what the runtime failed to do, however often told

    @property
    def unsent(self) -> Collection[str]:
        """The ids of containers that the runtime has not heard the latest of."""
        return self._unsent.keys()

    def note(self, changes: Iterable[Placement], *, hurry: bool = False) -> None:
        """Have containers told of their new placements; in a *hurry* no response is waited for."""
        for change in changes:
            each = change.container_id
            before = self._unsent.get(each)
            new = self.own(change)
            if new.shares is None and before is not None:
                new = replace(new, shares=before.shares)
            if before is not None and before.limits:
                new = replace(new, limits=join_changes(before.limits, new.limits))
            self._unsent[each] = new
            self._tries.pop(each, None)
            self._reminders.pop(each, None)
            self.refused.pop(each, None)
        self._set_flags()
        if hurry:
            self._hurry.set()

    def remind(self, changes: Iterable[Placement]) -> None:
        """Have a response tell what is in force already, for the runtime to know it too."""
        for change in changes:
            if change.container_id not in self._unsent:
                self._reminders[change.container_id] = change

    def own(self, decided: Placement) -> Placement:
        """Return what a container is to be told that was *decided* to run there."""
        if not self.leaving:
            return decided
        left = _unmanaged_placement(self._node.view, decided.container_id)
        return replace(left, shares=decided.shares, limits=decided.limits)

    def only(self, changes: Iterable[Placement]) -> None:
        """Have nobody else told: the runtime has just said what it has.

        It does not say how disks are limited: who was to hear of that still is.
        """
        still = [
            replace(now, limits=waiting.limits)
            for each, waiting in self._unsent.items()
            if waiting.limits and (now := self._node.view.placement(each)) is not None
        ]
        self._unsent.clear()
        self._along.clear()
        self._tries.clear()
        self._reminders.clear()
        self.refused.clear()
        self.note([*still, *changes])
        if self.leaving:
            self._widen()

    def take(self, asked: str = "", *, creating: bool = False) -> list[ContainerUpdate]:
        """Return the updates for a response about container *asked*, who hears of its own there.

        They count as sent, except where nobody listens to the response any more. What goes along
        with *creating* a container is lost if that fails, as by another plugin's veto: `ended`.
        """
        if overdue():
            return []
        self._unsent.pop(asked, None)
        self._reminders.pop(asked, None)
        self._drop_gone()
        taken = self._batch(self._reminders | self._unsent, ignore_failure=True, tried=False)
        for each in taken:
            self._unsent.pop(each, None)
            self._reminders.pop(each, None)
        self._mark_sent(taken)
        if creating and taken:
            self._along[asked] = (*taken,)
        self._set_flags()
        return [*taken.values()]

    def answered(self, container_id: str) -> None:
        """Take note that a container's own placement goes with the answer about it."""
        if not overdue():
            self.confirmations.answered(container_id, self.clock.now())
            self.sent.set()

    def created(self, container_id: str) -> None:
        """Take note that the answer about a container's creation has arrived."""
        self._along.pop(container_id, None)

    def ended(self, container_id: str) -> None:
        """Tell again what went along with a container's creation, if that seems to have failed."""
        again = (self._node.view.placement(each) for each in self._along.pop(container_id, ()))
        self.note(
            placement
            for placement in again
            if placement is not None and placement.container_id not in self._unsent
        )

    async def run(self, session: Session) -> NoReturn:
        """Tell what no response takes along in time."""
        while True:
            await self._some.wait()
            if not self._unsent:  # a response has taken it all along
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

    async def leave(self, session: Session, seconds: float, *, called: bool = False) -> bool:
        """Let all containers run wherever they like; return whether all heard it in *seconds*.

        From now on nobody is told anything else. Where there is no runtime to be connected to
        nobody waits for one, unless we are *called* by another way.
        """
        self.leaving = True
        self._widen()
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
        self.note([_unmanaged_placement(view, each) for each in view.placed])

    def _patience(self, session: Session) -> float:
        runtime = session.runtime
        calls = runtime is None or runtime.unsolicited_updates_safe
        tries = min((self._tries.get(each, 0) for each in self._unsent), default=0)
        return (PATIENCE if calls else PATIENCE_TO_REGISTER) * 2.0**tries

    async def _flush(self, session: Session) -> None:
        """Tell by the way that there is; no way is no error: a response will do, or Synchronize."""
        async with self._calling:
            self._drop_gone()
            self._set_flags()
            runtime = session.runtime
            if not self._unsent or not session.synchronized or runtime is None:
                return
            if runtime.unsolicited_updates_safe:
                while await self._call(session):
                    pass
            elif session.can_register:
                log.info("sending", extra={"way": "register", "containers": len(self._unsent)})
                session.reconnect()

    async def _call(self, session: Session) -> bool:
        """Tell in a call of our own; return whether there is more to be told at once."""
        waiting = self._unsent.copy()
        sent = self._batch(waiting, ignore_failure=False, tried=True)
        log.info("sending", extra={"way": "call", "containers": len(sent)})
        try:
            updates = await session.update_containers(sent.values())
            failed = {update.container_id for update in updates}
        except ConnectionError:
            return False
        except (CallRefused, TimeoutError) as error:
            log.warning("not-sent", extra={"containers": len(sent), "reason": str(error)})
            if session.can_register:  # nobody knows what came of it, but the runtime
                session.reconnect()
                return False
            failed = {*sent}
        self._mark_sent(each for each in sent if each not in failed)
        view, more = self._node.view, len(sent) < len(waiting)
        for each in sent:
            now = view.placement(each)
            if self.leaving and now is not None:
                now = _unmanaged_placement(view, each)
            if now is None:
                self._unsent.pop(each, None)
            elif each in failed:
                self._retry_later(now)
            elif (now.cpus, now.mems) != (waiting[each].cpus, waiting[each].mems):
                self._unsent.setdefault(each, now)  # a response may have told it before the call
                more = True
            elif self._unsent.get(each) is waiting[each]:
                del self._unsent[each]
                self._tries.pop(each, None)
        self._set_flags()
        return more and not failed

    def _retry_later(self, now: Placement) -> None:
        """Keep a container to be told again, but not for ever."""
        each = now.container_id
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
        for table in (self._unsent, self._reminders, self._tries, self.refused):
            for gone in table.keys() - placed.keys():
                del table[gone]

    def _batch(
        self, waiting: Mapping[str, Placement], *, ignore_failure: bool, tried: bool
    ) -> dict[str, ContainerUpdate]:
        """Return as many updates as go into a message, with those *tried* before or without."""
        batch, size = {}, 0
        for each, placement in waiting.items():
            if each in self._tries and not tried:
                continue  # a response would not tell us that it failed again
            update = update_of(placement, ignore_failure=ignore_failure)
            size += update.ByteSize() + _OVERHEAD
            if size > MAX_MESSAGE:
                break
            batch[each] = update
        return batch

    def _mark_sent(self, container_ids: Iterable[str]) -> None:
        self.confirmations.mark_sent(container_ids, self.clock.now())
        self.sent.set()

    def _set_flags(self) -> None:
        if self._unsent:
            self._some.set()
            self._none.clear()
        else:
            self._none.set()
            self._some.clear()


def _unmanaged_placement(view: NodeView, container_id: str) -> Placement:
    """Return where a container would run if there were no policy: anywhere."""
    settings, machine = view.layout.settings, view.layout.machine
    request = view.placed[container_id].request
    cpus = settings.pin_cpu and request.sort is not Sort.PRESERVE
    mems = settings.pin_memory and not request.memory_preserve
    nodes = CPUSet(node.id for node in machine.nodes if node.memory)
    return Placement(
        container_id=container_id,
        cpus=machine.online if cpus else EMPTY,
        mems=nodes if mems else EMPTY,
        shares=None,
        cause="the policy leaves",
    )
