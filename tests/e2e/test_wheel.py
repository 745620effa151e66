"""What a wheel has in it is enough to try the program: nothing of the source is beside it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.e2e.conftest import unavailable
from tests.support.wheel import build_wheel, make_venv
from tools import release
from tools.environment import SetupError


@pytest.fixture(scope="module")
def venv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with nothing of the project but its wheel."""
    folder = tmp_path_factory.mktemp("wheel")
    try:
        wheel = build_wheel(folder)
    except SetupError as error:
        unavailable(f"what builds wheels cannot be fetched: {error}")
    venv = make_venv(folder / "venv")
    release.install(venv / "bin" / "python", "--no-index", wheel)
    return venv


def run(venv: Path, *arguments: str | Path, code: int = 0) -> str:
    path = f"{venv / 'bin'}:{os.environ['PATH']}"
    done = subprocess.run(
        ["nri-policy", *arguments],
        cwd=venv,
        env={**os.environ, "PATH": path, "COLUMNS": "200"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stderr
    return done.stdout


def test_the_demo_plays(venv: Path) -> None:
    assert "Step 9: " in run(venv, "demo")


def test_the_sample_of_settings_is_good(venv: Path) -> None:
    sample = venv / "settings.yaml"
    sample.write_text(run(venv, "config", "sample"))
    run(venv, "config", "check", sample)


def test_the_folder_that_the_doctor_names_has_what_it_names(venv: Path, tmp_path: Path) -> None:
    said = run(venv, "doctor", "--host-root", tmp_path, code=1)
    (folder,) = (
        Path(line.removeprefix("configs/ and docs/ are in "))
        for line in said.splitlines()
        if line.startswith("configs/ and docs/ are in ")
    )
    assert venv in folder.parents
    assert (folder / "configs" / "groups" / "training.yaml").is_file()
    assert (folder / "docs" / "settings.md").is_file()


def test_the_manual_pages_are_where_man_looks_for_them(venv: Path) -> None:
    pages = venv / "share" / "man" / "man1"
    assert {page.name for page in pages.iterdir()} >= {"nri-policy.1", "nri-policy-cluster.1"}
