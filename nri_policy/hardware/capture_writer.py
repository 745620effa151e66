"""Writes a capture of a machine, for a bug report or to be simulated elsewhere.

Owns what is in a capture: the files and links that discovery, locality, power and resctrl have
read, and nothing else, so that they read the same from the capture. Serial numbers and unique ids
in these files, which identify one machine, are left out. `capture` is the reading side.
"""

from __future__ import annotations

import io
import posixpath
import re
import stat
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from nri_policy.hardware.discovery import read_machine
from nri_policy.hardware.locality import Locator
from nri_policy.hardware.notes import Notes
from nri_policy.hardware.power import read_power
from nri_policy.hardware.resctrl import read_resctrl
from nri_policy.hardware.sysfs import FileTree

# Lines of cpuinfo (arm, s390) and of NVIDIA's driver that identify one machine.
_PRIVATE = re.compile(rb"(?im)^[^:\n]*\b(serial|uuid|identification)\b[^:\n]*:.*\n?")
_ID = re.compile(rb"(0x)?([0-9a-f]{4})")


def pack(root: Path, out: BinaryIO, step: Callable[[], None]) -> tuple[str, ...]:
    """Write a `.tar.xz` of the machine below *root*; return notes on what could not be had.

    *step* is called for each thing seen. Raises TopologyError where there is no machine, OSError
    where *out* cannot be written.
    """
    witness = _Witness(step)
    notes = Notes()
    with FileTree(root, notes, witness) as tree:
        machine = read_machine(tree)
        Locator(root, machine).survey(tree)
        read_power(tree, machine)
        read_resctrl(tree)
    with FileTree(root, Notes()) as plain, tarfile.open(fileobj=out, mode="w:xz") as archive:
        for path, content in sorted(_entries(plain, witness).items()):
            archive.addfile(*_member(path, content))
    return tuple(note for note in notes.texts() if "cannot be read" in note)


class _Witness:
    """Keeps everything that is seen."""

    def __init__(self, step: Callable[[], None]) -> None:
        self._step = step
        self.links: dict[str, str] = {}  # link-free path of the link -> target
        self.names: dict[str, None] = {}
        self.files: dict[str, bytes] = {}
        self.lost: set[str] = set()

    def link(self, path: str, target: str) -> None:
        self._step()
        self.links[path] = target

    def name(self, path: str) -> None:
        self._step()
        self.names[path] = None

    def file(self, path: str, data: bytes) -> None:
        self._step()
        self.files[path] = data

    def failed(self, path: str) -> None:
        self.lost.add(path)


_Content = bytes | str | None  # of a file, the target of a link, None for a folder


def _entries(tree: FileTree, witness: _Witness) -> dict[str, _Content]:
    """Return the contents of a capture, by path, of all that *witness* has recorded in *tree*."""
    entries: dict[str, _Content] = {
        path: _relative(path, target) for path, target in witness.links.items()
    }
    for path in witness.names.keys() - witness.lost:
        above, _, name = path.rpartition("/")
        folder = tree.resolve(above)
        if folder is not None:
            real = f"{folder}/{name}".lstrip("/")
            entries.setdefault(real, _peek(tree.root, real))
    ids = {
        match[2]
        for path, data in witness.files.items()
        if path.endswith(("/vendor", "/device")) and (match := _ID.match(data))
    }
    for path, data in witness.files.items():
        if (at := tree.resolve(path)) is not None:
            named = path.endswith("pci.ids")
            entries[at] = _only_named(data, ids) if named else _PRIVATE.sub(b"", data)
    return entries


def _peek(root: Path, path: str) -> _Content:
    """Return the content for a path that was only seen to exist."""
    try:
        mode = (root / path).lstat().st_mode
        if stat.S_ISLNK(mode):
            return _relative(path, str((root / path).readlink()))
    except OSError:  # it went since
        return b""
    return None if stat.S_ISDIR(mode) else b""


def _relative(path: str, target: str) -> str:
    """Return the target of the link at *path* without the way from the root in it."""
    if not target.startswith("/"):
        return target
    return posixpath.relpath(target, f"/{posixpath.dirname(path)}")


def _only_named(data: bytes, ids: set[bytes]) -> bytes:
    """Return of the list of PCI ids only the lines of vendors and models that are there."""
    lines, vendor = [], False
    for line in data.split(b"\n"):
        if line.startswith(b"C "):  # device classes follow
            break
        if not line.startswith(b"\t"):
            vendor = line[:4] in ids
            if vendor:
                lines.append(line)
        elif vendor and line[1:5] in ids:
            lines.append(line)
    return b"\n".join([*lines, b""])


def _member(path: str, content: _Content) -> tuple[tarfile.TarInfo, io.BytesIO | None]:
    """Return an entry of an archive, the same from whoever packs it and whenever."""
    info = tarfile.TarInfo(path)
    if content is None:
        info.type, info.mode = tarfile.DIRTYPE, 0o755
        return info, None
    if isinstance(content, str):
        info.type, info.linkname = tarfile.SYMTYPE, content
        return info, None
    info.size = len(content)
    return info, io.BytesIO(content)
