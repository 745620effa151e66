"""A daemon that pins nothing on a host with running containers; then it does, as foretold."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nri_policy.foundation.cpuset import CPUSet
from tests.e2e import cgroup
from tests.e2e.daemon import Daemon
from tests.e2e.kubelet import BEST_EFFORT, Container, Kubelet, guaranteed
from tests.e2e.runtime import Runtime
from tests.e2e.test_real_host import host_root, settings
from tests.e2e.waiting import eventually

__all__ = ["host_root", "settings"]  # fixtures


@pytest.fixture
def newcomer(
    runtime: Runtime, settings: dict[str, Any], host_root: Path, tmp_path: Path
) -> Iterator[Daemon]:
    """A daemon that is not started yet."""
    settings |= {"pinCPU": False, "pinMemory": False}
    daemon = Daemon(tmp_path, settings=settings, host_root=host_root, nri_socket=runtime.nri_socket)
    yield daemon
    daemon.close()


def cpus(containers: dict[str, Container]) -> dict[str, str]:
    return {name: str(cgroup.cpuset(each.cgroup).cpus) for name, each in containers.items()}


def test_who_would_move_is_known_before_pinning_is_turned_on(
    newcomer: Daemon, kubelet: Kubelet, settings: dict[str, Any], tmp_path: Path
) -> None:
    running = {
        "default/paying/main": kubelet.run("paying", guaranteed(1000)),
        "default/other/main": kubelet.run("other", BEST_EFFORT),
    }
    newcomer.start()
    running["default/later/main"] = kubelet.run("later", BEST_EFFORT)
    running["default/huge/main"] = kubelet.run("huge", guaranteed(999_000))  # refused otherwise
    before = cpus(running)
    assert len({*before.values()}) == 1, "nobody is pinned"

    pinned = {**settings, "pinCPU": True, "pinMemory": True}
    new = tmp_path / "new.json"
    document = {
        "apiVersion": "config.nri/v1alpha1",
        "kind": "TopologyAwarePolicy",
        "metadata": {"name": "default"},
        "spec": pinned,
    }
    new.write_text(json.dumps(document))
    answer = newcomer.ask("what-if", "--settings", str(new), "-o", "json")
    assert answer.returncode == 0, answer.stderr
    changes = json.loads(answer.stdout)["changes"]
    assert {name: change["before"]["cpus"] for name, change in changes.items()} == before
    foretold = {name: change["after"]["cpus"] for name, change in changes.items()}
    assert len(CPUSet.parse(foretold["default/paying/main"])) == 1
    assert cpus(running) == before

    newcomer.reload(pinned)
    assert eventually(lambda: cpus(running), lambda now: now == foretold) == foretold
    newcomer.stop()
