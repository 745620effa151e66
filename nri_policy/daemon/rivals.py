"""Rivals: other daemons of the same runtime, with any folders; spec nri.md §3.5.

Two daemons that answer the same runtime contradict each other, and it refuses every container. So
the registered daemon holds a lock, and any other daemon waits for it. The lock is on the folder of
the runtime's socket, which is the same on the host and in every pod that mounts it, and needs no
writable file. The kernel releases it when its holder ends in any way, and the next one continues.

A thread waits for the lock, so that the kernel's list of locks (/proc/locks) shows the holder which
processes wait. A daemon that the runtime has started itself has no path, and takes no lock.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import threading
from pathlib import Path

from nri_policy.foundation.threads import start
from nri_policy.foundation.wording import problem_of

log = logging.getLogger(__name__)

PERIOD = 30.0  # seconds between two checks for waiting daemons
_LONGEST = 100  # characters of a command line


class Rivals:
    """The lock of one daemon on its runtime, and the other daemons that wait for it or hold it."""

    def __init__(self, root: Path) -> None:
        """Take the folder that holds the host's /proc."""
        self._proc = root / "proc"
        self._folder: int | None = None  # an open descriptor holds the lock
        self.holder = ""  # the process with the lock, while this daemon waits for it
        self._waiting = ""  # the process that was found waiting

    async def keep_out(self, socket: Path) -> None:
        """Return once no other daemon is registered at *socket*.

        At once where that cannot be known, or there is no folder yet.
        """
        try:
            folder = os.open(socket.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            return
        if self._folder is not None and _same(self._folder, folder):
            os.close(folder)
            return
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.holder = self._describe(folder, waiting=False) or "an unknown process"
            text = "it answers this runtime already; this daemon goes on when that one has ended"
            extra = {"path": socket, "holder": self.holder, "text": text}
            log.error("another-daemon", extra=extra)  # noqa: TRY400 - its place says nothing
            await _wait(folder)
            self.holder = ""
            log.info("other-daemon-ended", extra={"path": socket})
        except OSError as error:  # not every file system has locks
            log.info("not-locked", extra={"path": socket.parent, "error": problem_of(error)})
        self.release()
        self._folder = folder

    def release(self) -> None:
        """Let the next daemon have the runtime."""
        if self._folder is not None:
            os.close(self._folder)
            self._folder = None

    def waiting(self) -> str:
        """Return the process that waits for this daemon's runtime; "" if there is none."""
        return "" if self._folder is None else self._describe(self._folder, waiting=True)

    def problems(self) -> list[str]:
        """Return the problems with other daemons, for `status`."""
        if self.holder:
            return [f"{self.holder} answers this runtime already; stop one of the two"]
        if waiting := self.waiting():
            return [f"another daemon waits to answer this runtime: {waiting}; stop one of the two"]
        return []

    async def watch(self) -> None:
        """Log each waiting process once, until cancelled."""
        while True:
            await asyncio.sleep(PERIOD)
            waiting = await asyncio.to_thread(self.waiting)
            if waiting and waiting != self._waiting:
                log.warning("another-daemon-waits", extra={"waiting": waiting})
            self._waiting = waiting

    def _describe(self, folder: int, *, waiting: bool) -> str:
        """Return the process that has the lock on *folder*, or waits for it; "" if invisible.

        A line of /proc/locks (proc(5)): `1: FLOCK ADVISORY WRITE 4711 fe:01:1234 0 EOF`, with an
        arrow after the number if it waits.
        """
        status = os.fstat(folder)
        device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
        try:
            lines = (self._proc / "locks").read_text(encoding="ascii").splitlines()
        except (OSError, ValueError):
            return ""
        for line in lines:
            fields = line.split()[1:]
            arrow = fields[:1] == ["->"]
            kind, *_, pid, where = (fields[arrow:] + [""] * 5)[:5]
            if (kind, where, arrow) == ("FLOCK", device, waiting):
                return self._process(pid)
        return ""

    def _process(self, pid: str) -> str:
        """Return what a process is: its id, command and cgroup."""

        def read(name: str) -> str:
            try:
                return (self._proc / pid / name).read_text(encoding="utf-8", errors="replace")
            except OSError:
                return ""

        command = read("cmdline").replace("\0", " ").strip()[:_LONGEST]
        cgroup = read("cgroup").strip().rpartition(":")[2]
        known = ", ".join(filter(None, (command, cgroup and f"in {cgroup}")))
        return f"process {pid} ({known})" if known else f"process {pid}"


async def _wait(folder: int) -> None:
    """Wait until the lock on *folder* is ours; when cancelled, close it as soon as it is."""
    loop, locked, guard = asyncio.get_running_loop(), asyncio.Event(), threading.Lock()
    wanted, ours = True, False

    def lock() -> None:
        nonlocal ours
        fcntl.flock(folder, fcntl.LOCK_EX)
        with guard:
            ours = True
            if wanted:
                loop.call_soon_threadsafe(locked.set)
            else:
                os.close(folder)

    # a daemon thread: the process can end while it waits
    start(threading.Thread(target=lock, name="another daemon", daemon=True))
    try:
        await locked.wait()
    except BaseException:
        with guard:
            wanted = False
            if ours:
                os.close(folder)
        raise


def _same(one: int, other: int) -> bool:
    first, second = os.fstat(one), os.fstat(other)
    return (first.st_dev, first.st_ino) == (second.st_dev, second.st_ino)
