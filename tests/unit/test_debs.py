from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path

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
    assert (source.uris, source.suites) == ("http://mirror.example/debian", ("bookworm",))


def test_a_system_that_follows_an_alias_is_known_by_that_alias(apt_folder: Path) -> None:
    (apt_folder / "sources.list").write_text("deb http://mirror.example/debian sid main\n")
    assert debs.system_source().suites == ("sid",)


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


def test_a_failing_command_is_reported_with_its_complaint(tmp_path: Path) -> None:
    with pytest.raises(DebsError, match=rf"^cat {tmp_path}/x failed:\ncat: .*: No such file"):
        debs.run(["cat", f"{tmp_path}/x"])
