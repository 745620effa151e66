"""A file of settings that may be replaced at any time.

Owns how a change is noticed: by the file's own data, through whatever links lead to it, after the
kernel has told of a change in their folders. Kubernetes replaces a mounted ConfigMap by turning a
link to a folder, an editor a file by renaming another; no watch of the file itself would tell.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NoReturn

from nri_policy.foundation.clock import Clock
from nri_policy.foundation.inotify import ENTRIES, Inotify, is_local
from nri_policy.foundation.yamltext import MAX_SIZE
from nri_policy.settings import Problem, Settings, SettingsError, load

PERIOD = 5.0  # seconds between two looks where the kernel does not tell of changes
RARELY = 60.0  # and where it does: a folder further up may have been replaced
SETTLE = 1.0  # seconds from a change to the look: it may still be written

_Version = tuple[str, int, int, int, int] | None  # None: there is no file


class WatchedFile:
    """A file that may be replaced; *sample* says where one of settings is."""

    def __init__(self, path: Path, sample: str = "") -> None:
        self.path = path
        self._sample = sample
        self._known = self._seen = self._version()
        self.rests = True  # whether the last two looks saw the same

    def read(self) -> bytes:
        """Return what is in the file now, so much of it that it is seen to be too much.

        SettingsError where there is none, or it cannot be read.
        """
        self._known = self._version()
        try:
            with self.path.open("rb") as file:
                return file.read(MAX_SIZE + 1)
        except OSError as error:
            problem = f"cannot be read: {error.strerror}; {self._sample}"
            raise SettingsError(str(self.path), (Problem("", problem),)) from error

    def changed(self) -> bool:
        """Return whether there is another file than what was loaded or told of last.

        One that is still being written is left for the next look.
        """
        version = self._version()
        self.rests, self._seen = version == self._seen, version
        if not self.rests or version == self._known:
            return False
        self._known = version
        return True

    def folders(self) -> set[str]:
        """Return the folders with the file and with the links to it, as they are now; OSError."""
        found, paths = set(), [self.path]
        try:
            for path in paths:
                for each in (path, *path.parents):
                    if each.is_symlink() and (target := each.parent / each.readlink()) not in paths:
                        found.add(str(each.parent.resolve()))
                        paths.append(target)
            return {*found, str(self.path.resolve().parent)}
        except RuntimeError as error:  # links that go round
            raise OSError(str(error)) from error

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
        super().__init__(path, "`nri-policy config sample` prints a sample")

    def load(self) -> Settings:
        """Return the settings that are in the file now; SettingsError, also where there is none."""
        return load(self.read(), str(self.path))


async def watch(file: WatchedFile, changed: Callable[[], None], clock: Clock) -> NoReturn:
    """Call *changed* whenever *file* has changed."""
    news = asyncio.Event()
    with ExitStack() as stack:
        inotify = None
        with suppress(OSError):  # there can be no more of them
            inotify = stack.enter_context(Inotify(news.set, ENTRIES))
        while True:
            watched = await asyncio.to_thread(_watch_folders, inotify, file)  # nothing is missed
            if await asyncio.to_thread(file.changed):
                changed()
            if not file.rests:
                await clock.sleep(SETTLE if watched else PERIOD)
            elif await clock.set_within(clock.until_tick(RARELY if watched else PERIOD), news):
                await clock.sleep(SETTLE)
            news.clear()


def _watch_folders(inotify: Inotify | None, file: WatchedFile) -> bool:
    """Return whether the kernel will tell of the next change of what leads to a file."""
    if inotify is None:
        return False
    try:
        folders = file.folders()
        inotify.watch(folders)
        return all(map(is_local, folders))
    except OSError:
        return False
