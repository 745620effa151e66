"""A folder for sockets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """Yield a folder with a short name: the paths of sockets have 107 bytes at most."""
    with TemporaryDirectory() as folder:
        yield Path(folder)
