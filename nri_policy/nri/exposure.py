"""What containers are told of themselves: `/.nri-resource-policy/resources.sh`; placement.md §9.

Owns a folder per container below one of ours, bind-mounted read-only into it. A file that somebody
may read is replaced by renaming, never written in place: a workload that watches the folder reads
whole versions only.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path

from nri_policy.proto.nri_pb2 import Mount

DESTINATION = "/.nri-resource-policy"
FILE = "resources.sh"

_MODE, _FILE_MODE = 0o755, 0o644
# Ids become folder names: nothing that leads elsewhere.
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,255}")


class Exposure:
    """The folders of all containers, below *folder*, which is made if it is not there."""

    def __init__(self, folder: Path) -> None:
        self._folder = str(folder)

    def add(self, container_id: str, resources: Mapping[str, str]) -> None:
        """Make a folder for a container; raises OSError, and ValueError for an odd id."""
        folder = self._of(container_id)
        _make(self._folder)
        if _make(folder):  # nobody sees it yet
            _write(f"{folder}/{FILE}", _text(resources), os.O_EXCL)
        else:
            self.replace(container_id, resources)

    def replace(self, container_id: str, resources: Mapping[str, str]) -> None:
        """Show a container its *resources* as they are now.

        FileNotFoundError where its folder is gone. Replacing a file can wait for the disk; one that
        is right already is left alone.
        """
        folder, text = self._of(container_id), _text(resources)
        file, new = f"{folder}/{FILE}", f"{folder}/.{FILE}"
        if not _holds(file, text):
            _write(new, text, os.O_TRUNC)
            os.replace(new, file)  # noqa: PTH105 - see _make

    def mount(self, container_id: str) -> Mount:
        """Return the mount that lets a container see its folder."""
        return Mount(
            destination=DESTINATION,
            source=self._of(container_id),
            type="bind",
            options=["bind", "ro"],
        )

    def remove(self, container_id: str) -> None:
        """Forget a container that is gone, or of an odd id never was shown anything."""
        with suppress(ValueError):
            shutil.rmtree(self._of(container_id), ignore_errors=True)

    def keep_only(self, container_ids: Collection[str]) -> None:
        """Forget all containers but these, as far as the disk lets us."""
        with suppress(OSError):  # not there yet, or a disk that fails
            for entry in list(Path(self._folder).iterdir()):
                if entry.name not in container_ids:
                    shutil.rmtree(entry, ignore_errors=True)

    def _of(self, container_id: str) -> str:
        if not _ID.fullmatch(container_id):
            raise ValueError(f"container id {container_id[:80]!r} is not one")
        return f"{self._folder}/{container_id}"


def _text(resources: Mapping[str, str]) -> bytes:
    return "".join([f'{key}="{value}"\n' for key, value in resources.items()]).encode()


def _write(path: str, text: bytes, how: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | how, _FILE_MODE)
    try:
        os.fchmod(descriptor, _FILE_MODE)
        if os.write(descriptor, text) != len(text):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
    finally:
        os.close(descriptor)


def _holds(path: str, text: bytes) -> bool:
    """Return whether *path* is a file of that text."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        return file.read(len(text) + 1) == text


# A Path takes longer to make than a folder. The modes are set again, whatever our umask is: the
# containers' own users read through them.


def _make(folder: str) -> bool:
    """Make *folder* and return whether it was not there; OSError, also where a link or file is."""
    try:
        mode = os.lstat(folder).st_mode
    except FileNotFoundError:
        os.makedirs(folder)  # noqa: PTH103
        os.chmod(folder, _MODE)  # noqa: PTH101
        return True
    if not stat.S_ISDIR(mode):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), folder)
    if stat.S_IMODE(mode) != _MODE:
        os.chmod(folder, _MODE)  # noqa: PTH101
    return False
