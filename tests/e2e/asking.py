"""The commands that ask a daemon, ready at once: each would take longer to import than to run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.e2e.daemon import PROGRAM, Daemon
from tests.support.forked_program import forked_program


@pytest.fixture(scope="session", autouse=True)
def ready_commands() -> Iterator[None]:
    """Have daemons asked by forks of one process that has imported all commands."""
    with TemporaryDirectory() as folder, forked_program() as program:
        Daemon.command = Path(folder, "nri-policy")
        program.write(Daemon.command, {})
        yield
        Daemon.command = PROGRAM
