"""In which folders tests look for the runtimes that were built for them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tools import runtimes

PROGRAMS = pytest.mark.parametrize(
    ("find", "variable", "names"),
    [
        (
            runtimes.containerd,
            "NRI_POLICY_NEW_RUNTIME",
            ("containerd", "containerd-shim-runc-v2", "ctr", "runc"),
        ),
        (runtimes.crio, "NRI_POLICY_CRIO", ("crio", "pinns")),
    ],
)


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    for variable in ("NRI_POLICY_NEW_RUNTIME", "NRI_POLICY_CRIO"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("NRI_POLICY_CACHE", str(tmp_path))
    return tmp_path


@PROGRAMS
def test_a_runtime_is_at_hand_once_all_its_programs_are_built(
    find: Callable[[], Path | None], variable: str, names: tuple[str, ...], cache: Path
) -> None:
    del variable
    assert find() is None
    (version,) = cache.glob("*/*")
    (version / "bin").mkdir()
    for name in names:
        assert find() is None
        (version / "bin" / name).touch()
    assert find() == version / "bin"


@PROGRAMS
def test_a_variable_names_the_folder_of_others(
    find: Callable[[], Path | None],
    variable: str,
    names: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv(variable, str(tmp_path))
    assert find() is None
    for name in names:
        (tmp_path / name).touch()
    assert find() == tmp_path
