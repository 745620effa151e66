"""The commands about tunables: `tunables` and `restore`."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from nri_policy.cli import main
from nri_policy.tuning.items import Wish
from nri_policy.tuning.protocol import ask
from nri_policy.tuning.server import open_tuner
from tests.support.tunables import StrictFiles, answering, irq, make_host

WISHES = {irq(24): Wish("1", ("ns/p/c",))}


def run(*arguments: str | Path) -> Result:
    return CliRunner(env={"COLUMNS": "200"}).invoke(main, [*map(str, arguments)])


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_host(tmp_path / "host", {24: "0-3"})


def test_tunables_shows_what_is_set_and_what_was_there(root: Path, tmp_path: Path) -> None:
    path = tmp_path / "tuner.sock"
    with open_tuner(root, tmp_path / "state", StrictFiles) as tuner, answering(tuner, path):
        empty = run("tunables", "--tuner-socket", path)
        assert (empty.exit_code, empty.output) == (0, "Nothing is set.\n")
        ask(path, WISHES)
        shown = run("tunables", "--tuner-socket", path)
        assert "irq/24/affinity  ok     1       1      0-3       ns/p/c" in shown.output
        (document,) = json.loads(run("tunables", "--tuner-socket", path, "-o", "json").output)
        assert document["item"] == {"kind": "irq", "id": "24", "attribute": "affinity"}
        assert (document["wished"], document["original"]) == ("1", "0-3")


def test_tunables_says_that_no_tuner_runs_and_how_to_see_what_one_has_left(tmp_path: Path) -> None:
    path = tmp_path / "tuner.sock"
    result = run("tunables", "--tuner-socket", path)
    assert result.exit_code == 3
    assert f"no tuner runs (nothing answers at {path}); start it: systemctl" in result.output
    assert "nri-policy restore --dry-run shows what an earlier tuner has left" in result.output


def test_a_dry_run_writes_nothing_and_makes_no_folder(root: Path, tmp_path: Path) -> None:
    where = ("--host-root", root, "--journal-dir", tmp_path / "state")
    for options in (("--dry-run",), ()):
        result = run("restore", *where, *options)
        assert (result.exit_code, result.output) == (0, "Nothing is to be restored.\n")
        assert not (tmp_path / "state").exists()
    with open_tuner(root, tmp_path / "state", StrictFiles) as tuner:
        tuner.set(WISHES, repair=False)
    (root / "proc/irq/24/smp_affinity_list").write_text("2\n")
    before = _list_files(tmp_path)
    result = run("restore", *where, "--dry-run")
    assert "irq/24/affinity" in result.output
    assert "left as it is: something else has set it" in result.output
    assert _list_files(tmp_path) == before
    (tmp_path / "state/tunables.json").write_text("{")
    before = _list_files(tmp_path)
    for options in (("--dry-run",), ()):
        result = run("restore", *where, *options)
        assert (result.exit_code, "is damaged: " in result.output) == (1, True)
        assert _list_files(tmp_path) == before


def _list_files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_restore_puts_originals_back_without_a_tuner(root: Path, tmp_path: Path) -> None:
    where = ("--host-root", root, "--journal-dir", tmp_path / "state")
    affinity = root / "proc/irq/24/smp_affinity_list"
    before = affinity.read_bytes()
    with open_tuner(root, tmp_path / "state", StrictFiles) as tuner:
        tuner.set(WISHES, repair=False)
        held = run("restore", *where)
        says = f"the tuner runs (process {os.getpid()}): stop the daemon, then the tuner\n"
        assert (held.exit_code, held.output.endswith(f": {says}")) == (1, True)
    dry = run("restore", "--dry-run", *where)
    assert (dry.exit_code, affinity.read_text()) == (0, "1")
    assert "irq/24/affinity" in dry.output
    assert "it would be" in dry.output
    assert "restored" in dry.output
    done = run("restore", *where)
    assert (done.exit_code, done.output) == (0, "1 tunable restored or left alone.\n")
    assert affinity.read_bytes().strip() == before.strip()
    again = run("restore", *where)
    assert (again.exit_code, again.output) == (0, "Nothing is to be restored.\n")


def test_restore_shows_what_could_not_be_restored(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_tuner(root, tmp_path / "state", StrictFiles) as tuner:
        tuner.set(WISHES, repair=False)

    def refuse(*_: object) -> None:
        raise OSError(16, "Device or resource busy")

    monkeypatch.setattr("nri_policy.tuning.files.KernelFiles.write", refuse)
    result = run("restore", "--host-root", root, "--journal-dir", tmp_path / "state")
    assert result.exit_code == 1
    assert "EBUSY Device or resource busy" in result.output
