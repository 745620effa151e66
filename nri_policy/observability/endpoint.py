"""The HTTP endpoint: probes and metrics.

It has threads of its own, so that it can answer for a loop that hangs. Owns what a client may cost:
a request has a few seconds and a few kilobytes, a connection is for one request, and where there
are too many connections the oldest one makes way, so that clients that only hold connections do not
keep the kubelet out. Nothing that a client sends reaches a log.
"""

from __future__ import annotations

import asyncio
import io
import logging
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from msgspec import Struct

from nri_policy.observability.exporter import Exporter, ScrapeError
from nri_policy.settings import Endpoint as Address
from nri_policy.settings import Instrumentation

log = logging.getLogger(__name__)

MOST_CONNECTIONS = 16
LONGEST = 5.0  # seconds for a connection, from its first byte to our last
LARGEST = 8 << 10  # bytes of a request
_POLL = 0.25  # seconds between two looks at what takes too long
_TEXT = "text/plain; charset=utf-8"

# Why something is not as it should be; nothing if it is.
Check = Callable[[], str]


class Probes(Struct, frozen=True, kw_only=True):
    """What the probes ask; called on threads of the endpoint, they must not wait."""

    alive: Check
    ready: Mapping[str, Check]  # by what is checked


class Endpoint:
    """Listens where the settings tell, nowhere if they do not."""

    def __init__(self, probes: Probes, exporter: Exporter) -> None:
        self._probes = probes
        self._exporter = exporter
        self._settings = Instrumentation()
        self._server: _Server | None = None

    @property
    def address(self) -> tuple[str, int] | None:
        """Where it listens now; None for nowhere."""
        return None if self._server is None else self._server.server_address[:2]  # type: ignore[return-value]  # of inet sockets

    @asynccontextmanager
    async def following(self, settings: Instrumentation) -> AsyncIterator[None]:
        """Listen as *settings* tell; as before, if what is done inside fails.

        OSError where they cannot be followed: everything is as before.
        """
        before, old, new = self._settings, self._server, self._server
        if settings.http_endpoint != before.http_endpoint:
            if _same_port(settings.http_endpoint, before.http_endpoint):
                await _stop(old)  # it would be in the new one's way
            try:
                new = await self._start(settings.http_endpoint)
            except OSError:
                await self._return(old, before)
                raise
        self._settings, self._server = settings, new
        try:
            yield
        except BaseException:
            self._settings = before
            if new is not old:
                await _stop(new)
                await self._return(old, before)
            raise
        if new is not old:
            await _stop(old)

    async def close(self) -> None:
        """Stop listening."""
        await _stop(self._server)
        self._server = None

    async def _return(self, old: _Server | None, before: Instrumentation) -> None:
        """Listen as before."""
        self._server = old
        if old is not None and old.stopped:
            try:
                self._server = await self._start(before.http_endpoint)
            except OSError as error:
                self._server = None
                log.error("not-listening", extra={"reason": str(error)})  # noqa: TRY400 - its place says nothing

    async def _start(self, address: Address | None) -> _Server | None:
        if address is None:
            return None
        return _Server(await asyncio.to_thread(_listener, address), self._answer)

    def _answer(self, path: str, accepted: str) -> tuple[HTTPStatus, bytes, str]:
        """Return status, body and content type."""
        match path.partition("?")[0]:
            case "/livez" | "/healthz":
                return _probe({"loop": self._probes.alive})
            case "/readyz":
                return _probe({"loop": self._probes.alive, **self._probes.ready})
            case "/metrics" if self._settings.prometheus_export:
                try:
                    return HTTPStatus.OK, *self._exporter.text(accepted)
                except ScrapeError as error:
                    return HTTPStatus.SERVICE_UNAVAILABLE, f"{error}\n".encode(), _TEXT
        return HTTPStatus.NOT_FOUND, b"not found\n", _TEXT


def _probe(checks: Mapping[str, Check]) -> tuple[HTTPStatus, bytes, str]:
    wrong = {name: reason for name, check in checks.items() if (reason := check())}
    if not wrong:
        return HTTPStatus.OK, b"ok\n", _TEXT
    text = "".join(f"{name}: {reason}\n" for name, reason in wrong.items())
    return HTTPStatus.SERVICE_UNAVAILABLE, text.encode(), _TEXT


def _same_port(one: Address | None, other: Address | None) -> bool:
    return one is not None and other is not None and one.port == other.port


async def _stop(server: _Server | None) -> None:
    """Stop a server without making the loop wait."""
    if server is not None and not server.stopped:
        await asyncio.to_thread(server.stop)


def _listener(address: Address) -> socket.socket:
    """Return a listening socket; OSError, which says where."""
    try:
        if not address.host and socket.has_dualstack_ipv6():
            return socket.create_server(
                ("", address.port), family=socket.AF_INET6, dualstack_ipv6=True
            )
        family, _, _, _, name = socket.getaddrinfo(
            address.host or None, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        return socket.create_server(name[:2], family=family)
    except OSError as error:
        where = f"{address.host}:{address.port}"
        reason = error.strerror or str(error)
        raise OSError(
            f"instrumentation.httpEndpoint {where}: cannot listen there: {reason}"
        ) from error


class _Server(ThreadingHTTPServer):
    """One listening socket, and the connections that came over it."""

    daemon_threads = True
    block_on_close = False

    def __init__(
        self,
        listener: socket.socket,
        answer: Callable[[str, str], tuple[HTTPStatus, bytes, str]],
    ) -> None:
        super().__init__(listener.getsockname(), _Handler, bind_and_activate=False)
        self.socket.close()  # made by the superclass, which cannot be given one
        self.socket = listener
        self.server_address = listener.getsockname()
        self.answer = answer
        self.stopped = False
        self._open: dict[socket.socket, float] = {}  # connections, and when they came
        self._served = 0  # these, and those that are about to end
        self._guard = threading.Lock()
        self._thread = threading.Thread(
            target=self.serve_forever, args=(_POLL,), name="http", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Stop listening, and end all connections."""
        self.stopped = True
        self.shutdown()
        self._thread.join()
        self.server_close()
        self._end(older_than=-1.0)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection on a thread; the oldest one makes way if there are too many."""
        with self._guard:
            self._open[request] = time.monotonic()
            self._served += 1
            oldest = next(iter(self._open)) if len(self._open) > MOST_CONNECTIONS else None
            if oldest is not None:
                del self._open[oldest]
            many = self._served > 2 * MOST_CONNECTIONS
        if oldest is not None:
            _hang_up(oldest)
        if many:  # they end more slowly than new ones come
            self.shutdown_request(request)
        else:
            super().process_request(request, client_address)

    def close_request(self, request: Any) -> None:
        """Forget a connection."""
        with self._guard:
            self._open.pop(request, None)
            self._served -= 1
        super().close_request(request)

    def service_actions(self) -> None:
        """End the connections that take too long."""
        self._end(older_than=LONGEST)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Tell of errors of ours; that clients leave when they want is none."""
        del request, client_address
        error = sys.exception()
        if not isinstance(error, OSError):
            log.error("failed", extra={"method": "http"}, exc_info=error)

    def _end(self, older_than: float) -> None:
        now = time.monotonic()
        with self._guard:
            late = [each for each, came in self._open.items() if now - came > older_than]
        for each in late:
            _hang_up(each)


def _hang_up(connection: socket.socket) -> None:
    """Make the thread that serves *connection* see its end."""
    with suppress(OSError):  # it has ended meanwhile
        connection.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    """One request."""

    server: _Server
    server_version = "nri-policy"
    sys_version = ""

    def setup(self) -> None:
        """Read the request's head, as far as it may go."""
        super().setup()
        head = b""
        while b"\r\n\r\n" not in head and b"\n\n" not in head and len(head) <= LARGEST:
            part = self.request.recv(4096)
            if not part:
                break
            head += part
        self.rfile = io.BytesIO(head)
        self._too_large = len(head) > LARGEST

    def parse_request(self) -> bool:
        """Refuse what is too large, with the status that says so."""
        if not self._too_large:
            return super().parse_request()
        self.requestline = self.request_version = self.command = ""
        self.send_error(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        return False

    def do_GET(self) -> None:
        """Answer."""
        status, body, content_type = self.server.answer(self.path, self.headers.get("Accept", ""))
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - http.server's name
        """Say nothing: probes come every few seconds."""
