"""Mounts: which file system a path is on, and where in it, by the mount table of a process."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

_OWN = Path("/proc/self/mountinfo")
_ESCAPED = {ord(char): f"\\{ord(char):03o}" for char in " \t\n\\"}


class Mount(NamedTuple):
    """A mount; texts are as in the table, where some characters are escaped."""

    device: str  # major and minor number of the file system
    root: str  # the path in it that is mounted
    rest: str  # of the line: options, and the file system's type and source


MountTable = Mapping[str, Mount]  # by mount point, as in the text


def read_mounts(text: str) -> MountTable:
    """Parse the *text* of a mount table; of two mounts at one point the later hides the other.

    Lines are as in proc_pid_mountinfo(5): id, parent, device, root, mount point, and more.
    """
    lines = (line.split(" ", 5) for line in text.split("\n"))
    return {line[4]: Mount(line[2], line[3], line[5]) for line in lines if len(line) == 6}


def find_mount(table: MountTable, path: str) -> tuple[str, Mount | None]:
    """Return where the innermost mount around a *path* is, and the mount; None for no mount.

    The path is absolute, without links and dots.
    """
    at = path
    while at != "/" and at.translate(_ESCAPED) not in table:
        at = posixpath.dirname(at)
    return at, table.get(at.translate(_ESCAPED))


def mount_point(path: Path) -> Path:
    """Return the mount point of the file system that *path* is on, for this process."""
    return Path(find_mount(_table(_OWN), str(path.resolve()))[0])


def is_shared(path: Path, host_root: Path) -> bool:
    """Return whether the host has the same folder at *path* as this process.

    Compares with the mount table of the host's first process, below *host_root*. True if that is
    unreadable, and for a *host_root* without a kernel, such as a capture.
    """
    if not (host_root / "proc").is_mount():
        return True
    real = str(path.resolve())
    host, own = (_place(real, _table(each)) for each in (host_root / "proc/1/mountinfo", _OWN))
    return host is None or own is None or host == own


def _table(file: Path) -> MountTable:
    """Return the mount table in a file, nothing where it cannot be read."""
    try:
        return read_mounts(file.read_text(errors="surrogateescape"))
    except OSError:
        return {}


def _place(path: str, table: MountTable) -> tuple[str, str] | None:
    """Return the file system's device number and the place of *path* in it; None for no mount."""
    at, mount = find_mount(table, path)
    if mount is None:
        return None
    within = posixpath.relpath(path, at).translate(_ESCAPED)
    return mount.device, posixpath.normpath(posixpath.join(mount.root, within))
