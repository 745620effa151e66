"""The object as a JSON file, for readers on the node.

The file is replaced by renaming, so a reader always sees one whole object. One thread does all file
operations: a write that the publisher gave up ends before the next operation begins.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

from nri_policy.foundation.threads import started_pool
from nri_policy.nrt.publisher import PublishError, Trouble, WriteResult
from nri_policy.nrt.reading import Object

_T = TypeVar("_T")


class TopologyFile:
    """A sink for publishers."""

    def __init__(self, path: Path) -> None:
        """Raise OSError if no thread can be started."""
        self.name = str(path)
        self._path = path
        self._thread = started_pool(1)

    async def put(self, new: Object, *, fresh: bool) -> WriteResult:
        """Replace the file; raise PublishError if that fails."""
        del fresh
        try:
            await self._do(partial(self._replace, new))
        except OSError as error:
            raise self._unwritable(error) from error
        return WriteResult(version=new["apiVersion"])

    async def is_gone(self) -> bool:
        """Return whether the file no longer exists."""
        return not await self._do(self._path.exists)

    async def remove(self) -> None:
        """Remove the file if it exists; raise PublishError if that fails."""
        try:
            await self._do(partial(self._path.unlink, missing_ok=True))
        except OSError as error:
            raise self._unwritable(error) from error

    async def _do(self, act: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, act)

    def _replace(self, new: Object) -> None:
        beside = self._path.with_name(f".{self._path.name}.new")
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(beside, flags, 0o644)
        with os.fdopen(descriptor, "w") as file:
            os.fchmod(descriptor, 0o644)  # whatever our umask is
            json.dump(new, file, indent=2)
            file.write("\n")
        beside.rename(self._path)

    def _unwritable(self, error: OSError) -> PublishError:
        return PublishError(Trouble.UNWRITABLE, f"{self._path}: {error.strerror}")
