"""The daemon as a plugin that the runtime starts itself, with its socket already open."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nri_policy.hardware import synthetic
from tests.e2e.conftest import RUNTIMES, running
from tests.e2e.kubelet import BEST_EFFORT, guaranteed
from tests.e2e.runtime import PATIENCE, Runtime
from tests.e2e.waiting import eventually

SETTINGS = {
    "apiVersion": "config.nri/v1alpha1",
    "kind": "TopologyAwarePolicy",
    "metadata": {"name": "default"},
    "spec": {"reservedResources": {"cpu": "750m"}},
}
#: `nri-policy` that waits as long for the end of its predecessor as the runtime for it.
PROGRAM = f"""\
import sys
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from nri_policy.foundation import singleton
singleton.SUCCESSION = {PATIENCE}
from nri_policy.cli import main
sys.exit(main())
"""


@pytest.fixture(params=RUNTIMES)
def runtime(
    request: pytest.FixtureRequest,
    make_runtime: Callable[[str], Runtime],
    archive: Path,
    tmp_path: Path,
) -> Iterator[Runtime]:
    """A runtime that finds the daemon in its folder of plugins."""
    (tmp_path / "settings.yaml").write_text(json.dumps(SETTINGS))
    synthetic.write("package:2 numa:2 core:2 pu:2", tmp_path / "host")
    command = [sys.executable, "-c", PROGRAM, "run"]
    command += ["--settings", "settings.yaml", "--host-root", "host", "--state-dir", "state"]
    command += ["--control-socket", "control.sock", "--containers-dir", "containers"]
    runtime = make_runtime(request.param)
    plugin = runtime.folder / "nri/plugins/90-nri-policy"
    plugin.parent.mkdir(parents=True)
    plugin.write_text(f"#!/bin/sh\ncd {tmp_path}\nexec {shlex.join(command)} 2>>log\n")
    plugin.chmod(0o755)
    with running(runtime, archive):
        yield runtime


def test_the_runtime_starts_the_daemon_and_takes_it_along(runtime: Runtime, tmp_path: Path) -> None:
    kubelet = runtime.kubelet("played")
    try:
        own, guest = kubelet.run("own", guaranteed(2000)), kubelet.run("guest", BEST_EFFORT)
        sets = [runtime.played(each.id).cpus for each in (own, guest)]
        assert [len(sets[0]), bool(sets[1])] == [2, True]
        assert sets[0].isdisjoint(sets[1])
    finally:
        kubelet.close()
    log = tmp_path / "log"
    assert "event=connecting-again" not in log.read_text()
    runtime.stop()
    # CRI-O has restarted once, and the daemon with it
    assert eventually(log.read_text, lambda text: text.endswith("event=ended\n")).endswith(
        "event=ended\n"
    )
