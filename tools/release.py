"""The files of a release, in dist/: sdist, wheel, bill of materials, checksums; Debian packages.

Built from the commit that is checked out, with the locked versions of release/*.lock; what is not
committed is not in it. The same commit gives the same files, byte for byte, on machines of one
compiler.

    python3 -m tools.release                     # `make dist`
    python3 -m tools.release bookworm trixie     # and Debian packages for these; needs root
    python3 -m tools.release --twice bookworm    # all of it twice, and compared: `make release`
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from tools import deb
from tools.debs import DebsError, locked
from tools.environment import CACHE, PROJECT, SetupError, compiler, run

DIST = PROJECT / "dist"

#: The oldest C library that the wheel runs on, as in the platform's name (PEP 600).
C_LIBRARY = (2, 17)

# One of setuptools' build hooks (PEP 517), called with the folder for its result.
HOOK = """\
import os, sys
from setuptools import build_meta
os.umask(0o022)
hook, folder, *options = sys.argv[1:]
settings = {"--global-option": ["--quiet"], "--build-option": options}
getattr(build_meta, hook)(folder, config_settings=settings)
"""


class ReleaseError(Exception):
    """The release cannot be built, or a check of it failed; the text says why."""


def build(dist: Path, suites: Sequence[str]) -> None:
    """Build everything into *dist*, which is replaced."""
    shutil.rmtree(dist, ignore_errors=True)
    dist.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as folder:
        source, scratch = Path(folder, "source"), Path(folder, "sdist")
        export(source)
        committed = files(source)
        hook("build_sdist", dist, tools=builder(), source=source, variables=epoch())
        (sdist,) = dist.glob("*.tar.gz")
        normalise(sdist, int(epoch()["SOURCE_DATE_EPOCH"]))
        # Build the rest from the sdist, to prove that it is complete.
        unpack(sdist.read_bytes(), scratch)
        (unpacked,) = scratch.iterdir()
        if lacking := committed - files(unpacked):
            raise ReleaseError(f"MANIFEST.in leaves out {', '.join(map(str, sorted(lacking)))}")
        build_from(unpacked, dist, suites)
    sums = "".join(f"{digest(path)}  {path.name}\n" for path in sorted(dist.iterdir()))
    (dist / "SHA256SUMS").write_text(sums)


def build_from(source: Path, dist: Path, suites: Sequence[str]) -> None:
    """Build the wheel, its bill of materials and the Debian packages into *dist*."""
    tag = f"--plat-name=manylinux_{C_LIBRARY[0]}_{C_LIBRARY[1]}_{platform.machine()}"
    needs = epoch() | compiler()
    hook("build_wheel", dist, tag, tools=builder(), source=source, variables=needs)
    (wheel,) = dist.glob("*.whl")
    check_c_library(wheel)
    bill = dist / f"nri_policy-{wheel.name.split('-')[1]}.cdx.json"
    with tempfile.TemporaryDirectory() as folder:
        installed = environment("runtime", Path(folder))
        install(installed, "--no-index", wheel)
        run([installed, PROJECT / "tools" / "sbom.py", bill], epoch())
    for suite in suites:
        deb.build(suite, wheel=wheel, bill=bill, source=source, tools=builder(), variables=epoch())


def builder() -> Path:
    """Return the Python that has what builds, and pip."""
    return environment("build", CACHE)


def epoch() -> dict[str, str]:
    """Return the variable that makes the commit's time that of all files."""
    return {"SOURCE_DATE_EPOCH": git("log", "-1", "--format=%ct").strip()}


def hook(
    name: str, dist: Path, *options: str, tools: Path, source: Path, variables: Mapping[str, str]
) -> None:
    """Call setuptools' build hook for the project in the folder *source*."""
    done = subprocess.run(
        [tools, "-c", HOOK, name, dist, *options],
        cwd=source,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise ReleaseError(f"{name} failed:\n{done.stderr}")


def files(folder: Path) -> set[Path]:
    """Return the paths of all files below the folder, within it."""
    return {path.relative_to(folder) for path in folder.rglob("*") if path.is_file()}


def export(folder: Path) -> None:
    """Write the files of the commit into the folder."""
    archive = subprocess.run(
        ["git", "archive", "--format=tar.gz", "HEAD"], cwd=PROJECT, check=True, capture_output=True
    ).stdout
    unpack(archive, folder)


def unpack(archive: bytes, folder: Path) -> None:
    """Unpack a .tar.gz into the new folder; modes are the usual ones, whatever the umask is."""
    folder.mkdir()
    tar = ["tar", "--extract", "--gzip", "--no-same-permissions", f"--directory={folder}"]
    subprocess.run(tar, input=archive, check=True, umask=0o022)


def environment(lock: str, folder: Path) -> Path:
    """Return the Python of a virtual environment that has what release/*lock*.lock says.

    It is made in *folder* on first use, for each content of the lock.
    """
    requirements = PROJECT / "release" / f"{lock}.lock"
    name = f"{lock}-{sys.version_info.major}.{sys.version_info.minor}-{digest(requirements)[:12]}"
    venv = folder / name
    python = venv / "bin" / "python"
    done = venv / "complete"
    with locked(folder / f"{lock}.lock"):
        if not done.exists():
            run([sys.executable, "-m", "venv", "--clear", "--without-pip", venv])
            install(python, "--require-hashes", "--requirement", requirements)
            done.touch()
    return python


def install(python: Path, *what: str | Path) -> None:
    """Install with pip into the environment of *python*, and nothing that is not named."""
    run(
        [
            sys.executable,
            "-m",
            "pip",
            f"--python={python}",
            "install",
            "--quiet",
            "--no-deps",
            *what,
        ]
    )


def normalise(sdist: Path, epoch: int) -> None:
    """Rewrite the archive so that it depends on nothing but names, contents and the time *epoch*.

    setuptools takes times and owners from the files.
    """
    buffer = io.BytesIO()
    with tarfile.open(sdist) as old, tarfile.open(fileobj=buffer, mode="w") as new:
        for member in sorted(old.getmembers(), key=lambda member: member.name):
            member.mtime, member.uid, member.gid, member.uname, member.gname = epoch, 0, 0, "", ""
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            member.pax_headers = {}
            new.addfile(member, old.extractfile(member) if member.isreg() else None)
    sdist.write_bytes(gzip.compress(buffer.getvalue(), mtime=epoch))


def check_c_library(wheel: Path) -> None:
    """Raise ReleaseError where the kernels need a newer C library than the wheel's name says."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.unpack_archive(wheel, folder, "zip")
        for library in Path(folder).rglob("*.so"):
            names = re.findall(rb"GLIBC_(\d+)\.(\d+)", library.read_bytes())
            newest = max((int(major), int(minor)) for major, minor in names)
            if newest > C_LIBRARY:
                raise ReleaseError(f"{library.name} needs a C library {newest}, not {C_LIBRARY}")


def git(*arguments: str) -> str:
    """Return what git says of this project."""
    return subprocess.run(
        ["git", *arguments], cwd=PROJECT, check=True, capture_output=True, text=True
    ).stdout


def digest(path: Path) -> str:
    """Return the SHA-256 of the file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def build_again(suites: Sequence[str]) -> None:
    """Build once more; ReleaseError where that gives other files than those in dist/."""
    with tempfile.TemporaryDirectory() as folder:
        again = Path(folder, "dist")
        build(again, suites)
        if different := differences(DIST, again):
            raise ReleaseError(f"a second build differs: {', '.join(different)}")


def differences(one: Path, other: Path) -> list[str]:
    """Return the names of the files that are not the same in both folders."""
    names = {path.name for folder in (one, other) for path in folder.iterdir()}
    return sorted(
        name
        for name in names
        if not ((one / name).exists() and (other / name).exists())
        or digest(one / name) != digest(other / name)
    )


def main() -> int:
    """Build what the command line asks for."""
    parser = argparse.ArgumentParser(description="Build the files of a release into dist/.")
    parser.add_argument("suites", nargs="*", metavar="SUITE", help="Debian: bookworm, trixie")
    parser.add_argument("--twice", action="store_true", help="build again, and compare")
    wanted = parser.parse_args()
    try:
        build(DIST, wanted.suites)
        if wanted.twice:
            build_again(wanted.suites)
    except (DebsError, ReleaseError, SetupError, OSError, subprocess.CalledProcessError) as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    print((DIST / "SHA256SUMS").read_text(), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
