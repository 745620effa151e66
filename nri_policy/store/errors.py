"""The errors of the store; each text names the file and the remedy."""

from __future__ import annotations

from pathlib import Path

NOT_STORED = "decisions are not stored: "  # the prefix of the text of `Store.trouble`


class StoreError(Exception):
    """The store cannot be read or written now; the daemon goes on without it."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


class UnsafeStoreError(StoreError):
    """Another user could have written the store: it is not opened, the daemon does not start."""


class DamagedStoreError(StoreError):
    """The file is not a store of ours, of this version and machine, or is damaged."""
