"""Boots a real systemd in a box of its own (`systemd_box.sh`), with units of a test's choice."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.support.patience import HANGS

SCRIPT = Path(__file__).with_suffix(".sh")

TARGET = "[Unit]\nDefaultDependencies=no\n"


def write_targets(units: Path) -> None:
    """Write the targets that systemd wants; the default one starts `driver.service`."""
    (units / "default.target").write_text(f"{TARGET}Requires=driver.service\n")
    for name in ("sysinit", "basic", "shutdown", "exit", "multi-user"):
        (units / f"{name}.target").write_text(TARGET)


def boot(box: Path, units: Path, results: Path, lower: str = "/") -> str:
    """Boot, wait until the driver ends it, and return what went wrong in that.

    *box* is an empty folder, *results* is /run/results inside, *lower* the folders of the system
    below, as overlays name them. Skips the test where this host can have no box.
    """
    cgroup = _hierarchy() / f"nri-policy-{os.getpid()}"
    command: list[str | Path] = ["sh", SCRIPT, box, cgroup, units, results, lower]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=HANGS, check=False)
    finally:
        folders = [*cgroup.rglob("*/"), cgroup] if cgroup.exists() else []
        for folder in sorted(folders, reverse=True):
            if folder.is_dir():
                folder.rmdir()
    if done.returncode == 77:
        pytest.skip(f"there can be no box for systemd here: {done.stderr}")
    return done.stderr


def _hierarchy() -> Path:
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    folders = [Path(folder) for _, folder, kind, *_ in mounts if kind == "cgroup2"]
    if not folders:
        pytest.skip("no cgroup2 hierarchy is mounted")
    return folders[0]
