"""A plugin's session with its runtime: connect, register, serve, and come back after a loss.

Order of a connection: we call RegisterPlugin; the runtime calls Configure and Synchronize, maybe
before it has answered that; then events. Requests are handled in order of arrival. Whatever ends a
connection ends in `disconnected` and a new attempt; only a socket inherited from the runtime cannot
be opened again.

A registration costs: from the end of the old connection to the answer to Synchronize the node has
no plugin. On a node without CPU time to spare that answer is late, and a further registration only
makes it worse. So after a late answer, registrations that are not necessary pause for twice as long
as the last one took; the pause doubles with each further late answer. Meanwhile the connection
stays, even if the runtime may have stopped calling us: its next request shows that it has not.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import NoReturn

from google.protobuf.message import DecodeError

from nri_policy.foundation.backoff import backoff
from nri_policy.foundation.clock import SYSTEM_CLOCK, Clock
from nri_policy.foundation.wording import problem_of
from nri_policy.nri.channel import Channel
from nri_policy.nri.errors import (
    CallRefused,
    Code,
    LocalProtocolError,
    RemoteProtocolError,
)
from nri_policy.nri.mux import Conn
from nri_policy.nri.pauses import Pauses
from nri_policy.nri.plugin import Plugin, PluginIdentity
from nri_policy.nri.requests import Requests
from nri_policy.nri.service import Observe, PluginService, Turn, unobserved
from nri_policy.nri.versions import SPOKEN, Runtime
from nri_policy.proto.nri_pb2 import (
    ContainerUpdate,
    RegisterPluginRequest,
    UpdateContainersRequest,
    UpdateContainersResponse,
)

log = logging.getLogger(__name__)

# A runtime takes in plugins one by one, each for up to 7 seconds (nri#292).
REGISTRATION_TIMEOUT = 30.0  # seconds
UPDATE_TIMEOUT = 30.0  # seconds
MIN_DELAY, MAX_DELAY = 1.0, 30.0  # seconds before registering again; NRI 0.7 needs about one
MAX_PAUSE = 300.0  # seconds without an unnecessary registration
# Seconds to wait for a request if the runtime may have stopped calling us. If none comes, the node
# is idle and loses nothing by a registration, or it has been without a plugin all that time.
MAX_DOUBT = 5.0


def registration_delay(failures: int, chance: Callable[[], float] = random.random) -> float:
    """Return the seconds to wait before registering again, after so many failures in a row."""
    return backoff(failures - 1, least=MIN_DELAY, most=MAX_DELAY, chance=chance)


class Session:
    """The session of one plugin; one task runs it, the others may ask for updates.

    *turn* is shared with whatever else serves the same plugin; *delay* is how many seconds to wait
    before registering again after so many failures in a row; *observe* is called after each
    request; *pauses* knows since when a request that is read now may have been in the socket;
    *keep_out* returns once no other daemon is registered at a socket.
    """

    def __init__(  # noqa: PLR0913 - keywords: what a test or the daemon replaces
        self,
        plugin: Plugin,
        identity: PluginIdentity,
        *,
        turn: Turn | None = None,
        clock: Clock = SYSTEM_CLOCK,
        delay: Callable[[int], float] = registration_delay,
        observe: Observe = unobserved,
        pauses: Pauses | None = None,
        keep_out: Callable[[Path], Awaitable[None]] | None = None,
    ) -> None:
        self._plugin = plugin
        self._observe = observe
        self._identity = identity
        self._turn = turn or asyncio.Lock()
        self._clock = clock
        self._pauses = pauses or Pauses(self._clock)
        self._keep_out = keep_out
        self._delay = delay
        self._inherited = False
        self.missing = asyncio.Event()  # set while no runtime listens on the socket
        self._channel: Channel | None = None
        self._requests: Requests | None = None
        self._connected_at = 0.0
        self._late_synchronizes = 0  # one after the other
        self._pause_ends = -math.inf

    @property
    def runtime(self) -> Runtime | None:
        """The connected runtime; None before it has sent its name and version."""
        return self._requests.service.runtime if self._requests else None

    @property
    def synchronized(self) -> bool:
        """Whether the connected runtime has sent its whole state; for any thread."""
        requests = self._requests
        return requests is not None and requests.service.synchronized

    @property
    def idle(self) -> bool:
        """Whether no request of the runtime waits for an answer."""
        return self._requests is None or not self._requests.unanswered

    @property
    def can_register(self) -> bool:
        """Whether `reconnect` is possible."""
        return not self._inherited

    @property
    def may_register(self) -> bool:
        """Whether to `reconnect` for a registration that is not necessary."""
        return self.can_register and self._clock.now() >= self._pause_ends

    async def run(self, path: str) -> NoReturn:
        """Serve the runtime that listens at *path*, whenever there is one, until cancelled."""
        failures = 0
        while True:
            failures += 1
            if self._keep_out is not None:
                await self._keep_out(Path(path))
            try:
                connected = await self._connect(path=path)
            except OSError as error:  # normal while the runtime restarts
                self.missing.set()
                log.warning(
                    "not-connected",
                    extra={
                        "path": path,
                        "error": problem_of(error),
                        "remedy": "see nri-policy doctor",
                    },
                )
            else:
                self.missing.clear()
                if await self._serve(*connected):
                    failures = 1
            delay = self._delay(failures)
            log.info("connecting-again", extra={"path": path, "delay": f"{delay:.1f}s"})
            await self._clock.sleep(delay)

    async def run_inherited(self, fd: int) -> None:
        """Serve the runtime that started us with a socket at *fd* (NRI_PLUGIN_SOCKET), once."""
        self._inherited = True
        await self._serve(*await self._connect(sock=socket.socket(fileno=fd)))

    def reconnect(self) -> None:
        """Register again, once all requests so far are answered.

        It leads to a Synchronize, whose answer can change any container without the risk of a
        deadlock in the runtime. Raises LocalProtocolError on an inherited socket.
        """
        if self._inherited:
            raise LocalProtocolError("a socket inherited from the runtime cannot be opened again")
        if self._requests is not None:
            self._requests.finish()

    async def update_containers(
        self, updates: Iterable[ContainerUpdate]
    ) -> Sequence[ContainerUpdate]:
        """Change containers outside of any event; return those updates that failed.

        Raises LocalProtocolError if that could hang the runtime or us, CallRefused if the runtime
        fails the call as a whole, TimeoutError and ConnectionError.
        """
        channel = self._check_updates_are_safe()
        response = await channel.call(
            "UpdateContainers", UpdateContainersRequest(update=updates), budget=UPDATE_TIMEOUT
        )
        try:
            failed = UpdateContainersResponse.FromString(response.payload).failed
        except DecodeError as error:
            raise CallRefused(
                "UpdateContainers response is malformed", code=Code.INTERNAL
            ) from error
        if response.code and not failed:
            raise CallRefused(response.message, code=response.code)
        return failed

    def _check_updates_are_safe(self) -> Channel:
        requests = self._requests
        if requests is not None and asyncio.current_task() in requests.unanswered.values():
            raise LocalProtocolError(
                "UpdateContainers inside a request would wait for that request itself: "
                "return the updates from it, or ask once it is answered"
            )
        if self._channel is None or not self.synchronized:
            raise ConnectionError("UpdateContainers: no runtime is connected and synchronized")
        runtime = self.runtime
        if runtime is None or not runtime.unsolicited_updates_safe:
            nri = runtime.nri if runtime else None
            raise LocalProtocolError(
                f"UpdateContainers can deadlock a runtime with NRI {nri or 'of unknown version'} "
                "(containerd#13733); 0.12.1 is the first without: return updates from the next "
                "event, or reconnect"
            )
        return self._channel

    async def _connect(
        self, path: str | None = None, sock: socket.socket | None = None
    ) -> tuple[Channel, Requests]:
        """Connect to a socket's path, or to one that is open; raises OSError."""
        self._connected_at = self._clock.now()
        service = PluginService(
            self._plugin,
            self._turn,
            self._clock,
            self._observe,
            observe_synchronize=self._note_synchronize,
        )
        requests = Requests(
            service,
            last_connection=self._inherited,
            pauses=self._pauses,
            clock=self._clock,
            patience=lambda: min(self._pause_ends - self._clock.now(), MAX_DOUBT),
        )
        _, channel = await asyncio.get_running_loop().create_unix_connection(
            lambda: Channel(Conn.PLUGIN, self._clock, requests.take), path, sock=sock
        )
        return channel, requests

    async def _serve(self, channel: Channel, requests: Requests) -> bool:
        """Serve one connection to its end; return whether it synchronized without trouble."""
        self._channel, self._requests = channel, requests
        service = requests.service
        registering = asyncio.create_task(self._register(channel), name="nri registration")
        watching = asyncio.create_task(
            self._pauses.watch(lambda: service.synchronized), name="nri pauses"
        )
        try:
            await asyncio.wait(
                {channel.ended, requests.finished}, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            self._channel = self._requests = None
            answered = registering.done()
            requests.end_doubt()
            channel.close()
            tasks = [registering, watching, *filter(None, requests.unanswered.values())]
            for task in tasks:
                task.cancel()
            outcomes = await asyncio.gather(channel.ended, *tasks, return_exceptions=True)
            await channel.wait_closed()
            if service.runtime is not None:
                await self._disconnected()
        for error in outcomes:
            if isinstance(error, RemoteProtocolError | OSError):
                log.error("connection-lost", extra={"error": problem_of(error)})
            elif isinstance(error, Exception):
                raise error
        if not answered and service.runtime is None and outcomes[0] is None:
            reason = "it closed the connection: is this its NRI socket?"
            log.error("not-registered", extra={"error": reason})
        return service.synchronized and service.trouble is None

    def _note_synchronize(self, *, late: bool) -> None:
        """Note that a Synchronize was answered; after a *late* one, pause registrations."""
        if not late:
            self._late_synchronizes, self._pause_ends = 0, -math.inf
            return
        self._late_synchronizes += 1
        now = self._clock.now()
        cost = MIN_DELAY + now - self._connected_at
        pause = min(cost * 2.0**self._late_synchronizes, MAX_PAUSE)
        self._pause_ends = now + pause
        log.warning("registration-late", extra={"cost": f"{cost:.1f}s", "pause": f"{pause:.1f}s"})

    async def _register(self, channel: Channel) -> None:
        request = RegisterPluginRequest(
            plugin_name=self._identity.name, plugin_idx=self._identity.index, NRI_version=SPOKEN
        )
        try:
            answer = await channel.call("RegisterPlugin", request, budget=REGISTRATION_TIMEOUT)
        except TimeoutError as error:
            log.error("not-registered", extra={"error": str(error)})  # noqa: TRY400 - its place says nothing
            channel.close()
            return
        if answer.code:
            log.error("not-registered", extra={"code": answer.code, "reason": answer.message})
            channel.close()

    async def _disconnected(self) -> None:
        async with self._turn:
            try:
                await self._plugin.disconnected()
            except Exception:
                log.exception("failed", extra={"method": "disconnected"})
