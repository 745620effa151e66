"""The unit under a real systemd, in a box of its own (`systemd_box.sh`).

It is skipped where a host can have none, also where end-to-end tests are required: what systemd
thinks of the unit without running it is tested in `unit/test_configs.py`.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from nri_policy.hardware import synthetic
from tests.e2e import systemd_box

PROJECT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent

# What is not so in the box: where the programs are, and how long a test may take.
DROP_IN = f"""\
[Service]
ProtectHome=read-only
BindReadOnlyPaths={PROJECT}
TimeoutStartSec=15s
WatchdogSec=10s
StandardError=append:/run/results/log
# What the daemon's own process may do, in the file of a real cgroup.
ExecStartPre=-sh -c 'echo 7 > /sys/fs/cgroup/probe/cgroup.max.depth'
# And what it may ask of systemd.
ExecStartPre=-{sys.executable} {HERE / "ask_systemd.py"} / :cri-containerd:probe 1-2,9
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
    systemd_box.write_targets(units)


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
    complaint = systemd_box.boot(box, units, results)
    assert (results / "seen.json").exists(), complaint
    return json.loads((results / "seen.json").read_text())


def test_systemd_leads_the_unit_through_its_life(seen: dict[str, Any], tmp_path: Path) -> None:
    assert "failed" not in seen, seen["failed"]
    assert seen["probe"] == {"depth": "7\n"}, "cgroups can be written under the unit"
    assert seen["scope"] == {"AllowedCPUs": "1-2 9"}, "systemd may be asked under the unit"
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
