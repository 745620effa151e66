from __future__ import annotations

import platform
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import pytest

from tools import debs
from tools.debs import DebsError, Source

STANZAS = """\
Types: deb deb-src
# a comment inside
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates
Components: main contrib
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 abc
 -----END PGP PUBLIC KEY BLOCK-----

Enabled: no
Types: deb
URIs: http://off.example/debian
Suites: bookworm
Components: main

Types: deb-src
URIs: http://sources.example/debian
Suites: bookworm
Components: main
"""

LINES = """\
# deb http://off.example/debian bookworm main
deb http://mirror.example/debian bookworm main contrib # the mirror
deb http://mirror.example/debian bookworm-updates main contrib
deb-src http://mirror.example/debian bookworm main
deb [arch=amd64 signed-by=/keys/vendor.gpg] https://[2001:db8::1]/repo bookworm main
deb https://flat.example/ ./
"""


def test_stanzas_of_the_deb822_style_are_read_and_disabled_ones_left_out() -> None:
    (source,) = debs.parse_stanzas(STANZAS)
    assert source.uris == "http://mirror.example/debian"
    assert source.suites == ("bookworm", "bookworm-updates")
    assert source.components == "main contrib"
    assert source.signed_by.splitlines()[1:3] == [" -----BEGIN PGP PUBLIC KEY BLOCK-----", " ."]


def test_lines_of_the_one_line_style_are_read_with_their_keys() -> None:
    assert list(debs.parse_lines(LINES)) == [
        Source(
            uris="http://mirror.example/debian",
            suites=("bookworm", "bookworm-updates"),
            components="main contrib",
        ),
        Source(
            uris="https://[2001:db8::1]/repo",
            suites=("bookworm",),
            components="main",
            signed_by="/keys/vendor.gpg",
        ),
    ]


@pytest.fixture
def apt_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    def apt_config(*_: object) -> str:
        return f"F='{tmp_path}/sources.list'\nD='{tmp_path}/'\n"

    monkeypatch.setattr(debs, "run", apt_config)
    monkeypatch.setattr(
        platform, "freedesktop_os_release", lambda: {"VERSION_CODENAME": "bookworm"}
    )
    return tmp_path


def test_the_systems_archive_is_the_one_that_has_updates_beside_it(apt_folder: Path) -> None:
    (apt_folder / "a-vendor.list").write_text("deb https://vendor.example bookworm main\n")
    (apt_folder / "debian.sources").write_text(STANZAS)
    source = debs.system_source()
    assert (source.uris, source.suite) == ("http://mirror.example/debian", "bookworm")


def test_a_system_that_follows_an_alias_is_known_by_that_alias(apt_folder: Path) -> None:
    (apt_folder / "sources.list").write_text("deb http://mirror.example/debian sid main\n")
    assert debs.system_source().suite == "sid"


def test_a_system_without_sources_says_where_they_should_be(apt_folder: Path) -> None:
    with pytest.raises(DebsError, match=str(apt_folder / "sources.list")):
        debs.system_source()


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """A package that names its library by the path from before the merged /usr."""
    if not shutil.which("dpkg-deb"):
        pytest.skip("needs dpkg-deb, which this system has not")
    content = tmp_path / "content"
    (content / "DEBIAN").mkdir(parents=True)
    (content / "DEBIAN" / "control").write_text(
        "Package: sample\nVersion: 1:2\nArchitecture: all\nMaintainer: Nobody <n@example.org>\n"
        "Description: sample\n"
    )
    for name in ("lib", "usr/lib"):
        (content / name).mkdir(parents=True)
        (content / name / f"from-{name.replace('/', '-')}").touch()
    program = content / "usr" / "lib" / "program"
    program.touch()
    program.chmod(0o4755)
    subprocess.run(
        ["dpkg-deb", "--root-owner-group", "--build", content, tmp_path / "sample_2_all.deb"],
        check=True,
        capture_output=True,
    )
    return tmp_path / "sample_2_all.deb"


def test_unpacked_packages_share_one_merged_usr_and_lose_set_user_id_bits(
    archive: Path, tmp_path: Path
) -> None:
    debs.unpack([archive], tmp_path / "unpacked")
    library = tmp_path / "unpacked" / "usr" / "lib"
    assert {path.name for path in library.iterdir()} == {"from-lib", "from-usr-lib", "program"}
    assert (tmp_path / "unpacked" / "lib").readlink() == Path("usr/lib")
    assert (library / "program").stat().st_mode & 0o7111 == 0o111
    assert (tmp_path / "unpacked" / "PACKAGES").read_text() == "sample_2_all.deb\n"


def test_a_damaged_package_leaves_nothing_that_looks_unpacked(
    archive: Path, tmp_path: Path
) -> None:
    archive.write_bytes(archive.read_bytes()[:-40])
    with pytest.raises(DebsError):
        debs.unpack([archive], tmp_path / "unpacked")
    assert not (tmp_path / "unpacked").exists()


@pytest.fixture
def apt(archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Sequence[str]]:
    """The commands given to a fake apt, which answers each of them with the same package."""
    commands: list[Sequence[str]] = []
    real_run = debs.run

    def run(
        command: Sequence[str], folder: Path | None = None, stdin: IO[bytes] | None = None
    ) -> str:
        if command[0] != "apt-get":
            return real_run(command, folder, stdin)
        commands.append(command)
        if "nothing" in command:
            raise DebsError("nothing there")
        if folder:
            shutil.copy(archive, folder)
        return ""

    monkeypatch.setattr(debs, "run", run)
    monkeypatch.setattr(debs, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(
        debs,
        "system_source",
        lambda: Source(uris="http://mirror.example", suites=("bookworm",), components="main"),
    )
    return commands


def test_packages_are_fetched_once_and_kept_by_suite_and_name(apt: list[Sequence[str]]) -> None:
    first = debs.fetch("sample=1:2", "another", suite="trixie")
    count = len(apt)
    assert first == debs.CACHE / "trixie" / "another_sample=1%3a2"
    assert (first / "PACKAGES").read_text() == "sample_2_all.deb\n"
    assert debs.fetch("another", "sample=1:2", suite="trixie") == first
    assert len(apt) == count


def test_a_fetch_that_fails_leaves_no_folder_and_may_be_tried_again(
    apt: list[Sequence[str]],
) -> None:
    for _ in range(2):
        with pytest.raises(DebsError, match="nothing there"):
            debs.fetch("nothing")
    assert len(apt) == 4  # both times an update and a download
    assert not (debs.CACHE / "bookworm" / "nothing").exists()


def test_the_private_apt_knows_the_suite_and_the_systems_mirror_only(
    apt: list[Sequence[str]],
) -> None:
    debs.fetch("sample", suite="forky")
    (sources,) = (debs.CACHE / "forky" / "apt" / "sources").iterdir()
    assert sources.read_text() == (
        "Types: deb\nURIs: http://mirror.example\nSuites: forky\nComponents: main\n"
        "Targets: Packages\n"
    )
    conf = debs.CACHE / "forky" / "apt" / "apt.conf"
    assert all(f"--config-file={conf}" in command for command in apt)


def test_a_suite_that_does_not_verify_is_tried_with_newer_keys(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def update_with(source: Source, suite: str) -> list[str]:
        if source.signed_by != "stable/usr/share/keyrings/debian-archive-keyring.gpg":
            raise DebsError("no public key")
        return ["apt-get", suite]

    monkeypatch.setattr(debs, "update_with", update_with)
    monkeypatch.setattr(debs, "fetch", lambda *_, suite: Path(suite))
    source = Source(uris="http://mirror.example", suites=("bookworm",), components="main")
    assert debs.update(source, "forky") == ["apt-get", "forky"]
    with pytest.raises(DebsError, match="no public key"):
        debs.update(source, "bookworm")


def test_a_failing_command_is_reported_with_its_complaint(tmp_path: Path) -> None:
    with pytest.raises(DebsError, match=rf"^cat {tmp_path}/x failed:\ncat: .*: No such file"):
        debs.run(["cat", f"{tmp_path}/x"])
