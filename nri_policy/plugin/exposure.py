"""What containers are told of themselves: `/.nri-resource-policy/resources.sh`; placement.md §9.

Owns a folder per container below one of ours, bind-mounted read-only into it. A file that somebody
may read is replaced by renaming, never written in place: a workload that watches the folder reads
whole versions only. Whatever others put into our folder is neither followed nor waited for.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

from nri_policy.proto.nri_pb2 import Mount

DESTINATION = "/.nri-resource-policy"
FILE = "resources.sh"

_NEW = f".{FILE}"  # until it is whole

_MODE, _FILE_MODE = 0o755, 0o644
PREPARED = 8  # folders for containers to come
MAX_CREATION = 600.0  # seconds within which a container that a runtime has not listed may come
# Ids become folder names: nothing that leads elsewhere.
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,255}")


class Exposure:
    """The folders of all containers, below *folder*, which is made if it is not there."""

    def __init__(self, folder: Path, *, now: Callable[[], float] = time.time) -> None:
        """*now* is in seconds, as the times of files are."""
        self._folder = str(folder)
        self._now = now
        self._prepared: list[str] = []  # names of folders that have an empty file
        self._numbers = count()

    def prepare(self) -> None:
        """Make folders for containers to come, if ours is there; for one thread at a time."""
        with suppress(OSError), _closing(_open(self._folder)) as ours:
            while len(self._prepared) < PREPARED:
                name = f".{next(self._numbers)}"
                if not _made(name, ours):  # by a daemon before this one
                    continue
                with _closing(_open(name, ours)) as folder:
                    _open_to_all(folder)
                    _write(FILE, b"", folder)
                self._prepared.append(name)

    def add(self, container_id: str, resources: Mapping[str, str]) -> None:
        """Make a folder for a container; raises OSError, and ValueError for an odd id."""
        name, text = _name(container_id), _text(resources)
        if not (self._prepared and self._use_prepared(name, text)):
            self._make(name, text)

    def _use_prepared(self, name: str, text: bytes) -> bool:
        """Make a prepared folder that of a container; return whether that worked."""
        prepared = self._prepared.pop()
        try:
            with _closing(_open(self._folder)) as ours:
                file = os.open(f"{prepared}/{FILE}", os.O_WRONLY | os.O_NOFOLLOW, dir_fd=ours)
                with _closing(file):
                    whole = os.write(file, text) == len(text)
                if whole:
                    os.rename(prepared, name, src_dir_fd=ours, dst_dir_fd=ours)
        except OSError:  # it is gone, or the container has a folder
            return False
        return whole

    def _make(self, name: str, text: bytes) -> None:
        try:
            ours = _open(self._folder)
        except FileNotFoundError:
            os.makedirs(self._folder)  # noqa: PTH103
            ours = _open(self._folder)
        with _closing(ours):
            _open_to_all(ours)
            new = _made(name, ours)
            with _closing(_open(name, ours)) as folder:
                _open_to_all(folder)
                if new:  # nobody sees it yet
                    _write(FILE, text, folder)
                else:
                    _put(text, folder)

    def replace(self, container_id: str, resources: Mapping[str, str]) -> None:
        """Show a container its *resources* as they are now.

        FileNotFoundError where its folder is gone. Replacing a file can wait for the disk; one that
        is right already is left alone.
        """
        name, text = _name(container_id), _text(resources)
        with _closing(_open(self._folder)) as ours, _closing(_open(name, ours)) as folder:
            _put(text, folder)

    def mount(self, container_id: str) -> Mount:
        """Return the mount that lets a container see its folder."""
        return Mount(
            destination=DESTINATION,
            source=f"{self._folder}/{_name(container_id)}",
            type="bind",
            options=["bind", "ro"],
        )

    def remove(self, container_id: str) -> None:
        """Forget a container that is gone, or of an odd id never was shown anything."""
        with suppress(ValueError, OSError), _closing(_open(self._folder)) as ours:
            shutil.rmtree(_name(container_id), ignore_errors=True, dir_fd=ours)

    def keep_only(self, container_ids: Collection[str]) -> None:
        """Forget all containers but these, and what is prepared, as far as the disk lets us.

        Who has been told something lately may be under creation, and in no runtime's list: it could
        not start without the folder that it was to mount.
        """
        self._prepared.clear()
        with suppress(OSError), _closing(_open(self._folder)) as ours:
            for name in os.listdir(ours):  # noqa: PTH208 - a descriptor
                if name not in container_ids and not self._may_come(name, ours):
                    shutil.rmtree(name, ignore_errors=True, dir_fd=ours)

    def _may_come(self, name: str, ours: int) -> bool:
        if not _ID.fullmatch(name):
            return False
        try:
            written = os.stat(f"{name}/{FILE}", dir_fd=ours, follow_symlinks=False).st_mtime
        except OSError:
            return False
        return self._now() - written < MAX_CREATION


def _name(container_id: str) -> str:
    """Return what the folder of a container is called; ValueError for an odd id."""
    if not _ID.fullmatch(container_id):
        raise ValueError(f"container id {container_id[:80]!r} is not one")
    return container_id


def _text(resources: Mapping[str, str]) -> bytes:
    return "".join([f'{key}="{value}"\n' for key, value in resources.items()]).encode()


def _open(folder: str, within: int | None = None) -> int:
    """Return a descriptor of *folder*; OSError, also where a link or file is in its place."""
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=within)


def _made(name: str, within: int) -> bool:
    """Make a folder, and return whether nothing was in its place."""
    try:
        os.mkdir(name, dir_fd=within)
    except FileExistsError:
        return False
    return True


@contextmanager
def _closing(descriptor: int) -> Iterator[int]:
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _open_to_all(folder: int) -> None:
    """Let the containers' own users read through a folder, whatever our umask is."""
    if stat.S_IMODE(os.fstat(folder).st_mode) != _MODE:
        os.fchmod(folder, _MODE)


def _put(text: bytes, folder: int) -> None:
    """Replace the file in a container's folder, unless it is right already."""
    if _holds(text, folder):
        return
    with suppress(FileNotFoundError):  # of a run that was killed, or anybody's
        os.unlink(_NEW, dir_fd=folder)
    _write(_NEW, text, folder)
    os.replace(_NEW, FILE, src_dir_fd=folder, dst_dir_fd=folder)


def _write(name: str, text: bytes, folder: int) -> None:
    how = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    with _closing(os.open(name, how, _FILE_MODE, dir_fd=folder)) as file:
        os.fchmod(file, _FILE_MODE)
        if os.write(file, text) != len(text):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), FILE)


def _holds(text: bytes, folder: int) -> bool:
    """Return whether the file in a container's folder has that text."""
    try:
        file = os.open(FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    except OSError:
        return False
    with _closing(file):
        return stat.S_ISREG(os.fstat(file).st_mode) and os.read(file, len(text) + 1) == text
