"""The newest Python of a machine, which CI tests too."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.newest_python import folders, newest


def python(folder: Path, name: str, *lines: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text("\n".join(("#!/bin/sh", *lines, "")))
    path.chmod(0o755)
    return path


def test_the_newest_that_runs_is_found(tmp_path: Path) -> None:
    best = python(tmp_path / "a", "python3.98", "echo 3 98 0")
    python(tmp_path / "b", "python3.97", "echo 3 97 12")
    python(tmp_path / "b", "python3.99", "echo 'pyenv: command not found' >&2", "exit 127")
    python(tmp_path / "b", "python3.99-config", "echo 3 99 0")
    assert newest([tmp_path / "a", tmp_path / "b", tmp_path / "none"]) == best


def test_a_machine_with_no_newer_one_has_none(tmp_path: Path) -> None:
    python(tmp_path, "python3.10", "echo 3 10 2")
    assert newest([tmp_path]) is None
    assert newest([]) is None


def test_pythons_of_pyenv_are_looked_at_beside_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    best = python(tmp_path / "versions" / "3.98.0" / "bin", "python3.98", "echo 3 98 0")
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    monkeypatch.setenv("PATH", "/nowhere")
    assert newest(folders()) == best
