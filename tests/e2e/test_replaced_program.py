"""A running daemon whose package was removed says so to its clients."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import nri_policy
from nri_policy.foundation.program import REPLACED
from tests.e2e.daemon import PROGRAM, Daemon


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of the package."""
    source = Path(nri_policy.__file__).parent
    ignored = shutil.ignore_patterns("__pycache__")
    return shutil.copytree(source, tmp_path / "site" / source.name, ignore=ignored)


@pytest.fixture
def daemon(
    package: Path, settings: dict[str, Any], host_root: Path, tmp_path: Path
) -> Iterator[Daemon]:
    """A daemon that runs from there, without a runtime."""
    program = tmp_path / "nri-policy"
    program.write_text(
        f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(package.parent)!r})\n"
        "from nri_policy.cli import main\nsys.exit(main())\n"
    )
    program.chmod(0o755)
    daemon = Daemon(
        tmp_path,
        settings=settings,
        host_root=host_root,
        nri_socket=tmp_path / "nri.sock",
        program=program,
    )
    daemon.launch()
    daemon.await_line("event=not-connected")
    yield daemon
    daemon.close()


def _status(daemon: Daemon) -> tuple[int, str]:
    daemon._program = str(PROGRAM)  # whoever asks has another installation
    done = daemon.ask("status")
    return done.returncode, " ".join((done.stdout + done.stderr).split())


def test_before_the_first_caller_they_hear_why_it_cannot_answer(
    daemon: Daemon, package: Path
) -> None:
    shutil.rmtree(package)
    code, said = _status(daemon)
    assert code == 1
    assert REPLACED in said
    assert "cannot be reached" not in said, "not after its patience"


def test_after_that_status_says_so(daemon: Daemon, package: Path) -> None:
    assert _status(daemon)[0] == 0
    shutil.rmtree(package)
    code, said = _status(daemon)
    assert code == 0
    assert REPLACED in said
