"""The requests of one connection, and its end once these are answered.

Requests are handled in order of arrival, and begin as soon as they are read. A method that goes on
after its answer does not count as a request, and may outlive the connection.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from functools import partial

from nri_policy.foundation.clock import Clock
from nri_policy.nri.connection import SERVICES
from nri_policy.nri.errors import CallRefused, Code
from nri_policy.nri.mux import Conn
from nri_policy.nri.pauses import Pauses
from nri_policy.nri.service import PluginService, Respond
from nri_policy.nri.ttrpc import IncomingCall

log = logging.getLogger(__name__)

_HANDSHAKE = frozenset({"Configure", "Synchronize"})


class Requests:
    """The requests that *service* has not answered yet.

    `finished` is done when the connection can end: after `finish`, or once the service is in
    trouble and a new connection may be better. If the runtime may have stopped calling us, it is
    done unless a request comes within *patience*, in seconds. *pauses* knows since when a request
    that is read now may have been in the socket.
    """

    def __init__(
        self,
        service: PluginService,
        *,
        last_connection: bool,
        pauses: Pauses,
        clock: Clock,
        patience: Callable[[], float],
    ) -> None:
        self.service = service
        self.finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # by stream; None: the request has begun, and has not waited for anything yet
        self.unanswered: dict[int, asyncio.Task[None] | None] = {}
        self._last_connection = last_connection
        self._pauses = pauses
        self._finishing = False
        self._clock = clock
        self._patience = patience
        self._stop_doubting: Callable[[], None] | None = None

    def take(self, request: IncomingCall, received: float, answer: Respond) -> None:
        """Begin to handle a request; *answer* is called with its response."""
        if self._finishing:
            return
        if request.service != SERVICES[Conn.PLUGIN]:
            text = f"no service {request.service[:64]!r}"
            answer(CallRefused(text, code=Code.UNIMPLEMENTED))
            return
        if request.method not in _HANDSHAKE:
            self.end_doubt()  # it does call us
        self.unanswered[request.stream] = None
        serving = self.service.begin(
            request.method,
            request.payload,
            came=self._pauses.earliest_arrival(received),
            received=received,
            budget=request.timeout_nano / 1e9 or math.inf,
            to=partial(self._answered, request.stream, answer),
        )
        if serving is not None:
            self.unanswered[request.stream] = serving

    def finish(self) -> None:
        """Accept no more requests; finish when all accepted ones are answered."""
        self._finishing = True
        if not self.unanswered and not self.finished.done():
            self.finished.set_result(None)

    def _answered(self, stream: int, answer: Respond, outcome: bytes | CallRefused) -> None:
        del self.unanswered[stream]
        answer(outcome)
        trouble, doubt = self.service.trouble, self.service.doubt
        if trouble is not None and not self._last_connection:
            self._give_up(trouble)
        elif doubt is not None and not self._last_connection and self._stop_doubting is None:
            self._stop_doubting = self._clock.call_later(
                self._patience(), partial(self._give_up, doubt)
            )
        if self._finishing:
            self.finish()

    def end_doubt(self) -> None:
        """Keep the connection, or forget about one that has ended."""
        self.service.doubt = None
        if self._stop_doubting is not None:
            self._stop_doubting()
            self._stop_doubting = None

    def _give_up(self, reason: str) -> None:
        if not self.finished.done():
            log.warning("giving-up", extra={"reason": reason})
            self.finished.set_result(None)
