"""The extender's HTTP server: starlette and uvicorn, and what a client may cost.

A connection is kept for the next request; an answer goes out in one write, without Nagle's
algorithm in its way. A body has MAX_BODY bytes and BODY_SECONDS. If clients need
certificates, requests of verbs without one are refused; probes and metrics are open. Without TLS it
listens on the loopback interface alone.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import ssl
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn
from msgspec import Struct
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from nri_policy.cluster.numa.extender import BadRequestError, error_result
from nri_policy.foundation.clock import Clock
from nri_policy.settings_sources.settings_file import WatchedFile, watch

log = logging.getLogger(__name__)

MAX_BODY = 8 << 20  # bytes
BODY_SECONDS = 5.0
MAX_CONNECTIONS = 256
KEEP_ALIVE = 300  # seconds that a connection may be idle

Verb = Callable[[bytes], Awaitable[bytes]]


class Listen(Struct, frozen=True, kw_only=True):
    """Where to listen, and with which certificate."""

    host: str = "127.0.0.1"
    port: int = 8443
    certificate: Path | None = None
    key: Path | None = None
    client_ca: Path | None = None  # clients must show a certificate of it

    def check(self) -> None:
        """Raise ValueError for incomplete TLS files."""
        if (self.certificate is None) != (self.key is None):
            raise ValueError("a certificate needs its key, and a key its certificate")
        if self.certificate is None and self.client_ca is not None:
            raise ValueError("clients show certificates over TLS alone: a certificate is missing")
        if self.certificate is None and not _is_loopback(self.host):
            raise ValueError(f"without a certificate only loopback is listened on, not {self.host}")


class Handlers(Struct, frozen=True, kw_only=True):
    """What the server asks, by path."""

    verbs: dict[str, Verb]
    ready: Callable[[], str]  # the reason for not being ready; empty: ready
    metrics: Callable[[], bytes]
    count: Callable[[str, int, float], None]  # verb, status and seconds of a request


class _OneWrite:
    """A transport that joins all writes of one turn of the loop into one."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._waiting: list[bytes] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if not self._waiting:
            self._loop.call_soon(self._flush)
        self._waiting.append(data)

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        if self._waiting:
            self._transport.write(b"".join(self._waiting))
            self._waiting.clear()


class _Protocol(H11Protocol):
    """A connection; the application learns whether it came with a certificate."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a new connection."""
        certified = bool(transport.get_extra_info("peercert"))
        self.app_state = {**self.app_state, "certified": certified}
        super().connection_made(_OneWrite(transport, self.loop))  # type: ignore[arg-type]


class Server(uvicorn.Server):
    """Serves until `should_exit`; signals are the caller's."""

    def __init__(self, config: uvicorn.Config, listen: Listen) -> None:
        super().__init__(config)
        self._listen = listen

    async def follow_certificate(self, clock: Clock) -> None:
        """Use what is on disk for new connections, whenever it is renewed.

        Clients' certificates of the authority that was there before are taken, too.
        """
        files = (self._listen.certificate, self._listen.key, self._listen.client_ca)
        looks = (watch(WatchedFile(path), self._renew, clock) for path in files if path is not None)
        await asyncio.gather(*looks)

    def _renew(self) -> None:
        certificate, authority = self._listen.certificate, self._listen.client_ca
        assert certificate is not None  # it is what is followed
        assert self.config.ssl is not None
        try:
            # On a context of its own first: one that fails has lost the certificate it had.
            for context in (ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), self.config.ssl):
                context.load_cert_chain(certificate, self._listen.key)
                if authority is not None:
                    context.load_verify_locations(authority)
        except OSError as error:  # for example, a new certificate before its key
            log.warning("certificate-refused", extra={"reason": str(error), "kept": "old"})
        else:
            log.info("certificate-renewed", extra={"path": str(certificate)})

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone."""
        yield


def make_application(answers: Handlers, *, certified_only: bool) -> Starlette:
    """Return the application that answers on all paths."""

    def verb(name: str, answer: Verb) -> Route:
        async def handle(request: Request) -> Response:
            began = time.perf_counter()
            if certified_only and not request.state.certified:
                response: Response = PlainTextResponse("a client certificate is required\n", 403)
            elif reason := answers.ready():
                response = PlainTextResponse(f"not ready: {reason}\n", 503)
            else:
                response = await _answer(request, answer)
            answers.count(name, response.status_code, time.perf_counter() - began)
            return response

        return Route(f"/{name}", handle, methods=["POST"])

    async def ready(_: Request) -> Response:
        reason = answers.ready()
        return PlainTextResponse(f"{reason}\n" if reason else "ok\n", 503 if reason else 200)

    async def live(_: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def metrics(_: Request) -> Response:
        return Response(answers.metrics(), media_type="text/plain; version=0.0.4")

    return Starlette(
        routes=[
            *(verb(name, answer) for name, answer in answers.verbs.items()),
            Route("/readyz", ready),
            Route("/livez", live),
            Route("/metrics", metrics),
        ]
    )


def make_server(listen: Listen, answers: Handlers) -> Server:
    """Return the server; raises ValueError, and OSError for files that cannot be read."""
    listen.check()
    config = uvicorn.Config(
        make_application(answers, certified_only=listen.client_ca is not None),
        host=listen.host,
        port=listen.port,
        http=_Protocol,
        ws="none",
        lifespan="off",
        interface="asgi3",
        loop="none",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        limit_concurrency=MAX_CONNECTIONS,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=2,
        ssl_certfile=listen.certificate,
        ssl_keyfile=listen.key,
        ssl_ca_certs=None if listen.client_ca is None else str(listen.client_ca),
        ssl_cert_reqs=ssl.CERT_NONE if listen.client_ca is None else ssl.CERT_OPTIONAL,
    )
    config.load()
    return Server(config, listen)


async def _answer(request: Request, answer: Verb) -> Response:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        return PlainTextResponse("the content type is not application/json\n", 415)
    try:
        async with asyncio.timeout(BODY_SECONDS):
            body = await _body(request)
    except TimeoutError:
        return PlainTextResponse("the body took too long\n", 408, {"Connection": "close"})
    except ClientDisconnect:
        return Response(status_code=400)
    if body is None:
        return PlainTextResponse("the body is too large\n", 413, {"Connection": "close"})
    return await _ask(answer, body)


async def _ask(answer: Verb, body: bytes) -> Response:
    """Return the answer to a body; an error of ours is this request's alone."""
    try:
        return Response(await answer(body), media_type="application/json")
    except BadRequestError as error:
        return Response(error_result(str(error)), 400, media_type="application/json")
    except Exception as error:
        log.exception("request-failed")
        text = f"internal error: {type(error).__name__}"
        return Response(error_result(text), 500, media_type="application/json")


async def _body(request: Request) -> bytes | None:
    """Return the body, None if it exceeds the limit."""
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > MAX_BODY:
            return None
        parts.append(part)
    return b"".join(parts)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
