"""A machine for a node: namespaces with folders, interfaces and kernel settings of its own.

What runs in it can neither change the host's settings nor be reached from elsewhere. Processes and
cgroups are the host's.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import stat
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

ADDRESS = "10.111.0.1"  # of the node: a kubelet takes none of loopback's
_SCRIPT = Path(__file__).with_name("machine.sh")
_MOUNT_POINT = Path("/var/lib/kubelet")
_OURS = 0o1700  # mode of a mount point that we have made: a kubelet gives it another
_NEW_NETWORK = 0x40000000  # CLONE_NEWNET of sched.h


class Machine:
    """The namespaces, as long as it is entered. Needs root."""

    def __init__(self, folder: Path, hardware: Path | None) -> None:
        """Keep its files in *folder*; show the CPUs and memory nodes of *hardware*'s /sys."""
        self.folder = folder
        self.hardware = hardware
        self._mount_point = os.open(_MOUNT_POINT.parent, os.O_RDONLY)

    def __enter__(self) -> Self:
        fcntl.flock(self._mount_point, fcntl.LOCK_SH)  # while we need it nobody removes it
        with suppress(FileExistsError):
            _MOUNT_POINT.mkdir()
            _MOUNT_POINT.chmod(_OURS)
        script = [_SCRIPT, self.folder, self.hardware or "", ADDRESS]
        self._holder = subprocess.Popen(
            ["unshare", "--mount", "--net", *script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._holder.stdout is not None
        if self._holder.stdout.readline() != "ready\n":
            self.__exit__()
            raise RuntimeError("the namespaces could not be set up; see above")
        return self

    def __exit__(self, *_: object) -> None:
        self._holder.kill()
        self._holder.communicate()
        with suppress(BlockingIOError):  # another machine needs it
            fcntl.flock(self._mount_point, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if stat.S_IMODE(_MOUNT_POINT.stat().st_mode) == _OURS:
                _MOUNT_POINT.rmdir()
        os.close(self._mount_point)

    @property
    def inside(self) -> tuple[str, ...]:
        """What a command has to begin with to run in it."""
        return "nsenter", f"--target={self._holder.pid}", "--mount", "--net"

    @contextmanager
    def network(self) -> Iterator[None]:
        """Have this thread, and those that it starts meanwhile, on its network."""
        with (
            Path("/proc/thread-self/ns/net").open() as before,
            Path(f"/proc/{self._holder.pid}/ns/net").open() as its,
        ):
            _enter(its.fileno())
            try:
                yield
            finally:
                _enter(before.fileno())


def _enter(namespace: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(namespace, _NEW_NETWORK):
        raise OSError(ctypes.get_errno(), "setns")
