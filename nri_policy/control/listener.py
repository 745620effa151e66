"""The daemon's own socket: its permissions, and when the server behind it runs.

Owns that only its owner may open it, and the group `nri-policy` if that exists. Knows nothing of
gRPC, which takes 15 MiB of memory, and whose threads wake up a few times a second even without
calls, as on most nodes most of the time. So the server is started for the first caller, and stopped
some time after the last. It cannot take over an accepted connection, so it listens at a second
socket, which only the owner may open, and all connections are forwarded to that.
"""

from __future__ import annotations

import asyncio
import errno
import grp
import logging
import os
import resource
import socket
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Protocol

from nri_policy.control.refused_calls import refuse_calls
from nri_policy.foundation.clock import Clock
from nri_policy.foundation.on_demand import OnDemand
from nri_policy.foundation.program import REPLACED
from nri_policy.foundation.wording import problem_of

log = logging.getLogger(__name__)

GROUP = "nri-policy"
# A caller could open so many connections that the daemon runs out of files or memory.
MAX_CONNECTIONS = 64
FILES = 3  # files of a connection: one accepted, one to the server, and one accepted there
# What all else of the daemon may open, the server included. A server that has no file left as it
# starts ends the process: gRPC aborts.
OTHER_FILES = 64

_LONGEST = 106  # bytes; unix(7) allows 107, and the server's own socket has a longer name
_CHUNK = 64 << 10  # bytes


class ProgramReplacedError(Exception):
    """The server's modules cannot be imported any more, because another version is installed."""


class Serve(Protocol):
    """Starts a server."""

    def __call__(self, path: Path, *, owner_only: bool) -> AbstractAsyncContextManager[None]:
        """Serve at *path* for the duration of a `with`; *owner_only*: only the owner can call.

        Raises OSError if the socket cannot be made, ProgramReplacedError.
        """


@asynccontextmanager
async def listening(
    path: Path, serve: Serve, clock: Clock, *, group: str = GROUP
) -> AsyncIterator[None]:
    """Listen at *path*; enter *serve* for the first caller, leave it some time after the last.

    Raises OSError if the socket cannot be made. Another daemon's old socket is replaced.
    """
    gid = _gid(group)
    listener = _bind(path, gid)
    theirs = path.with_name(f".{path.name}")
    serving = OnDemand(partial(serve, theirs, owner_only=gid is None), clock)
    most = _most_connections()
    forwarding = _Forwarding(theirs, serving, most)
    # asyncio accepts as many at once as may wait
    server = await asyncio.start_unix_server(forwarding.accept, sock=listener, backlog=most)
    try:
        yield
    finally:
        server.close()
        await forwarding.close()
        _remove(path)


class _Forwarding:
    """The connections to a server, which runs on demand."""

    def __init__(self, path: Path, server: OnDemand[None], most: int) -> None:
        """Take the path at which the server listens while it runs, and how many may connect."""
        self._path = path
        self._server = server
        self._most = most
        self._connections: set[asyncio.Task[None]] = set()

    def accept(self, reader: StreamReader, writer: StreamWriter) -> None:
        """Forward a connection, or close it at once if there are too many."""
        if len(self._connections) == self._most:
            writer.transport.abort()
            return
        task = asyncio.create_task(self._connect(reader, writer), name="control connection")
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def close(self) -> None:
        """End all connections, and stop the server."""
        for task in (connections := {*self._connections}):
            task.cancel()
        if connections:
            await asyncio.wait(connections)
        await self._server.close()

    async def _connect(self, reader: StreamReader, writer: StreamWriter) -> None:
        try:
            async with self._server.use():
                theirs = await asyncio.open_unix_connection(self._path)
                await _forward((reader, writer), theirs)
        except OSError as error:
            log.warning("caller-turned-away", extra={"reason": problem_of(error)})
            await refuse_calls(reader, writer, f"the daemon cannot answer: {problem_of(error)}")
        except ProgramReplacedError:
            log.warning("caller-turned-away", extra={"reason": REPLACED})
            await refuse_calls(reader, writer, f"the daemon cannot answer: {REPLACED}")
        except Exception:
            log.exception("caller-turned-away")
            await refuse_calls(reader, writer, "the daemon cannot answer: its log says why")
        finally:
            writer.close()


async def _forward(
    ours: tuple[StreamReader, StreamWriter], theirs: tuple[StreamReader, StreamWriter]
) -> None:
    """Forward in both directions until one side closes: HTTP/2 uses no half-open connections."""
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
    with suppress(OSError):  # a broken connection is an end too
        while data := await reader.read(_CHUNK):
            writer.write(data)
            await writer.drain()


def _most_connections() -> int:
    """Return how many connections this process has files for, at least one."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(1, min(MAX_CONNECTIONS, (limit - OTHER_FILES) // FILES))


def _bind(path: Path, gid: int | None) -> socket.socket:
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    if path.exists() and not path.is_socket():
        raise FileExistsError(f"{path} exists, and is not a socket")
    if len(bytes(path)) > _LONGEST:
        raise OSError(f"{path} is longer than the {_LONGEST} bytes of a socket's path")
    if _is_listening(path):
        raise OSError(f"{path}: another process listens there; give each a socket of its own")
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    mask = os.umask(0o177)  # only the owner, until the group is set
    try:
        listener.bind(str(path))
    except OSError as error:
        listener.close()
        raise OSError(f"{path}: cannot listen there: {problem_of(error)}") from error
    finally:
        os.umask(mask)
    if gid is not None:
        _open_to(gid, path)
    return listener


def _is_listening(path: Path) -> bool:
    """Return whether a process listens at *path*; if it answers is not waited for."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        return probe.connect_ex(str(path)) in {0, errno.EAGAIN}


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)


def _gid(group: str) -> int | None:
    try:
        return grp.getgrnam(group).gr_gid
    except KeyError:
        return None


def _open_to(gid: int, path: Path) -> None:
    """Let a group open the socket, if this process may set its group."""
    try:
        os.chown(path, -1, gid)
    except OSError as error:
        log.warning(
            "socket-not-shared", extra={"path": path, "gid": gid, "error": problem_of(error)}
        )
    else:
        path.chmod(0o660)
