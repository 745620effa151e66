"""The daemon's own socket: who may open it, and when the server behind it starts.

Owns that its owner alone may open it, or also the group `nri-policy` where there is one. Knows
nothing of gRPC. That takes 15 MiB of memory, and its threads wake up a few times a second though
nobody calls, as on most nodes most of the time. So it is started for the first caller. It cannot
take over a connection that somebody else has accepted, so it listens at a socket of its own, which
only the owner may open, and all connections are forwarded to that.
"""

from __future__ import annotations

import asyncio
import grp
import logging
import os
import socket
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Protocol

log = logging.getLogger(__name__)

GROUP = "nri-policy"
# Who may open the socket could still do it so often that no file or memory is left for the rest.
MOST_CONNECTIONS = 64
FILES = 3  # that a connection takes: one accepted, one to the server, and one accepted there

_LONGEST = 106  # bytes; unix(7) allows 107, and the server's own socket has a longer name
_CHUNK = 64 << 10  # bytes


class Serve(Protocol):
    """Has a server listen."""

    def __call__(self, path: Path, *, owner_only: bool) -> AbstractAsyncContextManager[None]:
        """Serve at *path* for the time of a `with`; *owner_only*: nobody but the owner calls.

        Raises OSError where there can be no socket.
        """


@asynccontextmanager
async def listening(path: Path, serve: Serve, *, group: str = GROUP) -> AsyncIterator[None]:
    """Listen at *path*; *serve* is entered for the first caller, and left at the end.

    Raises OSError where there can be no socket. Another daemon's old socket is replaced.
    """
    gid = _gid(group)
    listener = _bind(path, gid)
    forwarding = _Forwarding(path.with_name(f".{path.name}"), serve, owner_only=gid is None)
    server = await asyncio.start_unix_server(forwarding.accept, sock=listener)
    try:
        yield
    finally:
        await forwarding.close()
        server.close()
        _remove(path)


class _Forwarding:
    """The connections to a server, which is started for the first of them."""

    def __init__(self, path: Path, serve: Serve, *, owner_only: bool) -> None:
        """Take where the server is to listen."""
        self._path = path
        self._serve = serve
        self._owner_only = owner_only
        self._server = AsyncExitStack()
        self._serves = False
        self._starting = asyncio.Lock()
        self._connections: set[asyncio.Task[None]] = set()

    def accept(self, reader: StreamReader, writer: StreamWriter) -> None:
        """Forward a connection, or close it at once where there are too many."""
        if len(self._connections) == MOST_CONNECTIONS:
            writer.transport.abort()
            return
        task = asyncio.create_task(self._connect(reader, writer), name="control connection")
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def close(self) -> None:
        """Stop the server, and end all connections."""
        async with self._starting:
            await self._server.aclose()
        for task in (connections := {*self._connections}):
            task.cancel()
        if connections:
            await asyncio.wait(connections)

    async def _connect(self, reader: StreamReader, writer: StreamWriter) -> None:
        try:
            await self._start()
            theirs = await asyncio.open_unix_connection(self._path)
        except OSError as error:
            log.warning("caller-turned-away", extra={"reason": str(error)})
        except Exception:
            # what the server needs is imported now: another version may be installed meanwhile
            log.exception("caller-turned-away")
        else:
            await _forward((reader, writer), theirs)
        finally:
            writer.close()

    async def _start(self) -> None:
        async with self._starting:
            if not self._serves:
                serving = self._serve(self._path, owner_only=self._owner_only)
                await self._server.enter_async_context(serving)
                self._serves = True


async def _forward(
    ours: tuple[StreamReader, StreamWriter], theirs: tuple[StreamReader, StreamWriter]
) -> None:
    """Forward both ways until one side closes: HTTP/2 does not use half of a connection."""
    ways = {
        asyncio.create_task(_copy(ours[0], theirs[1])),
        asyncio.create_task(_copy(theirs[0], ours[1])),
    }
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for way in ways:
            way.cancel()
        theirs[1].close()


async def _copy(reader: StreamReader, writer: StreamWriter) -> None:
    with suppress(OSError):  # it has gone: that is an end as well
        while data := await reader.read(_CHUNK):
            writer.write(data)
            await writer.drain()


def _bind(path: Path, gid: int | None) -> socket.socket:
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    if path.exists() and not path.is_socket():
        raise FileExistsError(f"{path} exists, and is not a socket")
    if len(bytes(path)) > _LONGEST:
        raise OSError(f"{path} is longer than the {_LONGEST} bytes of a socket's path")
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    mask = os.umask(0o177)  # nobody else gets in before we have decided
    try:
        listener.bind(str(path))
    except OSError as error:
        listener.close()
        raise OSError(f"{path}: cannot listen there: {error}") from error
    finally:
        os.umask(mask)
    if gid is not None:
        _open_to(gid, path)
    return listener


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)


def _gid(group: str) -> int | None:
    try:
        return grp.getgrnam(group).gr_gid
    except KeyError:
        return None


def _open_to(gid: int, path: Path) -> None:
    """Let a group open the socket, if that is ours to give."""
    try:
        os.chown(path, -1, gid)
    except OSError as error:
        log.warning("socket-not-shared", extra={"path": path, "gid": gid, "error": str(error)})
    else:
        path.chmod(0o660)
