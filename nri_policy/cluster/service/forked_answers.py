"""Long answers from a fork of this process, which goes on meanwhile: one at a time.

An explanation may try changes for seconds. kube-scheduler does not wait for that: a forked process
has everything as it was at one moment, answers, and ends. No lock and no copy of the engine is
needed, and whatever the answer tries is never seen here.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, NoReturn

from nri_policy.cluster.numa.extender import BadRequestError

MOST_SECONDS = 30.0  # clients have given up by then
_DONE, _REFUSED, _FAILED = b"d", b"r", b"f"  # what an answer begins with


class ForkedAnswers:
    """Answers of forked processes."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    async def ask(self, answer: Callable[[], bytes]) -> bytes:
        """Return the *answer* from the state at the start of its turn.

        Raises BadRequestError as that does, and where it takes too long.
        """
        async with self._turn:
            reading, writing = os.pipe()
            with os.fdopen(reading, "rb") as pipe:
                try:
                    child = os.fork()
                    if child == 0:
                        _answer(answer, writing)
                finally:
                    os.close(writing)
                try:
                    async with asyncio.timeout(MOST_SECONDS):
                        found = await _read(pipe)
                except TimeoutError:
                    raise BadRequestError(f"no answer within {MOST_SECONDS:g} s") from None
                finally:
                    os.kill(child, signal.SIGKILL)  # after an answer the process is ending anyway
                    os.waitpid(child, 0)  # noqa: ASYNC222 - it ends now
        kind, content = found[:1], found[1:]
        if kind == _REFUSED:
            raise BadRequestError(content.decode())
        if kind != _DONE:
            raise RuntimeError(content.decode() or "the forked process ended without an answer")
        return content


async def _read(pipe: IO[bytes]) -> bytes:
    """Return all that comes through a pipe."""
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), pipe
    )
    try:
        return await reader.read()
    finally:
        transport.close()


def _answer(answer: Callable[[], bytes], writing: int) -> NoReturn:
    """Write the answer, or why there is none, in the forked process, and end it.

    It inherits no socket, so the port is free as soon as the service ends.
    """
    try:
        gc.disable()  # a collection would touch, and so copy, all memory of the service
        with suppress(OSError):  # if the node has too little memory, this process goes first
            Path("/proc/self/oom_score_adj").write_text("1000")
        try:
            _close_sockets()
            found = _DONE + answer()
        except BadRequestError as error:
            found = _REFUSED + str(error).encode()
        except Exception:  # noqa: BLE001 - the caller logs it with this text
            found = _FAILED + traceback.format_exc().encode(errors="replace")
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(found)
    finally:
        os._exit(0)


def _close_sockets() -> None:
    """Close all sockets.

    Only them: a library's thread that goes on after a fork (gRPC's) ends the process where the file
    that it waits at is closed. A container may have a limit of a billion files: too many numbers to
    try one by one.
    """
    for each in list(Path("/proc/self/fd").iterdir()):
        with suppress(OSError):  # the listing itself used one
            if str(each.readlink()).startswith("socket:"):
                os.close(int(each.name))
