"""The unit under a real systemd, in a box of its own (`systemd_box.sh`).

It is skipped where a host can have none, also where end-to-end tests are required: what systemd
thinks of the unit without running it is tested in `unit/test_configs.py`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nri_policy.hardware import synthetic

PROJECT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent

# What is not so in the box: where the programs are, and how long a test may take.
DROP_IN = f"""\
[Service]
ProtectHome=read-only
BindReadOnlyPaths={PROJECT}
TimeoutStartSec=3s
WatchdogSec=2s
StandardError=append:/run/results/log
ExecStart=
ExecStart={sys.executable} -m nri_policy.cli run --host-root /run/results/host
"""
DRIVER = f"""\
[Unit]
DefaultDependencies=no
[Service]
WorkingDirectory={PROJECT}
Environment=PYTHONPATH={PROJECT}
ExecStart={sys.executable} {HERE / "systemd_driver.py"}
"""
TARGET = "[Unit]\nDefaultDependencies=no\n"
SETTINGS = """\
apiVersion: config.nri/v1alpha1
kind: TopologyAwarePolicy
metadata: {name: default}
spec: {reservedResources: {cpu: 1}}
"""


def write_units(units: Path) -> None:
    drop_ins = units / "nri-policy.service.d"
    drop_ins.mkdir(parents=True)
    shutil.copy(PROJECT / "systemd" / "nri-policy.service", units)
    (drop_ins / "box.conf").write_text(
        f"{DROP_IN}ExecStartPre=cp /run/results/config.yaml /etc/nri-policy\n"
    )
    (units / "driver.service").write_text(DRIVER)
    (units / "default.target").write_text(f"{TARGET}Requires=driver.service\n")
    for name in ("sysinit", "basic", "shutdown", "exit", "multi-user"):
        (units / f"{name}.target").write_text(TARGET)


def hierarchy() -> Path:
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    folders = [Path(folder) for _, folder, kind, *_ in mounts if kind == "cgroup2"]
    if not folders:
        pytest.skip("no cgroup2 hierarchy is mounted")
    return folders[0]


@pytest.fixture
def seen(tmp_path: Path) -> Any:
    """Return how systemd saw the unit after each step of its life."""
    if os.geteuid() != 0:
        pytest.skip("a box for systemd needs root")
    for program in ("/usr/lib/systemd/systemd", "/usr/bin/systemctl", "/usr/sbin/pivot_root"):
        if not Path(program).exists():
            pytest.skip(f"this system has no {program}")
    box, units, results = (tmp_path / name for name in ("box", "units", "results"))
    box.mkdir()
    write_units(units)
    synthetic.write("package:1 core:4 pu:1", results / "host")
    (results / "config.yaml").write_text(SETTINGS)
    cgroup = hierarchy() / f"nri-policy-{os.getpid()}"
    command: list[str | Path] = ["sh", HERE / "systemd_box.sh", box, cgroup, units, results]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    finally:
        folders = [*cgroup.rglob("*/"), cgroup] if cgroup.exists() else []
        for folder in sorted(folders, reverse=True):
            if folder.is_dir():
                folder.rmdir()
    if done.returncode == 77:
        pytest.skip(f"there can be no box for systemd here: {done.stderr}")
    assert (results / "seen.json").exists(), done.stderr
    return json.loads((results / "seen.json").read_text())


def test_systemd_leads_the_unit_through_its_life(seen: dict[str, Any], tmp_path: Path) -> None:
    assert "failed" not in seen, seen["failed"]
    waiting = seen["waiting beyond its time"]
    assert (waiting["ActiveState"], waiting["NRestarts"]) == ("activating", "0")
    assert waiting["StatusText"] == "waiting for the runtime"
    assert seen["ready"]["MainPID"] == seen["waiting"]["MainPID"]
    assert seen["reload"]["said"] == ""
    assert seen["reloaded"]["MainPID"] == seen["ready"]["MainPID"]
    assert seen["replaced"]["MainPID"] != seen["ready"]["MainPID"], "the watchdog ended it"
    assert (seen["stopped"]["ActiveState"], seen["stopped"]["Result"]) == ("inactive", "success")
    log = (tmp_path / "results" / "log").read_text()
    assert "event=reloaded" in log
    assert "event=ended" in log.splitlines()[-1]
