"""FileTree and Folder: bounded, total reading of files below a root folder.

Owns how files are opened: nothing outside the root is ever opened, whatever its links say; no read
is longer than its bound; nothing here raises for what a file holds or because it is missing. Knows
nothing of what files mean beyond the kernel's three text forms: numbers, lists and masks.

Links are resolved here, as if the root were `/`, and files are opened one plain name at a time
without following links, which costs less than checking paths (a large machine has 10^5 files).
"""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path
from typing import Protocol, Self

from nri_policy.foundation.cpuset import CPUSet
from nri_policy.hardware.notes import Notes, quote

_LIMIT = 1 << 16  # bytes; the longest list of 8192 CPUs, every second one, is 19 KiB
_CHUNK = 1 << 14  # bytes
# A first read of less is the whole file: the kernel fills a page as far as there is anything.
_SHORT = 256
_ENTRIES = 1 << 16  # names of one folder
_REMEMBERED = 1 << 13  # parsed texts; many files hold the same set
_LINKS = 40  # the kernel's own limit, MAXSYMLINKS
_ABSENT = {errno.ENOENT, errno.ENOTDIR, errno.ENODEV, errno.ENXIO}
_OPEN_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_OPEN_FOLDER = _OPEN_FILE | os.O_DIRECTORY
_INTEGER = re.compile(r"-?[0-9]{1,19}|0x[0-9a-fA-F]{1,16}")
_NUMBERED = re.compile(r"0|[1-9][0-9]{0,8}")
_BLANK = "\0 \t\r\n"  # some kernels end a list with "\n\0"


class TopologyError(Exception):
    """No usable machine is described below a folder; `path` is what was looked at."""

    def __init__(self, path: Path | str, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.path = Path(path)
        self.problem = problem


class Witness(Protocol):
    """An observer of a FileTree: records each path that is read."""

    def link(self, path: str, target: str) -> None:
        """Record a followed link; *path* has no other link in it."""

    def name(self, path: str) -> None:
        """Record a path that exists."""

    def file(self, path: str, data: bytes) -> None:
        """Record a file that was read."""

    def failed(self, path: str) -> None:
        """Record a path that is absent, or could not be opened or read."""


class FileTree:
    """A root folder to read from, and the notes on its contents."""

    __slots__ = ("_fd", "_sets", "notes", "root", "witness")

    def __init__(self, root: Path, notes: Notes, witness: Witness | None = None) -> None:
        """Open *root*; TopologyError if it is not a folder that can be opened."""
        self.root = root
        self.notes = notes
        self.witness = witness
        self._sets: dict[tuple[bool, str], CPUSet | None] = {}
        try:
            # the root itself may be a link: it was named by the user, not by the tree
            self._fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except (OSError, ValueError) as error:
            problem = (
                os.strerror(error.errno) if isinstance(error, OSError) and error.errno else error
            )
            raise TopologyError(root, f"cannot be opened as a folder: {problem}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def folder(self, path: str) -> Folder:
        """Open the folder at *path* below the root, for a `with`; an absent one reads as empty."""
        fd = self.open(path, _OPEN_FOLDER)
        if fd is not None and self.witness is not None:
            self.witness.name(path)
        return Folder(self, path, fd)

    def open(self, path: str, flags: int) -> int | None:
        """Open *path* below the root, following links inside it; None if it cannot be had."""
        real = self.resolve(path)
        if real is None:
            self.notes.add(f"{path}: is a link to nothing below the root folder")
            return None
        try:
            return os.open(real or ".", flags, dir_fd=self._fd)
        except OSError as error:
            self.unreadable(path, error)
            return None

    def resolve(self, path: str) -> str | None:
        """Return the link-free path that *path* means; None if its links leave the root or loop."""
        todo = path.split("/")[::-1]
        done: list[str] = []
        links = 0
        while todo:
            part = todo.pop()
            if part in ("", "."):
                continue
            if part == "..":
                if not done:
                    return None
                done.pop()
                continue
            done.append(part)
            try:
                target = os.readlink("/".join(done), dir_fd=self._fd)
            except OSError:  # no link, or absent: the opening that follows tells which
                continue
            links += 1
            if links > _LINKS:
                return None
            if self.witness is not None:
                self.witness.link("/".join(done), target)
            done = [] if target.startswith("/") else done[:-1]
            todo.extend(target.split("/")[::-1])
        return "/".join(done)

    def unreadable(self, path: str, error: OSError) -> None:
        """Note that *path* cannot be read, unless it is only absent."""
        if self.witness is not None:
            self.witness.failed(path)
        if error.errno not in _ABSENT:
            self.notes.add(f"{path}: cannot be read: {os.strerror(error.errno or 0)}")

    def parse(self, text: str, where: str, *, mask: bool = False) -> CPUSet | None:
        """Return the set that *text*, read from *where*, names; a bad one is None and noted."""
        key = (mask, text)
        if key not in self._sets:
            if len(self._sets) == _REMEMBERED:
                self._sets.clear()
            try:
                self._sets[key] = CPUSet.from_mask(text) if mask else CPUSet.parse(text)
            except ValueError as error:
                self._sets[key] = None
                self.notes.add(f"{where}: {error}")
        return self._sets[key]


class Folder:
    """An open folder. Names are single path components; whatever is absent reads as None."""

    __slots__ = ("_fd", "path", "tree")

    def __init__(self, tree: FileTree, path: str, fd: int | None) -> None:
        self.tree = tree
        self.path = path
        self._fd = fd

    def __bool__(self) -> bool:
        return self._fd is not None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._fd is not None:
            os.close(self._fd)

    def folder(self, name: str) -> Folder:
        """Open a folder in this one, for a `with`; an absent one reads as empty."""
        fd = self._open(name, _OPEN_FOLDER)
        if fd is not None and self.tree.witness is not None:
            self.tree.witness.name(f"{self.path}/{name}")
        return Folder(self.tree, f"{self.path}/{name}", fd)

    def _open(self, name: str, flags: int) -> int | None:
        if self._fd is None:
            return None
        try:
            return os.open(name, flags, dir_fd=self._fd)
        except OSError as error:
            # a link is ELOOP for a file and ENOTDIR for a folder
            if error.errno in (errno.ELOOP, errno.ENOTDIR):
                return self.tree.open(f"{self.path}/{name}", flags)
            self.tree.unreadable(f"{self.path}/{name}", error)
            return None

    def names(self) -> list[str]:
        """Return the names in this folder, sorted; none if it cannot be listed."""
        if self._fd is None:
            return []
        found: list[str] = []
        try:
            with os.scandir(self._fd) as entries:
                for entry in entries:
                    if len(found) == _ENTRIES:
                        self.tree.notes.add(f"{self.path}: only {_ENTRIES} names were looked at")
                        break
                    found.append(entry.name)
        except OSError as error:
            self.tree.unreadable(self.path, error)
        if self.tree.witness is not None:
            for name in found:
                self.tree.witness.name(f"{self.path}/{name}")
        return sorted(found)

    def numbered(self, prefix: str) -> list[int]:
        """Return the N of the names *prefix*N in this folder, ascending."""
        tails = (name[len(prefix) :] for name in self.names() if name.startswith(prefix))
        return sorted(int(tail) for tail in tails if _NUMBERED.fullmatch(tail))

    def has(self, name: str) -> bool:
        """Return whether there is a file, folder or link of this name."""
        if self._fd is None:
            return False
        try:
            os.lstat(name, dir_fd=self._fd)
        except OSError:
            return False
        if self.tree.witness is not None:
            self.tree.witness.name(f"{self.path}/{name}")
        return True

    def text(self, name: str, limit: int = _LIMIT) -> str | None:
        """Return the text of a file, at most *limit* bytes, without blanks and NULs around it."""
        fd = self._open(name, _OPEN_FILE)
        if fd is None:
            return None
        try:
            data = os.read(fd, min(limit, _CHUNK))
            if len(data) >= _SHORT:
                data = _read_rest(fd, data, limit)
        except OSError as error:
            self.tree.unreadable(f"{self.path}/{name}", error)
            return None
        finally:
            os.close(fd)
        if self.tree.witness is not None:
            self.tree.witness.file(f"{self.path}/{name}", data)
        return data.decode("utf-8", "replace").strip(_BLANK)

    def integer(self, name: str) -> int | None:
        """Return the number in a file, decimal or 0x hexadecimal."""
        text = self.text(name)
        if text is None:
            return None
        if not _INTEGER.fullmatch(text):
            self.tree.notes.add(f"{self.path}/{name}: {quote(text)} is not a number")
            return None
        return int(text, 0) if text.startswith("0x") else int(text)

    def set(self, name: str, mask: str | None = None) -> CPUSet | None:
        """Return the set in the list file *name*, else that in the mask file *mask*."""
        text = self.text(name)
        if text is not None:
            parsed = self.tree.parse(text, f"{self.path}/{name}")
            if parsed is not None or mask is None:
                return parsed
        if mask is None or (text := self.text(mask)) is None:
            return None
        return self.tree.parse(text, f"{self.path}/{mask}", mask=True)


def _read_rest(fd: int, begun: bytes, limit: int) -> bytes:
    data = bytearray(begun)
    while len(data) < limit and (chunk := os.read(fd, min(limit - len(data), _CHUNK))):
        data += chunk
    return bytes(data)
