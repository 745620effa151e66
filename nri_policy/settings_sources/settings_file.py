"""A file of settings that may be replaced at any time.

Owns how a change is noticed. The kernel reports changes in the folders of the file and of all links
to it; then the file's own data decides. Kubernetes replaces a mounted ConfigMap by changing a link
to a folder, and an editor renames another file, so a watch of the file itself would miss both.
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

PERIOD = 5.0  # seconds between two checks if the kernel does not report changes
RARELY = 60.0  # and if it does: a folder further up may have been replaced
SETTLE = 1.0  # seconds from a change to the check: the file may still be written

_Version = tuple[str, int, int, int, int] | None  # None: there is no file


class WatchedFile:
    """A file that may be replaced; *sample* names a sample of such a file for messages."""

    def __init__(self, path: Path, sample: str = "") -> None:
        self.path = path
        self._sample = sample
        self._known = self._seen = self._version()
        self.is_stable = True  # whether the last two checks found the same

    def read(self) -> bytes:
        """Return the content of the file, at most one byte more than is allowed.

        Raises SettingsError if the file is missing or unreadable.
        """
        self._known = self._version()
        try:
            with self.path.open("rb") as file:
                return file.read(MAX_SIZE + 1)
        except OSError as error:
            problem = f"cannot be read: {error.strerror}; {self._sample}"
            raise SettingsError(str(self.path), (Problem("", problem),)) from error

    def changed(self) -> bool:
        """Return whether the file differs from the one that was read or reported last.

        A file that is still being written is left for the next check.
        """
        version = self._version()
        self.is_stable, self._seen = version == self._seen, version
        if not self.is_stable or version == self._known:
            return False
        self._known = version
        return True

    def folders(self) -> set[str]:
        """Return the present folders of the file and of all links to it; raises OSError."""
        found, paths = set(), [self.path]
        try:
            for path in paths:
                for each in (path, *path.parents):
                    if each.is_symlink() and (target := each.parent / each.readlink()) not in paths:
                        found.add(str(each.parent.resolve()))
                        paths.append(target)
            return {*found, str(self.path.resolve().parent)}
        except RuntimeError as error:  # a loop of links
            raise OSError(str(error)) from error

    def _version(self) -> _Version:
        try:
            real = self.path.resolve()
            status = real.stat()
        except (OSError, RuntimeError):  # the latter is a loop of links
            return None
        return str(real), status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


class SettingsFile(WatchedFile):
    """The settings of a node in one file."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, "`nri-policy config sample` prints a sample")

    def load(self) -> Settings:
        """Return the settings in the file now; raises SettingsError, also without a file."""
        return load(self.read(), str(self.path))


async def watch(file: WatchedFile, changed: Callable[[], None], clock: Clock) -> NoReturn:
    """Call *changed* after each change of *file*."""
    news = asyncio.Event()
    with ExitStack() as stack:
        inotify = None
        with suppress(OSError):  # the limit of inotify instances is reached
            inotify = stack.enter_context(Inotify(news.set, ENTRIES))
        while True:
            watched = await asyncio.to_thread(_watch_folders, inotify, file)  # before the check
            if await asyncio.to_thread(file.changed):
                changed()
            if not file.is_stable:
                await clock.sleep(SETTLE if watched else PERIOD)
            elif await clock.set_within(clock.until_tick(RARELY if watched else PERIOD), news):
                await clock.sleep(SETTLE)
            news.clear()


def _watch_folders(inotify: Inotify | None, file: WatchedFile) -> bool:
    """Return whether the kernel will report the next change of a file or of links to it."""
    if inotify is None:
        return False
    try:
        folders = file.folders()
        inotify.watch(folders)
        return all(map(is_local, folders))
    except OSError:
        return False
