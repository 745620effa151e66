"""Mounts: which file system a path is on, and where in it, by the mount table of a process."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

_OWN = Path("/proc/self/mountinfo")
_ESCAPE = re.compile(r"\\([0-7]{3})")

_Place = tuple[str, str]  # the file system's device number, and the path in it


def mount_point(path: Path) -> Path:
    """Return the mount point of the file system that *path* is on, for this process."""
    found = _find(str(path.resolve()), _OWN)
    return Path(found[0] if found else "/")


def is_shared(path: Path, host_root: Path) -> bool:
    """Return whether the host has the same folder at *path* as this process.

    The host's first process says so, below *host_root*. True where it cannot be read, and for a
    *host_root* without a kernel, as a capture is one.
    """
    if not (host_root / "proc").is_mount():
        return True
    real = str(path.resolve())
    host, own = _find(real, host_root / "proc/1/mountinfo"), _find(real, _OWN)
    return host is None or own is None or host[1] == own[1]


def _find(path: str, table: Path) -> tuple[str, _Place] | None:
    """Return mount point and place of a *path*; None where there is no table.

    Of two mounts at one point the later one hides the other.
    """
    try:
        text = table.read_text(errors="surrogateescape")
    except OSError:
        return None
    found = None
    for line in text.splitlines():
        # id, parent, device, root, mount point (proc_pid_mountinfo(5))
        device, root, point = map(_plain, line.split(" ", 5)[2:5])
        covers = f"{path}/".startswith(f"{point.rstrip('/')}/")
        if covers and (found is None or len(point) >= len(found[0])):
            there = posixpath.join(root, posixpath.relpath(path, point))
            found = point, (device, posixpath.normpath(there))
    return found


def _plain(field: str) -> str:
    return _ESCAPE.sub(lambda code: chr(int(code[1], 8)), field)
