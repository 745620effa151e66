"""Drift made by hand in the cgroups of this host: reported, and put right where that is wanted."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from nri_policy.foundation.cpuset import CPUSet
from tests.e2e import cgroup
from tests.e2e.daemon import Daemon
from tests.e2e.kubelet import BEST_EFFORT, Container, Kubelet, guaranteed
from tests.e2e.test_real_host import RESERVED, SHARABLE, host_root, settings
from tests.e2e.waiting import eventually

__all__ = ["host_root", "settings"]  # fixtures


def audit(daemon: Daemon) -> list[dict[str, Any]]:
    """Return the drifts, by the command; its exit status has to agree."""
    result = daemon.ask("audit", "-o", "json")
    document = json.loads(result.stdout)
    assert document["unseen"] == []
    assert document["threads_hidden"] == []
    assert result.returncode == bool(document["drifts"])
    drifts: list[dict[str, Any]] = document["drifts"]
    return drifts


def settle(daemon: Daemon) -> None:
    """Wait until what containers were started with is seen in force."""

    def changing() -> list[str]:
        names: list[str] = json.loads(daemon.ask("audit", "-o", "json").stdout)["changing"]
        return names

    assert eventually(changing, lambda names: not names) == []


def move_by_hand(container: Container, cpus: CPUSet) -> None:
    cgroup.write(container.cgroup, "cpuset.cpus", str(cpus))


def test_a_cgroup_that_is_changed_by_hand_is_drift_until_it_is_changed_back(
    daemon: Daemon, kubelet: Kubelet
) -> None:
    changed, other = kubelet.run("changed", BEST_EFFORT), kubelet.run("other", guaranteed(100))
    before = changed.cpus()
    settle(daemon)
    move_by_hand(changed, RESERVED)
    (drift,) = audit(daemon)
    assert (drift["container"], drift["what"]) == ("default/changed/main", "cpus")
    assert (drift["decided"], drift["found"]) == (str(before), str(RESERVED))
    assert changed.cpus() == RESERVED, "it is only reported"
    assert other.cpus() == SHARABLE
    move_by_hand(changed, before)
    assert audit(daemon) == []
    assert daemon.counted("event=drift ") == daemon.counted("event=drift-gone ") == 1


@pytest.fixture
def repairing(settings: dict[str, Any]) -> dict[str, Any]:
    settings["audit"] = "repair"
    return settings


def test_a_cgroup_that_is_changed_by_hand_is_put_right(
    repairing: dict[str, Any], daemon: Daemon, kubelet: Kubelet
) -> None:
    assert repairing["audit"] == "repair"
    changed = kubelet.run("changed", BEST_EFFORT)
    before = changed.cpus()
    settle(daemon)
    move_by_hand(changed, RESERVED)
    assert len(audit(daemon)) == 1
    assert eventually(changed.cpus, lambda now: now == before) == before
    assert eventually(lambda: audit(daemon), lambda drifts: not drifts) == []


def test_a_process_that_left_its_cgroup_is_drift_and_one_that_pins_itself_is_not(
    daemon: Daemon, kubelet: Kubelet
) -> None:
    container = kubelet.run("astray", BEST_EFFORT)
    pid = container.pid()
    os.sched_setaffinity(pid, SHARABLE.first(1))
    assert audit(daemon) == []
    cgroup.enter("/", pid)
    os.sched_setaffinity(pid, RESERVED)
    try:
        (drift,) = audit(daemon)
        assert (drift["what"], drift["threads"]) == ("threads", [pid])
        assert (drift["found"], drift["repairable"]) == (str(RESERVED), False)
    finally:
        cgroup.enter(container.cgroup, pid)
    assert audit(daemon) == []


def test_containers_made_while_the_daemon_was_away_are_found_and_placed(
    daemon: Daemon, kubelet: Kubelet
) -> None:
    first = kubelet.run("first", BEST_EFFORT)
    daemon.kill()
    meanwhile = kubelet.run("meanwhile", BEST_EFFORT)
    assert meanwhile.cpus() != SHARABLE
    daemon.start()
    assert eventually(meanwhile.cpus, lambda now: now == SHARABLE) == SHARABLE
    assert first.cpus() == SHARABLE
    assert audit(daemon) == []
