"""A host's files, seen below a root folder: what is read, and never followed out of it.

Links are those of the host: absolute ones start again at the root. Only ordinary files are read,
and no more of them than a configuration may sensibly have. What cannot be read is absent: a check
says so, rather than fail.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

from msgspec import Struct

_MOST = 1 << 20  # bytes of a file
_LINKS = 40  # as many as the kernel follows


class Host(Struct, frozen=True):
    """The host whose root folder is *root*."""

    root: Path

    def path(self, name: str) -> Path:
        """Return where the host's *name* is for us, with the host's links followed."""
        left, links = [*reversed(PurePosixPath(name).parts)], 0
        reached: list[str] = []
        while left:
            part = left.pop()
            if part == "/":
                reached = []
            elif part == "..":
                reached = reached[:-1]
            else:
                reached.append(part)
                target = self._link(reached)
                if target is not None and links < _LINKS:
                    links += 1
                    reached.pop()
                    left += reversed(target.parts)
        return self.root.joinpath(*reached)

    def _link(self, parts: list[str]) -> PurePosixPath | None:
        try:
            return PurePosixPath(self.root.joinpath(*parts).readlink())
        except OSError:
            return None

    def writable(self, name: str) -> bool:
        """Return whether *name* is on a file system mounted for writing, or is not there."""
        try:
            return not os.statvfs(self.path(name)).f_flag & os.ST_RDONLY
        except OSError:
            return True

    def allows_writing(self, name: str) -> bool:
        """Return whether this process may write a file: not where a part is mounted read-only."""
        return os.access(self.path(name), os.W_OK)

    def read(self, name: str) -> str | None:
        """Return the text of a file, None where there is none or it cannot be read."""
        try:
            # reading a pipe without a writer would block
            file = os.open(self.path(name), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            if not stat.S_ISREG(os.fstat(file).st_mode):
                return None
            with open(file, "rb", closefd=False) as opened:
                return opened.read(_MOST).decode("utf-8", "replace")
        except OSError:
            return None
        finally:
            os.close(file)

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder, sorted; none where it cannot be read."""
        try:
            return sorted(each.name for each in self.path(folder).iterdir())
        except OSError:
            return []

    def matching(self, pattern: str) -> Iterator[str]:
        """Yield the files that a pattern with `*` in its last part means, sorted."""
        folder, _, last = pattern.rpartition("/")
        for name in self.names(folder or "/"):
            if fnmatchcase(name, last):
                yield f"{folder}/{name}"

    def has(self, name: str) -> bool:
        """Return whether there is such a file or folder."""
        return self.path(name).exists()
