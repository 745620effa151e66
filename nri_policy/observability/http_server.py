"""The server behind the endpoint.

It has its own threads, so that it can answer while the loop hangs; they wake up only for
connections, or to stop. Owns the limits of what a client may use. A request has a few seconds and a
few kilobytes, and a connection serves one request. With too many connections, the oldest one is
closed, so that clients that only hold connections do not keep the kubelet out. Only a limited
number of connections is accepted per second; the kernel queues the others at no cost for the
daemon's loop. Nothing that a client sends reaches a log.
"""

from __future__ import annotations

import io
import logging
import math
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from nri_policy.foundation.threads import start
from nri_policy.foundation.wording import problem_of
from nri_policy.settings import Address

log = logging.getLogger(__name__)

MAX_CONNECTIONS = 16
MAX_PER_SECOND = 50.0  # connections accepted, after a burst of `MAX_CONNECTIONS`
MAX_SECONDS = 5.0  # seconds for a connection, from its first byte to our last
MAX_BYTES = 8 << 10  # bytes of a request
_POLL = 3600.0  # seconds between idle wake-ups; connections and `stop` wake it up at once


class ConnectionRate:
    """Limits accepted connections to `MAX_PER_SECOND`, after a burst."""

    def __init__(self) -> None:
        self._next = -math.inf  # when the next one is due at an even rate

    def delay(self, now: float) -> float:
        """Count a connection at *now*; return the seconds to wait before accepting it."""
        burst = (MAX_CONNECTIONS - 1) / MAX_PER_SECOND
        self._next = max(self._next, now)
        delay = max(0.0, self._next - burst - now)
        self._next += 1 / MAX_PER_SECOND
        return delay


def listen(wanted_by: str, address: Address) -> socket.socket:
    """Return a listening socket; raises OSError, which names the setting *wanted_by*."""
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
        raise OSError(f"{wanted_by} {where}: cannot listen there: {problem_of(error)}") from error


class HTTPServer(ThreadingHTTPServer):
    """A listening socket and its connections."""

    daemon_threads = True
    block_on_close = False

    def __init__(
        self,
        listener: socket.socket,
        answer: Callable[[str, str], tuple[HTTPStatus, bytes, str]],
    ) -> None:
        """Serve at *listener*; if no thread can be started, close it and raise OSError."""
        super().__init__(listener.getsockname(), _Handler, bind_and_activate=False)
        self.socket.close()  # the superclass has made one, and accepts none
        self.socket = listener
        self.server_address = listener.getsockname()
        self.answer = answer
        self.stopped = False
        self._pace = ConnectionRate()
        self._stopping = threading.Event()
        self._open: dict[socket.socket, None] = {}  # connections, the oldest first
        self._served = 0  # number of open and ending connections
        self._guard = threading.Lock()
        self._thread = threading.Thread(
            target=self.serve_forever, args=(_POLL,), name="http", daemon=True
        )
        try:
            start(self._thread)
        except OSError:
            self.server_close()
            raise

    def stop(self) -> None:
        """Stop listening, and close all connections."""
        self.stopped = True
        self._stopping.set()
        _hang_up(self.socket)  # wakes up its thread
        self.shutdown()
        self._thread.join()
        self.server_close()
        with self._guard:
            left = [*self._open]
        for each in left:
            _hang_up(each)

    def get_request(self) -> tuple[socket.socket, Any]:
        """Accept a connection when the rate allows it."""
        self._stopping.wait(self._pace.delay(time.monotonic()))
        return super().get_request()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection on a thread; close the oldest one if there are too many."""
        with self._guard:
            self._open[request] = None
            self._served += 1
            oldest = next(iter(self._open)) if len(self._open) > MAX_CONNECTIONS else None
            if oldest is not None:
                del self._open[oldest]
            many = self._served > 2 * MAX_CONNECTIONS
        if oldest is not None:
            _hang_up(oldest)
        if many:  # connections end more slowly than new ones arrive
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # without a free thread this one serves it, and other connections wait
            self.process_request_thread(request, client_address)

    def close_request(self, request: Any) -> None:
        """Forget a connection."""
        with self._guard:
            self._open.pop(request, None)
            self._served -= 1
        super().close_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log our errors; a client that disconnects is no error."""
        del request, client_address
        error = sys.exception()
        if not isinstance(error, OSError):
            log.error("failed", extra={"method": "http"}, exc_info=error)


def _hang_up(connection: socket.socket) -> None:
    """Wake up the thread that serves *connection*, or listens there, with an end of file."""
    with suppress(OSError):  # it has ended meanwhile
        connection.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    """One request."""

    server: HTTPServer
    server_version = "nri-policy"
    sys_version = ""

    def setup(self) -> None:
        """Read the request's head, up to its limits."""
        super().setup()
        self._ends = time.monotonic() + MAX_SECONDS
        head = b""
        while b"\r\n\r\n" not in head and b"\n\n" not in head and len(head) <= MAX_BYTES:
            self._limit()
            part = self.request.recv(4096)
            if not part:
                break
            head += part
        self.rfile = io.BytesIO(head)
        self._too_large = len(head) > MAX_BYTES

    def _limit(self) -> None:
        """Set the socket's timeout to the remaining time; raises TimeoutError without any."""
        left = self._ends - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self.request.settimeout(left)

    def parse_request(self) -> bool:
        """Refuse a request that is too large, with its status."""
        if not self._too_large:
            return super().parse_request()
        self.requestline = self.request_version = self.command = ""
        self.send_error(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        return False

    def do_GET(self) -> None:
        """Answer a request."""
        status, body, content_type = self.server.answer(self.path, self.headers.get("Accept", ""))
        self._limit()
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - http.server's name
        """Log nothing: probes come every few seconds."""
