"""The files of cgroups, read and written by their paths below a mount point."""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import Protocol

LONGEST = 1 << 16  # bytes of a list of CPUs: more than the kernel's page of it
FLAGS = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class CgroupTree(Protocol):
    """The files of cgroups, by their paths below the mount point."""

    def read(self, path: str, name: str) -> str | None:
        """Return the text of a cgroup's file, stripped; None if it is not there."""
        ...

    def write(self, path: str, name: str, text: str) -> None:
        """Write a cgroup's file; raises OSError."""
        ...

    def children(self, path: str) -> Collection[str]:
        """Return the names of the cgroups right below one."""
        ...


class FolderTree:
    """The files of the cgroups below one open folder, where there are no links."""

    def __init__(self, top: int) -> None:
        """Take the folder as a file descriptor that stays its opener's."""
        self._top = top

    def read(self, path: str, name: str) -> str | None:
        """Return the text of a cgroup's file, stripped; None if it is not there."""
        try:
            file = os.open(f"{path}/{name}", os.O_RDONLY | FLAGS, dir_fd=self._top)
        except OSError:
            return None
        try:
            return os.read(file, LONGEST).decode("ascii", "replace").strip()
        except OSError:
            return None  # it was removed after it was opened
        finally:
            os.close(file)

    def write(self, path: str, name: str, text: str) -> None:
        """Write a cgroup's file; raises OSError."""
        file = os.open(f"{path}/{name}", os.O_WRONLY | os.O_TRUNC | FLAGS, dir_fd=self._top)
        try:
            os.write(file, f"{text}\n".encode())
        finally:
            os.close(file)

    def children(self, path: str) -> Collection[str]:
        """Return the names of the cgroups right below one."""
        try:
            folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | FLAGS, dir_fd=self._top)
        except OSError:
            return ()
        try:
            with os.scandir(folder) as entries:
                return [each.name for each in entries if each.is_dir(follow_symlinks=False)]
        finally:
            os.close(folder)
