"""Where what the tools build is kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import cache


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("NRI_POLICY_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


def test_what_is_built_is_kept_by_version_in_the_user_s_cache(tmp_path: Path) -> None:
    kept = cache.folder("control-plane", "1.34.4")
    assert kept == tmp_path / "home/.cache/nri-policy/control-plane/1.34.4"
    assert kept.is_dir()


def test_a_variable_of_the_desktop_s_standard_moves_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache.folder("a", "1") == tmp_path / "xdg/nri-policy/a/1"


def test_our_own_variable_names_the_folder_itself(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("NRI_POLICY_CACHE", str(tmp_path / "shared"))
    assert cache.folder("a", "1") == tmp_path / "shared/a/1"
