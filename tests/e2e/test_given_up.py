"""Creations that fail on CRI-O, which sends no event for that, or only by chance.

If the client of a creation no longer waits, CRI-O keeps the container for one to two minutes, for a
client that asks again. Then it removes the container, and may report the exit of its process.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import grpc
import pytest

from nri_policy.control.client import connected
from tests.e2e import cgroup
from tests.e2e.conftest import CRIO
from tests.e2e.daemon import Daemon, often_audited
from tests.e2e.kubelet import BEST_EFFORT, Container, Kubelet, Pod, guaranteed
from tests.e2e.runtime import Runtime
from tests.e2e.test_real_host import host_root, settings
from tests.e2e.waiting import eventually

__all__ = ["host_root", "settings"]  # fixtures


@pytest.fixture
def program(tmp_path: Path) -> Path:
    return often_audited(tmp_path)


def is_booked(daemon: Daemon, pod: Pod) -> bool:
    with connected(daemon.control) as client:
        return f"default/{pod.name}/main" in client.containers()


def until_free(daemon: Daemon, pod: Pod) -> None:
    """Wait until its CPUs are free again: it takes half a minute."""
    assert not eventually(lambda: is_booked(daemon, pod), lambda booked: not booked, every=0.5)


@pytest.mark.parametrize("runtime", [CRIO], indirect=True)
def test_a_creation_that_failed_gives_its_cpus_back_though_the_pod_stays(
    kubelet: Kubelet, daemon: Daemon
) -> None:
    kubelet.run("guest", BEST_EFFORT)
    pod = kubelet.run_pod("mistaken", {"main": guaranteed(1000)})
    with pytest.raises(grpc.RpcError, match="/nowhere"):
        pod.create("main", command=["/nowhere"])
    assert is_booked(daemon, pod), "nobody has said that it failed"
    until_free(daemon, pod)
    daemon.await_line("event=ended-without-event")


@pytest.mark.parametrize("runtime", [CRIO], indirect=True)
def test_a_creation_that_was_given_up_holds_its_cpus_as_long_as_it_has_a_process(
    runtime: Runtime, daemon: Daemon
) -> None:
    kubelet, hasty = runtime.kubelet("slow"), runtime.kubelet("slow")
    try:
        kubelet.run("guest", BEST_EFFORT)
        pod = kubelet.run_pod("given-up", {"main": guaranteed(1000)})
        before = cgroup.children(pod.cgroup_parent)
        pod.kubelet = hasty
        with ThreadPoolExecutor(1) as thread:
            creating = thread.submit(pod.create, "main")
            assert eventually(lambda: is_booked(daemon, pod), bool)
            hasty.close()
            with pytest.raises(grpc.RpcError):
                creating.result()
        pod.kubelet = kubelet

        def is_there() -> bool:
            new = cgroup.children(pod.cgroup_parent) - before
            return any("conmon" not in each for each in new)

        assert is_booked(daemon, pod)
        assert eventually(is_there, bool)
        while eventually(is_there, lambda there: not there, seconds=5.0, every=0.25):
            assert is_booked(daemon, pod) or not is_there()
        until_free(daemon, pod)

        def again() -> Container | None:
            with suppress(grpc.RpcError):  # CRI-O is not done yet with the former one of this name
                return pod.create("main")
            return None

        # nothing was wrong with the pod: the kubelet may ask for the container again
        made = eventually(again, bool)
        assert made
        made.start()
        assert len(made.cpus()) == 1
    finally:
        kubelet.close()


@pytest.mark.parametrize("runtime", [CRIO], indirect=True)
def test_a_daemon_that_restarts_during_a_slow_hook_leaves_the_container_its_cpus(
    runtime: Runtime, kubelet: Kubelet, daemon: Daemon
) -> None:
    """CRI-O lists nothing that it is creating; a process in its cgroup shows it."""
    hooked = runtime.kubelet("hooked")
    try:
        guest = kubelet.run("guest", BEST_EFFORT)
        pod = hooked.run_pod("hooked", {"main": guaranteed(1000)})
        before = cgroup.children(pod.cgroup_parent)

        def waits_for_hook() -> bool:
            new = cgroup.children(pod.cgroup_parent) - before
            return any(
                "conmon" not in each and cgroup.processes(f"{pod.cgroup_parent}/{each}")
                for each in new
            )

        with ThreadPoolExecutor(1) as threads:
            creating = threads.submit(pod.create, "main")
            assert eventually(waits_for_hook, bool)
            daemon.kill()
            daemon.start()
            assert is_booked(daemon, pod)
            late = kubelet.run("late", BEST_EFFORT)
            own = creating.result()
        own.start()
        assert own.cpus().isdisjoint(guest.cpus() | late.cpus())
        assert daemon.containers()["default/hooked/main"]["cpus"] == str(own.cpus())
    finally:
        hooked.close()
