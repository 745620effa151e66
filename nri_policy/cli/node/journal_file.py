"""The file of a journal: a daemon's state folder, or a copy of its store, given to commands."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nri_policy.cli.failure import Exit, Failure
from nri_policy.store.errors import DamagedStoreError, StoreError
from nri_policy.store.folder import FILE
from nri_policy.store.journal import Journal, open_journal


@contextmanager
def opened(file: Path) -> Iterator[Journal]:
    """Yield the journal in *file*; what cannot be read of it becomes a Failure."""
    try:
        with open_journal(file) as journal:
            yield journal
    except StoreError as error:
        code = Exit.USAGE if isinstance(error, DamagedStoreError) else Exit.NO
        raise Failure(str(error), code) from error


def store_in(path: Path) -> Path:
    """Return the store's file that *path* means: itself, or the one in that state folder."""
    try:
        for inner in (path / "store" / FILE, path / FILE):
            if inner.is_file():
                return inner
        if path.is_dir():
            raise Failure(f"{path}: there is no store/{FILE} in it; is it a daemon's --state-dir?")
        path.open("rb").close()
    except OSError as error:
        raise Failure(
            f"{path}: {error.strerror}; the daemon's state is for root alone: try sudo, or a copy"
        ) from error
    return path
