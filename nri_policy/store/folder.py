"""The store's folder: its permissions, and setting aside a damaged store.

All files of a database are in one separate folder, so renaming the folder moves them together:
SQLite would apply a write-ahead log to any database beside it.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from nri_policy.store.errors import DamagedStoreError, UnsafeStoreError

FILE = "state.db"
MAX_ASIDE = 3  # number of folders set aside
_SUFFIXES = ("", "-wal", "-shm")


def secure(folder: Path) -> None:
    """Create *folder* if it does not exist, and remove the permissions of others.

    Raises UnsafeStoreError if another user could have written the folder, its parent or its files,
    or if one of them is a symbolic link; DamagedStoreError if one of them has the wrong file type;
    OSError.
    """
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    _check(folder.parent, stat.S_ISDIR, "folder")
    folder.mkdir(mode=0o700, exist_ok=True)
    _check(folder, stat.S_ISDIR, "folder")
    _close(folder, 0o700)
    for suffix in _SUFFIXES:
        file = folder / (FILE + suffix)
        if os.path.lexists(file):
            _check(file, stat.S_ISREG, "file")
            _close(file, 0o600)
    if not (folder / FILE).exists():
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        # SQLite gives its other files the same permissions
        os.close(os.open(folder / FILE, flags, 0o600))


def set_aside(folder: Path) -> Path:
    """Rename *folder*, drop the oldest ones set aside before; return the new name."""
    form = re.compile(re.escape(folder.name) + r"\.aside-([0-9]+)")
    before = sorted(
        (int(match[1]), entry)
        for entry in folder.parent.iterdir()
        if (match := form.fullmatch(entry.name))
    )
    for _, entry in before[: max(0, len(before) + 1 - MAX_ASIDE)]:
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry, ignore_errors=True)
        else:  # it was not a folder
            with suppress(OSError):
                entry.unlink()
    aside = folder.with_name(f"{folder.name}.aside-{before[-1][0] + 1 if before else 1}")
    folder.rename(aside)
    return aside


def _check(path: Path, is_right: Callable[[int], bool], kind: str) -> None:
    status = path.lstat()
    mode = stat.S_IMODE(status.st_mode)
    if stat.S_ISLNK(status.st_mode):
        wrong = "this is a symbolic link"
    elif status.st_uid != os.geteuid():
        wrong = f"it belongs to user {status.st_uid}, the daemon runs as {os.geteuid()}"
    elif mode & (stat.S_IWGRP | stat.S_IWOTH):
        wrong = f"its group or others may write to it (mode {mode:04o})"
    elif not is_right(status.st_mode):
        raise DamagedStoreError(path, f"this is not a {kind}")
    else:
        return
    raise UnsafeStoreError(
        path, f"{wrong}; make it a {kind} that only the daemon's user can write, or remove it"
    )


def _close(path: Path, mode: int) -> None:
    if stat.S_IMODE(path.lstat().st_mode) != mode:
        path.chmod(mode)
