"""A plugin's session with its runtime: connect, register, serve, and come back after a loss.

Order of a connection: we call RegisterPlugin; the runtime calls Configure and Synchronize, maybe
before it has answered that; then events. One worker handles the requests in order while the
channel's reader keeps reading. Whatever ends a connection ends in `disconnected` and a new
attempt; only a socket inherited from the runtime cannot be had again.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import socket
from collections.abc import Callable, Iterable, Sequence
from typing import NoReturn

from google.protobuf.message import DecodeError

from nri_policy.nri.channel import Channel
from nri_policy.nri.clock import Clock
from nri_policy.nri.connection import SERVICES
from nri_policy.nri.errors import (
    Code,
    LocalProtocolError,
    Refused,
    RemoteProtocolError,
)
from nri_policy.nri.mux import Conn
from nri_policy.nri.plugin import CALL, Identity, Plugin
from nri_policy.nri.service import Observe, Service, unobserved
from nri_policy.nri.ttrpc import Request
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


def backoff(failures: int, chance: Callable[[], float] = random.random) -> float:
    """Return the seconds to wait, anywhere from the least to a bound that doubles."""
    bound = min(MAX_DELAY, MIN_DELAY * 2.0 ** min(failures - 1, 10))
    return MIN_DELAY + chance() * (bound - MIN_DELAY)


class Session:
    """The session of one plugin; one task runs it, the others may ask for updates.

    *turn* is shared with whatever else serves the same plugin; *delay* is how many seconds to wait
    before registering again after so many failures in a row; *observe* is told of each request.
    """

    def __init__(  # noqa: PLR0913 - keywords: what a test or the daemon replaces
        self,
        plugin: Plugin,
        identity: Identity,
        *,
        turn: asyncio.Lock | None = None,
        clock: Clock | None = None,
        delay: Callable[[int], float] = backoff,
        observe: Observe = unobserved,
    ) -> None:
        self._plugin = plugin
        self._observe = observe
        self._identity = identity
        self._turn = turn or asyncio.Lock()
        self._clock = clock or Clock()
        self._delay = delay
        self._inherited = False
        self._channel: Channel | None = None
        self._service: Service | None = None

    @property
    def runtime(self) -> Runtime | None:
        """The runtime that is connected now, as far as it has presented itself."""
        return self._service.runtime if self._service else None

    @property
    def synchronized(self) -> bool:
        """Whether the runtime that is connected now has told us all; for any thread."""
        service = self._service
        return service is not None and service.synchronized

    @property
    def can_register(self) -> bool:
        """Whether `reconnect` is possible."""
        return not self._inherited

    async def run(self, path: str) -> NoReturn:
        """Serve the runtime that listens at *path*, whenever there is one, until cancelled."""
        failures = 0
        while True:
            failures += 1
            try:
                reader, writer = await asyncio.open_unix_connection(path)
            except OSError as error:  # normal while the runtime restarts
                log.warning("event=not-connected path=%s error=%r", path, str(error))
            else:
                if await self._serve(reader, writer):
                    failures = 1
            delay = self._delay(failures)
            log.info("event=connecting-again path=%s delay=%.1fs", path, delay)
            await self._clock.sleep(delay)

    async def run_inherited(self, fd: int) -> None:
        """Serve the runtime that started us with a socket at *fd* (NRI_PLUGIN_SOCKET), once."""
        self._inherited = True
        await self._serve(*await asyncio.open_unix_connection(sock=socket.socket(fileno=fd)))

    def reconnect(self) -> None:
        """Register again, once what was asked so far is answered.

        It leads to a Synchronize, where any container can be changed: the way to do that which
        cannot deadlock the runtime. Raises LocalProtocolError on an inherited socket.
        """
        if self._inherited:
            raise LocalProtocolError("a socket inherited from the runtime cannot be had again")
        if self._channel is not None:
            self._channel.finish()

    async def update_containers(
        self, updates: Iterable[ContainerUpdate]
    ) -> Sequence[ContainerUpdate]:
        """Change containers outside of any event; return those updates that failed.

        Raises LocalProtocolError if that could hang the runtime or us, Refused if the runtime fails
        the call as a whole, TimeoutError and ConnectionError.
        """
        channel = self._check_updates_are_safe()
        response = await channel.call(
            "UpdateContainers", UpdateContainersRequest(update=updates), budget=UPDATE_TIMEOUT
        )
        try:
            failed = UpdateContainersResponse.FromString(response.payload).failed
        except DecodeError as error:
            raise Refused("UpdateContainers response is garbled", code=Code.INTERNAL) from error
        if response.code and not failed:
            raise Refused(response.message, code=response.code)
        return failed

    def _check_updates_are_safe(self) -> Channel:
        call = CALL.get(None)
        if call is not None and not call.answered:
            raise LocalProtocolError(
                f"UpdateContainers inside {call.method} would wait for that method itself: "
                "return the updates from it, or ask once it is answered"
            )
        if self._channel is None or self._service is None or not self.synchronized:
            raise ConnectionError("UpdateContainers: no runtime is connected and synchronized")
        runtime = self._service.runtime
        if runtime is None or not runtime.unsolicited_updates_safe:
            nri = runtime.nri if runtime else None
            raise LocalProtocolError(
                f"UpdateContainers can deadlock a runtime with NRI {nri or 'of unknown version'} "
                "(containerd#13733); 0.12.1 is the first without: return updates from the next "
                "event, or reconnect"
            )
        return self._channel

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Serve one connection to its end; return whether it was a good one."""
        channel = self._channel = Channel(reader, writer, Conn.PLUGIN, self._clock)
        service = self._service = Service(self._plugin, self._turn, self._clock, self._observe)
        tasks = {
            reading := asyncio.create_task(channel.read(), name="nri reader"),
            working := asyncio.create_task(self._work(channel, service), name="nri worker"),
            asyncio.create_task(self._register(channel), name="nri registration"),
        }
        try:
            await asyncio.wait({reading, working}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._channel = self._service = None
            channel.close()
            for task in tasks:
                task.cancel()
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
            await channel.wait_closed()
            if service.runtime is not None:
                await self._disconnected()
        for error in outcomes:
            if isinstance(error, RemoteProtocolError | OSError):
                log.error("event=connection-lost error=%r", str(error))
            elif isinstance(error, Exception):
                raise error
        return service.synchronized and service.trouble is None

    async def _register(self, channel: Channel) -> None:
        request = RegisterPluginRequest(
            plugin_name=self._identity.name, plugin_idx=self._identity.index, NRI_version=SPOKEN
        )
        try:
            answer = await channel.call("RegisterPlugin", request, budget=REGISTRATION_TIMEOUT)
        except TimeoutError as error:
            log.error("event=not-registered error=%r", str(error))  # noqa: TRY400 - its place says nothing
            channel.close()
            return
        if answer.code:
            log.error("event=not-registered code=%d message=%r", answer.code, answer.message)
            channel.close()

    async def _work(self, channel: Channel, service: Service) -> None:
        """Answer requests until the connection is to be given up."""
        while arrival := await channel.next_request():
            request = arrival.request
            try:
                payload = await self._answer(service, request, arrival.received)
            except Refused as refusal:
                channel.refuse(request, refusal.code, refusal.message)
            else:
                channel.respond(request, payload)
            await channel.drain()
            if service.trouble is not None and not self._inherited:
                log.warning("event=giving-up reason=%r", service.trouble)
                return

    async def _answer(self, service: Service, request: Request, received: float) -> bytes:
        if request.service != SERVICES[Conn.PLUGIN]:
            raise Refused(f"no service {request.service[:64]!r}", code=Code.UNIMPLEMENTED)
        budget = request.timeout_nano / 1e9 or math.inf
        return await service.answer(
            request.method, request.payload, received=received, budget=budget
        )

    async def _disconnected(self) -> None:
        async with self._turn:
            try:
                await self._plugin.disconnected()
            except Exception:
                log.exception("event=failed method=disconnected")
