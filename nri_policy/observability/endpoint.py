"""The HTTP endpoint with probes and metrics, if the settings want it.

Owns its answers and the changes of its address. `http_server` is imported only if there is an
address. A second listener can serve probes alone, so that scrapes do not delay them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING

from msgspec import Struct

from nri_policy.foundation.program import REPLACED
from nri_policy.observability.exporter import Exporter, ScrapeError
from nri_policy.settings import Address, Instrumentation

if TYPE_CHECKING:
    from nri_policy.observability.http_server import HTTPServer

log = logging.getLogger(__name__)

_TEXT = "text/plain; charset=utf-8"
_HTTP = "instrumentation.httpEndpoint"

# Status, body and content type, for a path and an Accept header.
Answer = Callable[[str, str], tuple[HTTPStatus, bytes, str]]

# Return the reason why a probe fails, "" if it succeeds.
Check = Callable[[], str]


class Probes(Struct, frozen=True, kw_only=True):
    """The checks of the probes; called on the endpoint's threads, they must not wait."""

    alive: Check
    ready: Mapping[str, Check]  # by their names


class Endpoint:
    """Listens at the address in the settings, if any."""

    def __init__(self, probes: Probes, exporter: Exporter) -> None:
        self._probes = probes
        self._exporter = exporter
        self._settings = Instrumentation()
        self._server: HTTPServer | None = None

    @property
    def address(self) -> tuple[str, int] | None:
        """Host and port that it listens at now; None if it does not listen."""
        return None if self._server is None else self._server.server_address[:2]  # type: ignore[return-value]  # of inet sockets

    @asynccontextmanager
    async def following(self, settings: Instrumentation) -> AsyncIterator[None]:
        """Listen as *settings* say; go back if the block fails.

        Raises OSError if that is impossible; then nothing changes.
        """
        before, old, new = self._settings, self._server, self._server
        if settings.http_endpoint != before.http_endpoint:
            if _same_port(settings.http_endpoint, before.http_endpoint):
                await _stop(old)  # it occupies the same port
            try:
                new = await self._start(_HTTP, settings.http_endpoint, self._answer)
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

    @asynccontextmanager
    async def probed(self, address: Address | None) -> AsyncIterator[None]:
        """Answer probes at *address* too, with any settings; raises OSError."""
        server = await self._start("--probe-endpoint", address, self._answer_probe)
        try:
            yield
        finally:
            await _stop(server)

    async def close(self) -> None:
        """Stop listening."""
        await _stop(self._server)
        self._server = None

    async def _return(self, old: HTTPServer | None, before: Instrumentation) -> None:
        """Go back to the old server and settings."""
        self._server = old
        if old is not None and old.stopped:
            try:
                self._server = await self._start(_HTTP, before.http_endpoint, self._answer)
            except OSError as error:
                self._server = None
                log.error("not-listening", extra={"reason": str(error)})  # noqa: TRY400 - its place says nothing

    @staticmethod
    async def _start(wanted_by: str, address: Address | None, answer: Answer) -> HTTPServer | None:
        if address is None:
            return None
        from nri_policy.observability.http_server import HTTPServer, listen  # noqa: PLC0415

        return HTTPServer(await asyncio.to_thread(listen, wanted_by, address), answer)

    def _answer(self, path: str, accepted: str) -> tuple[HTTPStatus, bytes, str]:
        """Return status, body and content type."""
        if path.partition("?")[0] == "/metrics" and self._settings.prometheus_export:
            try:
                return HTTPStatus.OK, *self._exporter.text(accepted)
            except ImportError:  # the first scrape imports modules
                text = f"the daemon cannot answer: {REPLACED}\n"
                return HTTPStatus.SERVICE_UNAVAILABLE, text.encode(), _TEXT
            except ScrapeError as error:
                return HTTPStatus.SERVICE_UNAVAILABLE, f"{error}\n".encode(), _TEXT
        return self._answer_probe(path, accepted)

    def _answer_probe(self, path: str, accepted: str) -> tuple[HTTPStatus, bytes, str]:
        """Return status, body and content type for a probe."""
        del accepted
        match path.partition("?")[0]:
            case "/livez" | "/healthz":
                return _probe({"loop": self._probes.alive})
            case "/readyz":
                return _probe({"loop": self._probes.alive, **self._probes.ready})
            case _:
                return HTTPStatus.NOT_FOUND, b"not found\n", _TEXT


def _probe(checks: Mapping[str, Check]) -> tuple[HTTPStatus, bytes, str]:
    wrong = {name: reason for name, check in checks.items() if (reason := check())}
    if not wrong:
        return HTTPStatus.OK, b"ok\n", _TEXT
    text = "".join(f"{name}: {reason}\n" for name, reason in wrong.items())
    return HTTPStatus.SERVICE_UNAVAILABLE, text.encode(), _TEXT


def _same_port(one: Address | None, other: Address | None) -> bool:
    return one is not None and other is not None and one.port == other.port


async def _stop(server: HTTPServer | None) -> None:
    """Stop a server without blocking the loop."""
    if server is not None and not server.stopped:
        await asyncio.to_thread(server.stop)
