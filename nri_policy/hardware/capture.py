"""Captures: the sysfs and procfs of another machine, packed as `.tar.xz`, unpacked to be read.

Owns the safety of unpacking: nothing is written outside the temporary folder, only folders, files
and links inside it are made, and neither a bomb nor an endless archive gets far. All files are
unpacked, even if discovery reads only some of them.
"""

from __future__ import annotations

import lzma
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, cast

from nri_policy.hardware.sysfs import TopologyError

_MOST_BYTES = 1 << 29  # 4096 CPUs are 150,000 small files: 150 MiB of headers, and of content
_MOST_MEMBERS = 1 << 19


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
                # streamed, so that a bomb is found early
                stream = cast("IO[bytes]", _Bounded(packed, path))
                with tarfile.open(fileobj=stream, mode="r|") as archive:
                    _unpack(archive, root, path)
        except (OSError, EOFError, lzma.LZMAError, tarfile.TarError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else None
            problem = "it is not a capture, a .tar.xz file that `nri-policy capture` makes"
            raise TopologyError(path, why or problem) from error
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
            raise TopologyError(self._path, f"holds over {_MOST_BYTES} bytes")
        return data


def _unpack(archive: tarfile.TarFile, root: Path, path: Path) -> None:
    """Make the folders and files of *archive*, then its links: so none is ever written through."""
    links: list[tuple[str, str]] = []
    made: set[str] = set()
    total = 0
    for count, member in enumerate(archive):
        total += member.size  # of a sparse file this is more than what the archive holds
        if count == _MOST_MEMBERS or total > _MOST_BYTES:
            raise TopologyError(path, f"holds over {_MOST_MEMBERS} files or {_MOST_BYTES} bytes")
        name = _inside(member.name, path)
        folder = name if member.isdir() else name.rpartition("/")[0]
        if folder not in made:
            (root / folder).mkdir(parents=True, exist_ok=True)
            made.add(folder)
        if member.issym():
            if _stays_inside(name, member.linkname):
                links.append((name, member.linkname))
        elif member.isreg():
            content = archive.extractfile(member)
            (root / name).write_bytes(content.read() if content is not None else b"")
        archive.members.clear()  # type: ignore[attr-defined]  # else all headers stay in memory
    for name, target in links:
        with suppress(FileExistsError):
            (root / name).symlink_to(target)


def _stays_inside(name: str, target: str) -> bool:
    depth = name.count("/")
    for part in target.split("/"):
        depth += {"..": -1, ".": 0, "": 0}.get(part, 1)
        if depth < 0:
            return False
    return not target.startswith("/")


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
