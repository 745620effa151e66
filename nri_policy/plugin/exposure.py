"""What containers are told of themselves: `/.nri-resource-policy/resources.sh`; placement.md §9.

Owns a folder per container below one of ours, bind-mounted read-only into it: it is there before
the container is, and its file before the container runs. The file is replaced by renaming, never
written in place: a workload that watches the folder reads whole versions only. Whatever others put
into our folder is neither followed nor waited for.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from nri_policy.proto.nri_pb2 import Mount

DESTINATION = "/.nri-resource-policy"
FILE = "resources.sh"

_NEW = f".{FILE}"  # until it is whole

_MODE, _FILE_MODE = 0o755, 0o644
# Ids become folder names: nothing that leads elsewhere.
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,255}")


class Exposure:
    """The folders of all containers, below *folder*, which is created if missing."""

    def __init__(self, folder: Path, *, on_host: bool = True) -> None:
        """*on_host*: the runtime finds *folder* too."""
        self.on_host = on_host
        self._folder = str(folder)

    def make(self, container_id: str) -> Mount:
        """Make a folder for a container; return the mount that lets the container see it.

        Raises OSError, and ValueError for an odd id.
        """
        name = _name(container_id)
        try:
            ours = _open(self._folder)
        except FileNotFoundError:
            os.makedirs(self._folder)  # noqa: PTH103
            ours = _open(self._folder)
            _open_to_all(ours)
        try:
            os.mkdir(name, dir_fd=ours)
        except FileExistsError:  # of a container that is created again; or not a folder
            os.close(_open(name, ours))
        finally:
            os.close(ours)
        return Mount(
            destination=DESTINATION,
            source=f"{self._folder}/{name}",
            type="bind",
            options=["bind", "ro"],
        )

    def write(self, container_id: str, resources: Mapping[str, str]) -> None:
        """Show a container its *resources* as they are now.

        FileNotFoundError where its folder is gone. Replacing a file can wait for the disk; one that
        is right already is left alone.
        """
        name, text = _name(container_id), _text(resources)
        ours = _open(self._folder)
        try:
            folder = _open(name, ours)
        finally:
            os.close(ours)
        try:
            if not _holds(text, folder):
                _open_to_all(folder)
                _put(text, folder)
        finally:
            os.close(folder)

    def remove(self, container_id: str) -> None:
        """Forget a container that is gone, or of an odd id never was shown anything."""
        with suppress(ValueError, OSError), _closing(_open(self._folder)) as ours:
            shutil.rmtree(_name(container_id), ignore_errors=True, dir_fd=ours)

    def others(self, container_ids: Collection[str]) -> set[str]:
        """Return all containers with a folder but these; remove what is no container's."""
        found: set[str] = set()
        with suppress(OSError), _closing(_open(self._folder)) as ours:
            for name in os.listdir(ours):  # noqa: PTH208 - a descriptor
                if not _ID.fullmatch(name):
                    shutil.rmtree(name, ignore_errors=True, dir_fd=ours)
                elif name not in container_ids:
                    found.add(name)
        return found


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
    """Replace the file in a container's folder."""
    with suppress(FileNotFoundError):  # left by a run that was killed, or made by another program
        os.unlink(_NEW, dir_fd=folder)
    how = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    file = os.open(_NEW, how, _FILE_MODE, dir_fd=folder)
    try:
        os.fchmod(file, _FILE_MODE)
        if os.write(file, text) != len(text):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), FILE)
    finally:
        os.close(file)
    os.replace(_NEW, FILE, src_dir_fd=folder, dst_dir_fd=folder)


def _holds(text: bytes, folder: int) -> bool:
    """Return whether the file in a container's folder has that text."""
    try:
        file = os.open(FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    except OSError:
        return False
    try:
        return stat.S_ISREG(os.fstat(file).st_mode) and os.read(file, len(text) + 1) == text
    finally:
        os.close(file)
