"""Wheels that tests build: they contain the compiled kernels of this checkout."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.wheel import build_wheel
from tools import release


def test_kernels_are_newer_than_what_builds_though_that_is_made_just_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else Cython and the compiler would make each again, which takes minutes of CPU."""
    cython = tmp_path / "cython"
    kernels: list[int] = []

    def builder() -> Path:
        cython.touch()
        return cython

    def hook(_name: str, dist: Path, *, source: Path, **_options: object) -> None:
        kernels.extend(each.stat().st_mtime_ns for each in source.glob("build/lib.*/**/*.so"))
        (dist / "nri_policy-0-any.whl").touch()

    monkeypatch.setattr(release, "builder", builder)
    monkeypatch.setattr(release, "hook", hook)
    build_wheel(tmp_path)
    assert min(kernels) >= cython.stat().st_mtime_ns
