from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from nri_policy.cli import main
from nri_policy.cli.failure import Exit
from nri_policy.hardware.synthetic import write


@pytest.fixture(name="root")
def _root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    root.mkdir()
    write("package:2 numa:2 core:2 pu:2", root)
    return root


def _run(*args: object) -> Result:
    return CliRunner().invoke(main, [*map(str, args)])


def test_a_capture_shows_the_same_topology(root: Path, tmp_path: Path) -> None:
    file = tmp_path / "c.tar.xz"
    result = _run("capture", file, "--host-root", root)
    assert result.exit_code == 0, result.output
    assert f"topology --capture {file}" in result.stderr
    assert result.stdout == ""
    there = json.loads(_run("topology", "--host-root", root, "-o", "json").stdout)
    again = json.loads(_run("topology", "--capture", file, "-o", "json").stdout)
    assert again == there


def test_a_name_that_promises_another_format_is_refused(root: Path, tmp_path: Path) -> None:
    refused = _run("capture", tmp_path / "c.zip", "--host-root", root)
    assert refused.exit_code == Exit.USAGE
    assert "a capture is a .tar.xz file" in refused.stderr
    assert not (tmp_path / "c.zip").exists()


def test_nothing_is_overwritten_unless_that_is_asked_for(root: Path, tmp_path: Path) -> None:
    file = tmp_path / "c.tar.xz"
    file.write_text("precious")
    refused = _run("capture", file, "--host-root", root)
    assert refused.exit_code == Exit.NO
    assert "--force replaces it" in refused.stderr
    assert file.read_text() == "precious"
    assert _run("capture", file, "--host-root", root, "--force").exit_code == 0
    assert _run("topology", "--capture", file).exit_code == 0


def test_a_capture_names_the_files_that_it_leaves_out(root: Path, tmp_path: Path) -> None:
    (root / "sys/devices/system/node/node0/distance").unlink()
    (root / "sys/devices/system/node/node0/distance").mkdir()
    result = _run("capture", tmp_path / "c.tar.xz", "--host-root", root)
    assert result.exit_code == 0
    assert "left out: sys/devices/system/node/node0/distance: cannot be read" in result.stderr


def test_a_folder_that_may_not_be_looked_into_is_a_no(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refused)
    result = _run("capture", tmp_path / "c.tar.xz", "--host-root", root)
    assert result.exit_code == Exit.NO
    assert "Permission denied" in result.stderr


def test_no_machine_or_no_place_for_the_file_is_a_no(root: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    nothing = _run("capture", tmp_path / "c.tar.xz", "--host-root", tmp_path / "empty")
    assert nothing.exit_code == Exit.NO
    assert not (tmp_path / "c.tar.xz").exists()
    nowhere = _run("capture", tmp_path / "no" / "c.tar.xz", "--host-root", root)
    assert nowhere.exit_code == Exit.NO
    assert "No such file or directory" in nowhere.stderr
