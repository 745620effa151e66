"""The installed service under a real systemd, that of each suite, in a box of its own."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from nri_policy.hardware import synthetic
from tests.e2e import systemd_box
from tests.e2e.debian.conftest import NEW, OLD, SUITES, package
from tools import debs
from tools.debian import base

DRIVER = Path(__file__).with_name("service_driver.py")

# The driver runs in the environment that the package brings.
UNIT = """\
[Unit]
DefaultDependencies=no
[Service]
ExecStart=/bin/sh -c "dpkg --install /run/results/old.deb && \\
    exec /usr/lib/nri-policy/bin/python /run/results/driver.py"
ExecStopPost=systemctl --force exit
StandardOutput=append:/run/results/driver.log
StandardError=append:/run/results/driver.log
"""
# Of the box: the hardware, and where the log goes.
DROP_IN = """\
[Service]
StandardError=append:/run/results/log
ExecStart=
ExecStart=/usr/bin/nri-policy run --host-root /run/results/host
"""


@pytest.fixture(params=SUITES)
def seen(request: pytest.FixtureRequest, releases: Mapping[str, Path], tmp_path: Path) -> Any:
    """Return how systemd saw the service after each step of the packages."""
    suite = request.param
    systemd = debs.fetch("systemd", suite=suite, dependencies=True)
    box, units, results = (tmp_path / name for name in ("box", "units", "results"))
    for folder in (box, units, results):
        folder.mkdir()
    shutil.copy(package(releases, OLD, suite), results / "old.deb")
    shutil.copy(package(releases, NEW, suite), results / "new.deb")
    shutil.copy(DRIVER, results / "driver.py")
    synthetic.write("package:1 core:4 pu:1", results / "host")
    systemd_box.write_targets(units)
    (units / "driver.service").write_text(UNIT)
    (units / "nri-policy.service.d").mkdir()
    (units / "nri-policy.service.d" / "box.conf").write_text(DROP_IN)
    complaint = systemd_box.boot(box, units, results, f"{systemd}:{base(suite)}")
    log = results / "driver.log"
    assert (results / "seen.json").exists(), log.read_text() if log.exists() else complaint
    return json.loads((results / "seen.json").read_text())


def test_systemd_runs_restarts_and_stops_the_service_as_its_packages_come_and_go(seen: Any) -> None:
    assert seen["installed"] == {"enabled": "disabled", "active": "inactive"}
    started, upgraded = seen["started"], seen["upgraded"]
    assert (started["enabled"], started["active"]) == ("enabled", "active")
    assert (started["version"], upgraded["version"]) == (OLD, NEW)
    assert upgraded["active"] == "active"
    assert upgraded["pid"] != started["pid"]
    assert upgraded["restarts"] == started["restarts"] == "0", "it was told to, it did not fail"
    assert seen["stopped, then upgraded"]["active"] == "inactive"
    assert seen["removed"]["active"] == "inactive"
    assert seen["purged"]["left"] == []
