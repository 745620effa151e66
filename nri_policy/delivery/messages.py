"""Messages to the runtime beside answers: calls that carry changes, and calls that only inform.

They decide nothing: the state has what waits for a message. No call or registration while
handling a request or holding the engine's turn: the runtime may wait for the answer with the lock
that it needs for the call (nri.md §3.7).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from typing import Any, Protocol

from nri_policy.delivery.delivery_state import DeliveryState
from nri_policy.delivery.inputs import CallEnded, CallLost, CallSent, Input
from nri_policy.engine.grant import Changes
from nri_policy.foundation.clock import Clock

log = logging.getLogger(__name__)

LINGER = 1.0  # seconds for a runtime to read the answer to its Synchronize
SILENCE = 1.0  # seconds since the latest request, before a call that only informs
INFORM_PAUSE = 0.05  # seconds between two such calls: each costs the node 14 to 22 ms
RETRY_INFORM = 60.0  # seconds after one that failed, or while none is safe


class NotSentError(Exception):
    """A call to the runtime failed; the runtime may have handled it."""


class Link(Protocol):
    """The ways to the runtime beside answers; `plugin.runtime_link.RuntimeLink`."""

    @property
    def calls_are_safe(self) -> bool | None:
        """Whether no call can hang the runtime; None: it is not known, or not connected."""
        ...

    @property
    def synchronized(self) -> bool:
        """Whether the runtime has listed its containers."""
        ...

    @property
    def idle(self) -> bool:
        """Whether the runtime waits for no answer of ours."""
        ...

    @property
    def missing(self) -> asyncio.Event:
        """Set while no runtime listens on the socket."""
        ...

    def fitting(self, changes: Changes) -> Changes:
        """Return as many of the changes as go into one message."""
        ...

    async def call(self, changes: Changes, *, ignore_failures: bool) -> Collection[str]:
        """Send changes; return whose failed. NotSentError, ConnectionError."""
        ...

    def register(self, *, needed: bool) -> bool:
        """Register again; return whether that is done: only if it is *needed*, or no harm."""
        ...


class Messages:
    """The messages to one runtime."""

    def __init__(
        self,
        state: DeliveryState,
        apply: Callable[[Input], None],
        clock: Clock,
        unbar_moves: Callable[[], Awaitable[None]],
    ) -> None:
        """*apply* passes an input to the machine, and reports its events.

        *unbar_moves* comes before a call: it takes the CPUs of moves out of partitions.
        """
        self._unbar_moves = unbar_moves
        self._state = state
        self._apply = apply
        self._clock = clock
        self._calling = asyncio.Lock()
        # callers of `flush`, which wait until no change is pending
        self._flushing: list[asyncio.Future[None]] = []

    async def send(self, link: Link) -> None:
        """Send the waiting changes by a call or a registration, if either is possible now."""
        async with self._calling:
            safe = link.calls_are_safe
            waiting = self._state.changes_to_send()
            if not waiting or not link.synchronized or safe is None:
                return
            if safe:
                while await self._call(link):
                    pass
            elif link.register(needed=self._state.leaves):
                log.info("sending", extra={"way": "register", "containers": len(waiting)})

    async def _call(self, link: Link) -> bool:
        """Send changes in a call; return whether more must follow at once."""
        await self._unbar_moves()
        waiting = self._state.changes_to_send()
        if not waiting:
            return False
        sent = link.fitting(waiting)
        log.info("sending", extra={"way": "call", "containers": len(sent)})
        try:
            failed = await link.call(sent, ignore_failures=False)
        except ConnectionError:
            return False
        except NotSentError as error:
            log.warning("not-sent", extra={"containers": len(sent), "reason": str(error)})
            if link.register(needed=False):  # only the runtime knows its result
                return False
            failed = [*sent]
        self._apply(CallEnded(changes=sent, failed=failed))
        overtaken = any(each in self._state.waiting for each in sent)
        return (overtaken or len(sent) < len(waiting)) and not failed

    async def inform(self, link: Link) -> float:
        """Inform a quiet runtime about one container; return the pause until the next.

        Only runtimes that no call can hang, and only in silence: each takes 14 to 22 ms in which
        no request of the node is answered (nri.md §3.7a 9d). Older runtimes hear in answers alone.
        """
        state = self._state
        if not link.calls_are_safe:
            return RETRY_INFORM
        silent = self._clock.now() - state.latest
        if silent < SILENCE:
            return SILENCE - silent
        quiet = link.synchronized and link.idle and not state.busy and not state.leaves
        chosen = state.inform(1) if quiet else {}
        if not chosen:  # something is under way
            return SILENCE
        self._apply(CallSent(changes=chosen))
        try:
            await link.call(chosen, ignore_failures=True)
        except (NotSentError, ConnectionError) as error:
            log.warning("not-sent", extra={"containers": len(chosen), "reason": str(error)})
            self._apply(CallLost(changes=chosen))
            return RETRY_INFORM
        self._apply(CallEnded(changes=chosen, informing=True))
        return INFORM_PAUSE

    async def flush(self, link: Link) -> None:
        """Send all pending changes now, and wait until none is left."""
        await self.send(link)
        if self._state.pending:
            flushed = asyncio.get_running_loop().create_future()
            self._flushing.append(flushed)
            await flushed

    def note_pending(self) -> None:
        """Let go on who flushes, if nothing is left to come into force."""
        if self._flushing and not self._state.pending:
            for each in self._flushing:
                if not each.done():
                    each.set_result(None)
            self._flushing.clear()

    async def leave(self, link: Link, seconds: float, *, called: bool = False) -> bool:
        """Send the changes of `widen`; return whether that took no longer than *seconds*.

        Do not wait if no runtime is connected, unless one has *called* the gRPC service.
        """
        if not self._state.pending:
            return True
        flushing = asyncio.ensure_future(self.flush(link))
        ends: set[asyncio.Future[Any]] = {flushing}
        if not called:
            ends.add(asyncio.ensure_future(link.missing.wait()))
        end = asyncio.ensure_future(asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED))
        await self._clock.done_within(seconds, end)
        delivered = flushing.done()
        for each in (end, *ends):
            each.cancel()
        if delivered:
            await self._clock.sleep(LINGER)
        return delivered
