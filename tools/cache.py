"""Where the tools keep what takes long to build: outside the clone, so that all clones share it.

The variable NRI_POLICY_CACHE names another folder; else it is nri-policy below the user's own
folder for caches (XDG_CACHE_HOME, ~/.cache).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from tools.debs import locked


def folder(name: str, version: str) -> Path:
    """Return the folder of one version of a program, created if missing."""
    named = os.environ.get("NRI_POLICY_CACHE")
    users = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    path = (Path(named) if named else Path(users) / "nri-policy") / name / version
    path.mkdir(parents=True, exist_ok=True)
    return path


def build_once(built: Path, folder: Path, build: Callable[[], None]) -> Path:
    """Return *built*; if it is missing, make it by *build*, under a lock on *folder*."""
    if not built.exists():
        with locked(folder / "lock"):
            if not built.exists():  # by the process that had the lock
                build()
    return built
