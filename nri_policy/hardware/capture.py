"""Captures: the sysfs and procfs of another machine, packed as `.tar.xz`, unpacked to be read.

Owns the safety of unpacking: nothing is written outside the temporary folder, only folders, files
and links inside it are made, and neither a bomb nor an endless archive gets far. Files that the
reader has no use for are unpacked too: what it reads is its own affair.
"""

from __future__ import annotations

import lzma
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

from nri_policy.hardware.sysfs import TopologyError

# A capture of 4096 CPUs has 10^5 small files: 200 MiB in tar blocks, below 100 MiB of content.
_MOST_BYTES = 1 << 29
_MOST_MEMBERS = 1 << 20


@contextmanager
def open_capture(path: Path) -> Iterator[Path]:
    """Unpack the capture at *path* for as long as the context lasts; yields its root folder.

    Raises TopologyError if it is not a readable `.tar.xz`, is too large, or holds a name that
    leaves its folder.
    """
    with tempfile.TemporaryDirectory(prefix="nri-policy-capture-") as folder:
        root = Path(folder)
        try:
            with lzma.open(path) as packed:
                # streamed, so that a bomb is met while it is small
                stream = cast("IO[bytes]", _Bounded(packed, path))
                with tarfile.open(fileobj=stream, mode="r|") as archive:
                    _unpack(archive, root, path)
        except (OSError, EOFError, lzma.LZMAError, tarfile.TarError, ValueError) as error:
            raise TopologyError(path, f"is not a readable .tar.xz capture: {error}") from error
        yield _top(root)


class _Bounded:
    """A file that refuses to give more than a capture may hold."""

    def __init__(self, file: lzma.LZMAFile, path: Path) -> None:
        self._file = file
        self._path = path
        self._left = _MOST_BYTES

    def read(self, size: int) -> bytes:
        data = self._file.read(size)
        self._left -= len(data)
        if self._left < 0:
            raise TopologyError(self._path, f"holds more than {_MOST_BYTES >> 20} MiB")
        return data


def _unpack(archive: tarfile.TarFile, root: Path, path: Path) -> None:
    # Archives give no order: a file may come before its folder, or after a link of its folder's
    # name. No link is ever written through, because all are made at the end.
    links: list[tuple[Path, str]] = []
    for count, member in enumerate(archive):
        if count == _MOST_MEMBERS:
            raise TopologyError(path, f"holds more than {_MOST_MEMBERS} files")
        target = root / _inside(member.name, path)
        if member.isdir():
            target.mkdir(parents=True, exist_ok=True)
        elif member.issym():
            links.append((target, member.linkname))
        elif member.isreg():
            content = archive.extractfile(member)
            if content is not None:
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content.read())
        archive.members.clear()  # type: ignore[attr-defined]  # or all headers stay in memory
    for target, linkname in links:
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(linkname)


def _inside(name: str, path: Path) -> str:
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if ".." in parts or name.startswith("/") or "\0" in name:
        raise TopologyError(path, f"holds a name that leaves its folder: {name!r:.100}")
    return "/".join(parts)


def _top(root: Path) -> Path:
    """Return the folder that holds `sys`: the root, or the only folder in it."""
    inner = list(root.iterdir())
    if len(inner) == 1 and not (root / "sys").is_dir() and (inner[0] / "sys").is_dir():
        return inner[0]
    return root
