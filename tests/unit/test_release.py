"""What a release is made of: locked versions, archives that depend on nothing else, its bill."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tools import release

PROJECT = Path(__file__).resolve().parents[2]


def locked(lock: str) -> dict[str, str]:
    """Return the versions in a lock, by package."""
    text = (PROJECT / "release" / f"{lock}.lock").read_text()
    pins = re.findall(r"^(\S+)==(\S+) \\\n    --hash=sha256:[0-9a-f]{64}\b", text, re.MULTILINE)
    assert len(pins) == text.count("=="), "each has a hash"
    return {canonicalize_name(name): version for name, version in pins}


@pytest.mark.parametrize("lock", ["runtime", "build"])
def test_the_lock_has_what_the_project_asks_for(lock: str) -> None:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())
    asked = {
        "runtime": project["project"]["dependencies"],
        "build": project["build-system"]["requires"],
    }
    versions = locked(lock)
    for requirement in map(Requirement, asked[lock]):
        version = versions.get(canonicalize_name(requirement.name))
        assert version, f"{requirement.name} is not in release/{lock}.lock: run `make lock`"
        assert requirement.specifier.contains(version), f"{requirement}: run `make lock`"


OF_SETUPTOOLS = {
    "LICENSE",
    "MANIFEST.in",
    "README.md",
    "pyproject.toml",
    "setup.py",
}  # always packed


@pytest.mark.skipif(not (PROJECT / ".git").exists(), reason="needs the project's git repository")
def test_the_sdist_packs_every_folder_and_file_that_is_committed() -> None:
    """Else `make dist` refuses, and a release stops there."""
    tracked = subprocess.run(["git", "ls-files"], cwd=PROJECT, capture_output=True, check=True)
    committed = {line.partition("/")[0] for line in tracked.stdout.decode().splitlines()}
    packed = {*OF_SETUPTOOLS}
    for line in (PROJECT / "MANIFEST.in").read_text().splitlines():
        command, *names = line.split()
        if command == "include":
            packed.update(names)
        elif command in ("graft", "recursive-include"):
            packed.add(names[0])
    assert committed == packed


def archive(path: Path, names: list[str], *, time: int, owner: str) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name in names:
            file = path.with_name("content")
            file.write_text(f"this is {name}")
            member = tar.gettarinfo(file, name)
            member.mtime, member.uname = time, owner
            with file.open("rb") as content:
                tar.addfile(member, content)
    return path


def test_an_archive_depends_on_no_time_owner_or_order(tmp_path: Path) -> None:
    one = archive(tmp_path / "one.tar.gz", ["p/a", "p/b"], time=1_000_000_000, owner="ada")
    other = archive(tmp_path / "other.tar.gz", ["p/b", "p/a"], time=1_100_000_000, owner="bob")
    for each in (one, other):
        release.normalise(each, 1_200_000_000)
    assert one.read_bytes() == other.read_bytes()
    with tarfile.open(one) as tar:
        assert {(m.name, m.mtime, m.uname) for m in tar} == {
            ("p/a", 1_200_000_000, ""),
            ("p/b", 1_200_000_000, ""),
        }
        content = tar.extractfile("p/b")
        assert content is not None
        assert content.read() == b"this is p/b"


@pytest.mark.parametrize(("symbol", "runs"), [("GLIBC_2.17", True), ("GLIBC_2.28", False)])
def test_a_wheel_whose_kernels_need_a_newer_c_library_than_its_name_says_is_refused(
    tmp_path: Path, symbol: str, runs: bool
) -> None:
    wheel = tmp_path / "any.whl"
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr("kernel.abi3.so", f"\x7fELF GLIBC_2.2.5 {symbol}\0")
    if runs:
        release.check_c_library(wheel)
    else:
        with pytest.raises(release.ReleaseError, match="kernel"):
            release.check_c_library(wheel)


def test_what_two_builds_do_not_agree_on_is_named(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    for folder in (one, other):
        folder.mkdir()
        (folder / "same").write_text("same")
        (folder / "changed").write_text(str(folder))
    (one / "gone").touch()
    assert release.differences(one, other) == ["changed", "gone"]


@pytest.fixture
def bill(tmp_path: Path) -> Any:
    path = tmp_path / "bill.json"
    subprocess.run(
        [sys.executable, PROJECT / "tools" / "sbom.py", path],
        check=True,
        env=os.environ | {"SOURCE_DATE_EPOCH": "1200000000"},
    )
    return json.loads(path.read_text())


def test_the_bill_lists_what_is_installed_and_what_needs_what(bill: Any) -> None:
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    own = bill["metadata"]["component"]
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    assert (own["type"], own["version"]) == ("application", project["version"])
    assert own["licenses"] == [{"expression": "Apache-2.0"}]
    names = {each["name"] for each in bill["components"]}
    assert "pip" not in names
    needed = {each["ref"]: each["dependsOn"] for each in bill["dependencies"]}
    asked = {canonicalize_name(Requirement(each).name) for each in project["dependencies"]}
    assert asked <= {ref.split("/")[1].split("@")[0] for ref in needed[own["bom-ref"]]}
    assert {ref for refs in needed.values() for ref in refs} <= needed.keys()


def test_the_bill_has_no_time_but_the_commits(bill: Any) -> None:
    assert bill["metadata"]["timestamp"] == "2008-01-10T21:20:00Z"
    assert bill["serialNumber"].startswith("urn:uuid:")
