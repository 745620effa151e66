"""Options: which machine and settings a sub-command works on, and what goes wrong with them."""

from __future__ import annotations

import tarfile
from pathlib import Path
from tempfile import gettempdir

import pytest
from click.testing import CliRunner

from nri_policy.cli import main
from nri_policy.cli.failure import Exit
from nri_policy.cli.options import Source
from nri_policy.hardware import synthetic
from tests.support import nodes


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with a small machine's sysfs and procfs in it."""
    folder = tmp_path / "root"
    synthetic.write(nodes.SMALL, folder)
    return folder


def test_a_synthetic_machine_leaves_nothing_behind() -> None:
    with Source(synthetic=nodes.SMALL).root() as root:
        assert (root / "sys").is_dir()
        assert root.is_relative_to(gettempdir())
    assert not root.exists()


def test_the_same_machine_is_read_from_every_source(root: Path, tmp_path: Path) -> None:
    packed = tmp_path / "machine.tar.xz"
    with tarfile.open(packed, "w:xz") as archive:
        archive.add(root, arcname=".")
    machine = nodes.machine(nodes.SMALL)
    assert Source(host_root=root).machine() == machine
    assert Source(capture=packed).machine() == machine
    assert Source(synthetic=nodes.SMALL).machine() == machine


def refused(*args: str) -> tuple[int, str]:
    """Return the exit code and the one line on stderr of `topology`."""
    result = CliRunner().invoke(main, ["topology", *args], prog_name="nri-policy")
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    return result.exit_code, line


def test_two_machines_at_once_are_a_wrong_usage(root: Path) -> None:
    code, line = refused("--host-root", str(root), "--synthetic", "pu:2")
    assert code == Exit.USAGE
    assert "only one of --host-root, --capture and --synthetic" in line


def test_a_bad_specification_is_a_wrong_usage_with_its_place() -> None:
    code, line = refused("--synthetic", "package:2 cores:2")
    assert code == Exit.USAGE
    assert "--synthetic" in line
    assert "at character 11" in line


def test_a_folder_without_a_machine_is_a_no_that_names_it(tmp_path: Path) -> None:
    code, line = refused("--host-root", str(tmp_path))
    assert code == Exit.NO
    assert line.startswith(f"nri-policy: {tmp_path}: no CPU is described")


def test_a_capture_that_is_none_is_a_wrong_usage_that_names_it(tmp_path: Path) -> None:
    file = tmp_path / "x.tar.xz"
    file.write_text("no archive")
    code, line = refused("--capture", str(file))
    assert code == Exit.USAGE
    assert line.startswith(f"nri-policy: {file}: ")


@pytest.mark.parametrize(
    ("spec", "complaint"),
    [
        ("{}", "spec.reservedResources.cpu"),
        ('{reservedResources: {cpu: "cpuset:99"}}', "reservedResources.cpu: 99 is not in"),
    ],
)
def test_bad_settings_are_code_78(tmp_path: Path, spec: str, complaint: str) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(
        "apiVersion: config.nri/v1alpha1\nkind: TopologyAwarePolicy\n"
        f"metadata: {{name: default}}\nspec: {spec}\n"
    )
    code, line = refused("--synthetic", nodes.SMALL, "--settings", str(file))
    assert code == Exit.SETTINGS
    assert complaint in line


def test_settings_without_end_are_not_read_to_it() -> None:
    result = CliRunner().invoke(main, ["topology", "--settings", "/dev/zero"])
    assert result.exit_code == Exit.SETTINGS
