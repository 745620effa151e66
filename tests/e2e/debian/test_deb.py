"""The Debian packages on fresh systems of both suites: installed, upgraded, removed under a pod.

containerd runs in that system too, so that all paths are those of a node. systemd does not: a
recorder takes its place, and the test starts and stops what a package asks systemd for.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from nri_policy.foundation.cpuset import CPUSet
from nri_policy.tuning.decision import Entry
from nri_policy.tuning.files import boot_id
from nri_policy.tuning.items import Item, Kind
from nri_policy.tuning.tuner_journal import TunerJournal
from tests.e2e import packages
from tests.e2e.containerd import Containerd
from tests.e2e.daemon import SYNCHRONIZED
from tests.e2e.debian.conftest import NEW, OLD, SUITES, package
from tests.e2e.kubelet import BEST_EFFORT, Kubelet, guaranteed
from tests.e2e.process import Process
from tools import debs
from tools.debian import Machine

CONFIGS = Path(__file__).resolve().parents[3] / "configs"
UNIT = "/usr/lib/systemd/system/nri-policy.service"
CONFIG = "/etc/nri-policy/config.yaml"

PLAYED = "package:2 numa:2 core:2 pu:2"

RESERVED = CPUSet(os.sched_getaffinity(0)).first(1)
SETTINGS = f"""\
apiVersion: config.nri/v1alpha1
kind: TopologyAwarePolicy
metadata: {{name: default}}
spec:
  reservedResources: {{cpu: "cpuset:{RESERVED}"}}
  preferIsolatedCPUs: false
"""


class Node:
    """A Debian system to install the packages on."""

    def __init__(self, machine: Machine, suite: str, releases: Mapping[str, Path], shared: Path):
        self.machine, self.run = machine, machine.run
        self._packages = {version: package(releases, version, suite) for version in releases}
        self._told = shared / "told"
        self._told.touch()
        systemctl = shared / "systemctl"
        systemctl.write_text(f'#!/bin/sh\necho "$@" >>{self._told}\n')
        systemctl.chmod(0o755)
        self.run("cp", systemctl, "/usr/bin/systemctl")
        self.run("mkdir", "-p", "/run/systemd/system")

    def install(self, version: str) -> None:
        """Install the version, over another or not."""
        self.run("dpkg", "--install", self._packages[version])

    def systemctl_calls(self) -> list[str]:
        """Return the systemctl calls since this was last asked for."""
        lines = self._told.read_text().splitlines()
        self._told.write_text("")
        return lines

    def start(self) -> Process:
        """Start the daemon as the installed unit says, and wait until it takes part."""
        command = re.search(r"(?m)^ExecStart=(.+)$", self.run("cat", UNIT))
        assert command is not None
        process = Process(self.machine.inside(*command[1].split()), os.environ)
        process.await_line(SYNCHRONIZED)
        return process

    def version(self) -> str:
        """Return the version of the daemon that runs."""
        return str(json.loads(self.run("nri-policy", "status", "-o", "json"))["version"])

    def left(self) -> list[str]:
        """Return which files of the package and the daemon are there, but for containers' own."""
        folders = "/etc/nri-policy /usr/lib/nri-policy /usr/bin/nri-policy /var/lib/nri-policy"
        find = f"find {folders} -type f ! -path '*/containers/*' ! -name lock 2>/dev/null || true"
        return sorted(self.run("sh", "-c", find).splitlines())


@pytest.fixture(params=SUITES)
def node(
    request: pytest.FixtureRequest, releases: Mapping[str, Path], tmp_path: Path
) -> Iterator[Node]:
    # containerd's folder and pytest's are temporary ones
    shared = [Path(tempfile.gettempdir()), debs.CACHE, CONFIGS]
    with Machine(request.param, shared) as machine:
        yield Node(machine, request.param, releases, tmp_path)


@pytest.fixture
def runtime(
    node: Node, programs: Mapping[str, packages.Programs], archive: Path, tmp_path: Path
) -> Iterator[Containerd]:
    """Debian 13's containerd 1.7, on both suites: Debian 12's has no NRI."""
    its = programs["trixie"]
    for program in (its.containerd, its.ctr):
        command = shlex.join(node.machine.inside(program, PATH=its.search_path))
        entered = tmp_path / program.name
        entered.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        entered.chmod(0o755)
    inside = replace(its, containerd=tmp_path / "containerd", ctr=tmp_path / "ctr")
    with ExitStack() as stack:
        containerd = Containerd(inside)
        stack.callback(containerd.close)
        containerd.start()
        containerd.load(archive)
        node.run("touch", "/etc/hosts", "/etc/resolv.conf")  # pods get copies of them
        node.run("mkdir", "-p", "/run/nri")
        node.run("ln", "-s", containerd.nri_socket, "/run/nri/nri.sock")
        yield containerd


def test_a_package_needs_no_compiler_and_starts_nothing(node: Node) -> None:
    node.install(OLD)
    assert node.systemctl_calls() == ["--system daemon-reload"]
    assert node.run("nri-policy", "--version").strip() == f"nri-policy, version {OLD}"
    demo = node.run("nri-policy", "simulate", CONFIGS / "demo.yaml", "--synthetic", PLAYED)
    assert "Guaranteed" in demo
    assert not node.run("sh", "-c", "command -v cc gcc pip pip3 || true")
    node.run("dpkg", "--remove", "nri-policy")
    assert node.left() == [CONFIG]
    node.run("dpkg", "--purge", "nri-policy")
    assert not node.left()


def test_a_removal_gives_tunables_back(node: Node, tmp_path: Path) -> None:
    """The journal has a tunable of a CPU that does not exist, so the test changes no real one."""
    item = Item(Kind.CPU, "9999", "resume_latency")
    entry = Entry(item=item, original="0", ours="2", when=0.0)
    journal = TunerJournal(tmp_path, boot_id(Path("/")))
    journal.record([entry])
    node.install(OLD)
    node.run("mkdir", "-p", "/var/lib/nri-policy-tuner")
    path = f"/var/lib/nri-policy-tuner/{journal.path.name}"
    node.run("sh", "-c", f"cat >{path}", stdin=journal.path.read_text())
    node.run("dpkg", "--remove", "nri-policy")
    assert json.loads(node.run("cat", path))["entries"] == []


def test_a_package_is_upgraded_and_removed_under_running_pods(node: Node, kubelet: Kubelet) -> None:
    node.install(OLD)
    node.run("sh", "-c", f"cat >{CONFIG}", stdin=SETTINGS)
    daemon = node.start()
    try:
        own, rest = kubelet.run("own", guaranteed(1000)), kubelet.run("rest", BEST_EFFORT)
        pods = {container.pid(): container.cpus() for container in (own, rest)}
        assert len(own.cpus()) == 1
        assert own.cpus().isdisjoint(RESERVED | rest.cpus())
        node.systemctl_calls()

        node.install(NEW)
        restarts = ["try-restart nri-policy-tuner.service", "try-restart nri-policy.service"]
        assert node.systemctl_calls() == ["--system daemon-reload", *restarts]
        assert node.run("cat", CONFIG) == SETTINGS
        status = node.run("sh", "-c", "nri-policy status 2>&1 || true")
        assert "its program was replaced or removed since it started; restart it" in status
        assert daemon.terminate() == 0
        daemon = node.start()
        assert node.version() == NEW
        assert {container.pid(): container.cpus() for container in (own, rest)} == pods

        assert daemon.terminate() == 0
        node.run("dpkg", "--remove", "nri-policy")
        stops = ["stop nri-policy.service", "stop nri-policy-tuner.service"]
        assert node.systemctl_calls() == [*stops, "--system daemon-reload"]
        assert node.left() == [CONFIG, "/var/lib/nri-policy/store/state.db"]
        node.run("dpkg", "--purge", "nri-policy")
        assert not node.left()
        assert {container.pid(): container.cpus() for container in (own, rest)} == pods
    finally:
        daemon.kill()
