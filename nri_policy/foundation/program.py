"""Whether the files of the running program are still those that it was started from.

After an update, a later import would be from another version, or fail.
"""

from __future__ import annotations

from pathlib import Path

import nri_policy

REPLACED = "its program was replaced or removed since it started; restart it"


class Program:
    """The files of one Python package, as they are at the construction."""

    def __init__(self, file: Path = Path(nri_policy.__file__)) -> None:
        """Take the package's first file: an installation replaces all of them."""
        self._file = file
        self._found = self._identity()

    @property
    def replaced(self) -> bool:
        """Whether they are others now."""
        return self._identity() != self._found

    def _identity(self) -> tuple[int, int, int] | None:
        try:
            status = self._file.stat()
        except OSError:
            return None
        return status.st_dev, status.st_ino, status.st_mtime_ns
