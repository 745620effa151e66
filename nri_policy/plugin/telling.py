"""Telling: on a quiet node, tells the runtime of the containers that were written here.

Only runtimes that no call can hang (NRI 0.12.1), and only in silence, for each update takes 14 to
22 ms in which no request of the node is answered (nri.md §3.7a rule 9d): nothing was asked for a
second, nothing is under way, and there is a pause after each. Older runtimes hear in their
responses alone.
"""

from __future__ import annotations

import logging
from typing import NoReturn

from nri_policy.engine.grant import Changes
from nri_policy.node import Node
from nri_policy.nri.errors import CallRefused
from nri_policy.nri.session import Session
from nri_policy.plugin.convert import update_of
from nri_policy.plugin.update_queue import UpdateQueue

log = logging.getLogger(__name__)

SILENCE = 1.0  # seconds since the latest request
PAUSE = 0.05  # seconds between two calls
RETRY = 60.0  # seconds after a call that failed, or while none is safe


class Telling:
    """Tells one runtime."""

    def __init__(self, node: Node, update_queue: UpdateQueue) -> None:
        self._node = node
        self._queue = update_queue
        self._ledger = update_queue.ledger
        self._confirmations = update_queue.confirmations
        self._clock = update_queue.clock

    async def run(self, session: Session) -> NoReturn:
        """Tell whatever there is to tell, one by one."""
        while True:
            await self._ledger.some_untold.wait()
            try:
                pause = await self._proceed(session)
            except Exception:
                log.exception("telling-failed")
                pause = RETRY
            await self._clock.sleep(pause)

    async def _proceed(self, session: Session) -> float:
        """Tell of the container that waits longest, if now is the time; return when it is next."""
        runtime = session.runtime
        if runtime is None or not runtime.unsolicited_updates_safe:
            return RETRY
        silent = self._clock.now() - self._confirmations.latest
        if silent < SILENCE:
            return SILENCE - silent
        chosen = self._queue.choose(1) if self._may_call(session) else {}
        if not chosen:  # something is under way
            return SILENCE
        return PAUSE if await self._tell(session, chosen) else RETRY

    def _may_call(self, session: Session) -> bool:
        return (
            session.synchronized
            and session.idle
            and not self._confirmations.any_on_the_way
            and not self._queue.leaving
        )

    async def _tell(self, session: Session, chosen: Changes) -> bool:
        """Tell of these; return whether that worked."""
        self._queue.mark_sent(chosen)  # what is decided meanwhile goes into the answer
        try:
            await session.update_containers(
                update_of(each, placement, ignore_failure=True)
                for each, placement in chosen.items()
            )
        except (CallRefused, ConnectionError, TimeoutError) as error:
            log.warning("not-sent", extra={"containers": len(chosen), "reason": str(error)})
            self._queue.doubt(chosen)
            return False
        self._queue.repeat_overtaken(chosen)
        return True
