"""Where the tools keep what takes long to build: outside the clone, so that all clones share it.

The variable NRI_POLICY_CACHE names another folder; else it is nri-policy below the user's own
folder for caches (XDG_CACHE_HOME, ~/.cache).
"""

from __future__ import annotations

import os
from pathlib import Path


def folder(name: str, version: str) -> Path:
    """Return the folder of one version of one thing, made if it is not there yet."""
    named = os.environ.get("NRI_POLICY_CACHE")
    users = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    path = (Path(named) if named else Path(users) / "nri-policy") / name / version
    path.mkdir(parents=True, exist_ok=True)
    return path
