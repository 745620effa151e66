"""Resizes that nobody reports: while the daemon is away, or while the runtime is killed."""

from __future__ import annotations

import shutil
import threading
from contextlib import suppress

import grpc
import pytest

from tests.e2e import cgroup
from tests.e2e.conftest import CRIO
from tests.e2e.daemon import Daemon
from tests.e2e.kubelet import Container, Kubelet, guaranteed
from tests.e2e.runtime import Runtime
from tests.e2e.test_real_host import host_root, settings
from tests.e2e.waiting import eventually

__all__ = ["host_root", "settings"]  # fixtures


def booked(daemon: Daemon, container: Container) -> int:
    """Return the milli-CPU that the daemon has booked for a container."""
    shown = daemon.containers()[f"default/{container.pod.name}/{container.name}"]
    return 1000 * len(shown["exclusive"].split()) + int(shown["shared_milli"])


@pytest.mark.parametrize("lost", [False, True], ids=["", "store lost"])
def test_a_resize_while_the_daemon_was_away_outlives_a_restart_of_the_runtime(
    lost: bool, kubelet: Kubelet, runtime: Runtime, daemon: Daemon
) -> None:
    grown = kubelet.run("grown", guaranteed(300))
    daemon.kill()
    grown.update(guaranteed(700))
    runtime.restart()
    if lost:
        shutil.rmtree(daemon.state)
    daemon.start()
    assert booked(daemon, grown) == 700


@pytest.mark.parametrize("runtime", [CRIO], indirect=True)
def test_a_resize_that_outlives_a_killed_runtime_counts(runtime: Runtime, daemon: Daemon) -> None:
    """The runc that CRI-O has begun goes on; containerd's shim ends it."""
    kubelet = runtime.kubelet("late")
    try:
        grown = kubelet.run("grown", guaranteed(300))
        before = cgroup.quota(grown.cgroup)

        def resize() -> None:
            with suppress(grpc.RpcError):  # the runtime is killed before it can answer
                grown.update(guaranteed(700))

        resizing = threading.Thread(target=resize)
        resizing.start()
        assert eventually(lambda: booked(daemon, grown), lambda milli: milli == 700) == 700
        runtime.kill()
        runtime.start()
        daemon.await_synchronized()
        resizing.join()
        assert eventually(lambda: cgroup.quota(grown.cgroup), lambda quota: quota != before)
        assert eventually(lambda: booked(daemon, grown), lambda milli: milli == 700) == 700
    finally:
        kubelet.close()
