"""Pods that have their CPUs as one, on real runtimes and this host's CPUs: a room of one CPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e import cgroup
from tests.e2e.daemon import Daemon, often_audited
from tests.e2e.kubelet import BEST_EFFORT, Kubelet, guaranteed
from tests.e2e.runtime import Runtime
from tests.e2e.test_real_host import SHARABLE, host_root, settings
from tests.e2e.waiting import eventually
from tests.support.rooms import ROOM

__all__ = ["host_root", "settings"]  # fixtures


@pytest.fixture
def program(tmp_path: Path) -> Path:
    return often_audited(tmp_path)


def test_a_room_is_its_pod_s_alone_through_restarts(
    kubelet: Kubelet, runtime: Runtime, daemon: Daemon
) -> None:
    other = kubelet.run("other", BEST_EFFORT)
    assert other.cpus() == SHARABLE

    asked = {"main": guaranteed(500), "log": guaranteed(500)}
    pod = kubelet.run_pod("shop", asked, annotations=ROOM)
    cgroup.limit(pod.cgroup_parent, 100_000)
    main, log = (pod.create(name) for name in asked)
    main.start()
    log.start()
    room = main.cpus()
    assert len(room) == 1
    assert log.cpus() == room
    assert eventually(other.cpus, lambda cpus: cpus.isdisjoint(room)).isdisjoint(room)
    # a start waits for the file for a moment only
    limit = eventually(lambda: cgroup.limit_of(pod.cgroup_parent), lambda now: now is None)
    assert limit is None
    assert cgroup.limit_of(main.cgroup) == 50_000
    assert "room of 1: 1 shared by main, log" in daemon.ask("explain", "shop").stdout

    daemon.stop()
    daemon.start()
    runtime.restart()
    daemon.await_synchronized()
    assert (main.cpus(), log.cpus()) == (room, room)

    main.remove()
    log.remove()
    daemon.stop()
    daemon.start()
    assert other.cpus().isdisjoint(room)
    again = pod.create("main")
    again.start()
    assert again.cpus() == room

    pod.delete()  # of a pod that it had before its restart containerd tells nothing
    assert eventually(other.cpus, SHARABLE.__eq__, 300) == SHARABLE
