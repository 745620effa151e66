from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.unit.doctor.hosts import Made


@pytest.fixture
def made() -> Iterator[Made]:
    with TemporaryDirectory(prefix="host-") as folder:  # a socket's path has to be short
        yield Made(Path(folder))
