"""What `python -m tools.cluster up` says where it would wait for nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.control_plane import ControlPlane

FEW_FILES = """
import resource
from tools.cluster import check_inotify

check_inotify(2)
resource.setrlimit(resource.RLIMIT_NOFILE, (10, 10))
check_inotify(16)
"""


def test_a_host_without_inotify_instances_is_said_at_the_start() -> None:
    command = [sys.executable, "-c", FEW_FILES]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "a node makes 16 inotify instances, and only " in done.stderr
    assert "sysctl fs.inotify.max_user_instances" in done.stderr


def test_who_waits_long_for_a_cluster_is_told_for_what(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    now = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr("tests.cluster.control_plane.time.monotonic", lambda: now)
    monkeypatch.setattr("tests.cluster.control_plane.time.sleep", sleep)
    ControlPlane(tmp_path).until(lambda: now > 25, "the node is ready", found=lambda: "(no CNI)")
    assert [record.getMessage() for record in caplog.records] == [
        "waiting for 10 s until the node is ready (no CNI)",
        "waiting for 20 s until the node is ready (no CNI)",
    ]
