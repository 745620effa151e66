"""A file of settings that may be replaced at any time.

Owns how a change is noticed: by the file's own data, every few seconds, through whatever links lead
to it. Kubernetes replaces a mounted ConfigMap by turning a link to a folder, which no watch of the
file would tell.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NoReturn

from nri_policy.foundation.yamltext import MAX_SIZE
from nri_policy.settings import Problem, Settings, SettingsError, load

PERIOD = 5.0  # seconds between two looks

_Version = tuple[str, int, int, int, int] | None  # None: there is no file


class WatchedFile:
    """A file that may be replaced; *sample* shows what may be in one of settings."""

    def __init__(self, path: Path, sample: str = "") -> None:
        self.path = path
        self._sample = sample
        self._known = self._seen = self._version()

    def read(self) -> bytes:
        """Return what is in the file now, so much of it that it is seen to be too much.

        SettingsError where there is none, or it cannot be read.
        """
        self._known = self._version()
        try:
            with self.path.open("rb") as file:
                return file.read(MAX_SIZE + 1)
        except OSError as error:
            problem = f"cannot be read: {error.strerror}; {self._sample} is a sample"
            raise SettingsError(str(self.path), (Problem("", problem),)) from error

    def changed(self) -> bool:
        """Return whether there is another file than what was loaded or told of last.

        One that is still being written is left for the next look.
        """
        version = self._version()
        rests, self._seen = version == self._seen, version
        if not rests or version == self._known:
            return False
        self._known = version
        return True

    def _version(self) -> _Version:
        try:
            real = self.path.resolve()
            status = real.stat()
        except (OSError, RuntimeError):  # links that go round are the latter
            return None
        return str(real), status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


class SettingsFile(WatchedFile):
    """The settings of a node in one file."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, "configs/settings.yaml")

    def load(self) -> Settings:
        """Return the settings that are in the file now; SettingsError, also where there is none."""
        return load(self.read(), str(self.path))


async def watch(
    file: WatchedFile,
    changed: Callable[[], None],
    *,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> NoReturn:
    """Call *changed* whenever *file* has changed."""
    while True:
        await sleep(PERIOD)
        if await asyncio.to_thread(file.changed):
            changed()
