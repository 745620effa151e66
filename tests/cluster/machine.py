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

from nri_policy.daemon.paths import PEER_STATE

ADDRESS = "10.111.0.1"  # of the node: a kubelet takes none of loopback's
_SCRIPT = Path(__file__).with_name("machine.sh")
_MOUNT_POINTS = Path("/var/lib/kubelet"), PEER_STATE
_OURS = 0o1700  # mode of a mount point that we have made: a kubelet gives it another
_NEW_NETWORK = 0x40000000  # CLONE_NEWNET of sched.h


class Machine:
    """The namespaces, as long as it is entered. Needs root."""

    def __init__(self, folder: Path, hardware: Path | None) -> None:
        """Keep its files in *folder*; show the CPUs and memory nodes of *hardware*'s /sys."""
        self.folder = folder
        self.hardware = hardware
        self._parent = os.open("/var/lib", os.O_RDONLY)

    def __enter__(self) -> Self:
        fcntl.flock(self._parent, fcntl.LOCK_SH)  # while we need them nobody removes them
        for each in _MOUNT_POINTS:
            with suppress(FileExistsError):
                each.mkdir()
                each.chmod(_OURS)
        script = [_SCRIPT, self.folder, self.hardware or "", ADDRESS, *_MOUNT_POINTS]
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
        with suppress(BlockingIOError):  # another machine needs them
            fcntl.flock(self._parent, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for each in _MOUNT_POINTS:
                if stat.S_IMODE(each.stat().st_mode) == _OURS:
                    each.rmdir()
        os.close(self._parent)

    @property
    def inside(self) -> tuple[str, ...]:
        """The words before a command that make it run in these namespaces."""
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
