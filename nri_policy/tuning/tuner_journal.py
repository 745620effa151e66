"""Journal: the original values of all items that were written, in a file.

Rule 1: an entry is on the disk before its item is written for the first time. Rule 2: entries of
another boot are dropped: the kernel has made all items anew (classes.md §0.4).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from pathlib import Path

import msgspec
from msgspec import Struct

from nri_policy.tuning.decision import Entry
from nri_policy.tuning.items import Item, check

FILE = "tunables.json"
log = logging.getLogger(__name__)


class _Document(Struct, frozen=True, kw_only=True):
    boot: str
    entries: tuple[Entry, ...]


def read_entries(folder: Path, boot: str) -> dict[Item, Entry]:
    """Return the entries that the journal in *folder* has for a boot; none without a journal.

    Writes nothing. Raises OSError, and ValueError for a damaged file.
    """
    try:
        data = (folder / FILE).read_bytes()
    except FileNotFoundError:
        return {}
    document = msgspec.json.decode(data, type=_Document)
    for each in document.entries:
        check(each.item, each.original)
    if document.boot == boot:
        return {each.item: each for each in document.entries}
    if document.entries:
        log.info("journal-of-another-boot", extra={"dropped": len(document.entries)})
    return {}


class TunerJournal:
    """The entries by their item; only the holder of the folder's lock may write."""

    def __init__(self, folder: Path, boot: str) -> None:
        """Read the journal in *folder* for the boot with this id; OSError.

        A damaged file is kept aside, because a journal cannot be guessed.
        """
        self.path = folder / FILE
        self._boot = boot
        self.entries: dict[Item, Entry] = {}
        try:
            self.entries = read_entries(folder, boot)
        except ValueError as error:
            aside = self.path.with_suffix(".damaged")
            self.path.replace(aside)
            log.error("journal-damaged", extra={"kept_as": str(aside), "error": str(error)})  # noqa: TRY400 - not a bug

    def record(self, entries: Iterable[Entry]) -> None:
        """Store *entries* over earlier ones of the same items; OSError: nothing changes."""
        self._store(self.entries | {each.item: each for each in entries})

    def drop(self, items: Iterable[Item]) -> None:
        """Drop the entries of *items*; OSError: nothing changes."""
        dropped = {*items}
        self._store({item: each for item, each in self.entries.items() if item not in dropped})

    def _store(self, entries: dict[Item, Entry]) -> None:
        document = _Document(boot=self._boot, entries=tuple(entries.values()))
        new = self.path.with_suffix(".new")
        file = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            data = memoryview(msgspec.json.format(msgspec.json.encode(document), indent=1))
            while data:
                data = data[os.write(file, data) :]
            os.fsync(file)
        finally:
            os.close(file)
        new.replace(self.path)
        folder = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        self.entries = entries
