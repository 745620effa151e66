"""Daemons to be hurt: `python -m tests.faults.victim LEVERS [plain]`.

Each line on stdin is the command line of a `nri-policy`, which is forked off with everything
imported, so that a life begins in a moment; its pid is answered on stdout. What is changed in it:
the clock and the traps are the levers', a reconnection does not wait for seconds, and the store is
so small that it trims its journal and starts its log anew all the time. A plain one has only the
clock changed.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.faults.levers import Levers, Point

levers = Levers(Path(sys.argv[1]))
_time = time.time
time.time = lambda: _time() + levers.clock  # before anyone has taken the name

from nri_policy import cli  # noqa: E402
from nri_policy.cli.node import run  # noqa: E402, F401 - with all that it needs, before any fork
from nri_policy.engine.engine import Engine  # noqa: E402
from nri_policy.nri import session  # noqa: E402
from nri_policy.nri.channel import Channel  # noqa: E402
from nri_policy.store import compaction, store, writer  # noqa: E402


def _around(owner: Any, name: str, before: Point | None, after: Point | None = None) -> None:
    """Make a call of `owner.name` pass the points before and after it."""
    called: Callable[..., Any] = getattr(owner, name)

    @functools.wraps(called)
    def call(*args: Any, **named: Any) -> Any:
        if before is not None:
            levers.passing(before)
        result = called(*args, **named)
        if after is not None:
            levers.passing(after)
        return result

    setattr(owner, name, call)


def _torn(answer: Callable[..., None]) -> Callable[..., None]:
    """Make an answer pass a point when half of it is sent."""

    @functools.wraps(answer)
    def call(self: Channel, *args: Any, **named: Any) -> None:
        write = self._transport.write

        def halves(data: bytes) -> None:
            write(data[: len(data) // 2])
            levers.passing(Point.ANSWERING)
            write(data[len(data) // 2 :])
            levers.passing(Point.ANSWERED)

        self._transport.write = halves  # type: ignore[method-assign, assignment]
        try:
            answer(self, *args, **named)
        finally:
            del self._transport.write

    return call


def prepare() -> None:
    session.MIN_DELAY, session.MAX_DELAY = 0.02, 0.1
    store.COMPACT_EVERY = 250_000
    compaction.MAX_RECORDS = 100
    writer.BASE_EVERY = 20
    _around(Engine, "handle", Point.ASKED, Point.DECIDED)
    for name in ("_write_record", "_write_base"):
        _around(writer.StoreWriter, name, Point.WRITING)
    _around(store.Store, "commit", None, Point.COMMITTED)
    _around(compaction, "_checkpoint", Point.COMPACTING)
    _around(compaction, "write_snapshot", Point.FOLDING)
    _around(Path, "rename", Point.RENAMING)
    Channel._answer = _torn(Channel._answer)  # type: ignore[method-assign]


def main() -> None:
    if sys.argv[2:] != ["plain"]:
        prepare()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is for the campaign, which ends us
    born = []
    for line in sys.stdin:
        with suppress(ChildProcessError):  # the dead are buried once the campaign knows of them
            while os.waitpid(-1, os.WNOHANG) != (0, 0):
                pass
        log, *command = json.loads(line)
        child = os.fork()
        if child == 0:
            _live(log, command)
        born.append(child)
        sys.stdout.write(f"{child}\n")
        sys.stdout.flush()
    for child in born[-2:]:  # whoever may still be there when the campaign is gone
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)


def _live(log: str, command: list[str]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    for number, path, flags in (
        (0, os.devnull, os.O_RDONLY),
        (1, os.devnull, os.O_WRONLY),
        (2, log, os.O_WRONLY | os.O_CREAT | os.O_APPEND),
    ):
        descriptor = os.open(path, flags, 0o600)
        os.dup2(descriptor, number)
        os.close(descriptor)
    status = 1
    try:
        cli.main(command)
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
    finally:
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    main()
