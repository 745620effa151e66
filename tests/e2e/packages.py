"""The programs under the tests: Debian's containerd of two suites, the system's runc, busybox.

CRI-O and a newer containerd are built (`tools.runtimes`); what else CRI-O calls is Debian's.
"""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tools import debs

#: Debian suite -> the containerd that it had when this was written.
SUITES = {"trixie": "1.7.24", "forky": "2.1.9"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Programs:
    """A containerd with all that it calls, unpacked outside the system."""

    version: tuple[int, int]  # of containerd
    containerd: Path
    ctr: Path
    runc: Path

    @property
    def search_path(self) -> str:
        """PATH that has the shim of this containerd first, and nothing but the system after it."""
        return os.pathsep.join([str(self.containerd.parent), "/usr/sbin", "/usr/bin", "/sbin:/bin"])


def programs(suite: str) -> Programs:
    """Return the programs of the suite, fetched on first use.

    Raises DebsError where they cannot be had.
    """
    binaries = debs.fetch("containerd", suite=suite) / "usr/bin"
    return programs_in(binaries, debs.fetch("runc") / "usr/sbin/runc")


def programs_in(binaries: Path, runc: Path) -> Programs:
    """Return the programs that are in the folder *binaries*, and a runc."""
    # "containerd github.com/containerd/containerd 1.7.24~ds1 …"
    version = subprocess.run(
        [binaries / "containerd", "--version"], check=True, capture_output=True, text=True
    ).stdout.split()[2]
    major, minor, *_ = version.split(".")
    return Programs(
        version=(int(major), int(minor)),
        containerd=binaries / "containerd",
        ctr=binaries / "ctr",
        runc=runc,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CrioPrograms:
    """A CRI-O with all that it calls."""

    crio: Path
    pinns: Path
    conmon: Path
    runc: Path


def crio(folder: Path) -> CrioPrograms:
    """Return the programs of the CRI-O in *folder*, what else it takes fetched on first use.

    Raises DebsError where that cannot be had.
    """
    return CrioPrograms(
        crio=folder / "crio",
        pinns=folder / "pinns",
        conmon=debs.fetch("conmon") / "usr/bin/conmon",
        runc=debs.fetch("runc") / "usr/sbin/runc",
    )


def busybox() -> Path:
    """Return a busybox without shared libraries, fetched on first use."""
    return debs.fetch("busybox-static") / "bin/busybox"
