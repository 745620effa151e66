"""Two owners of one CPU, on the cgroups of this host: the races with the runtime's own work.

A BestEffort container starts; a moment later one with an exclusive CPU is created, which takes a
CPU from it while the runtime is starting it. NRI_POLICY_RACE is the tries on each runtime
(`make stress`).
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from nri_policy.control.client import connected
from nri_policy.foundation.cpuset import CPUSet
from tests.e2e import cgroup
from tests.e2e.daemon import Daemon
from tests.e2e.kubelet import BEST_EFFORT, Container, Kubelet, guaranteed
from tests.e2e.runtime import Runtime
from tests.e2e.test_real_host import host_root, settings
from tests.e2e.waiting import eventually
from tests.support.patience import HANGS

__all__ = ["host_root", "settings"]  # fixtures

log = logging.getLogger(__name__)

TRIES = int(os.environ.get("NRI_POLICY_RACE", "8"))
NEIGHBOURS = 20  # containers that an owner takes a CPU from
ENDS = 4  # containers that end at another moment of a registration each
# seconds that an overlap may live after both have started; a few tries run on slow machines too
LONGEST = 0.1 if "NRI_POLICY_RACE" in os.environ else HANGS


@contextmanager
def starting(container: Container) -> Iterator[None]:
    """Start a container in the background."""
    thread = threading.Thread(target=container.start)
    thread.start()
    try:
        yield
    finally:
        thread.join()


def decided(daemon: Daemon, container: Container) -> str:
    """Return the CPUs that the daemon has decided on for a container."""
    cpus: str = daemon.containers()[f"default/{container.pod.name}/{container.name}"]["cpus"]
    return cpus


def overlap(first: Container, second: Container) -> float:
    """Return the seconds, from now, that two running containers have a CPU in common."""
    began = time.monotonic()
    while True:
        cpus = [cgroup.cpuset(each.cgroup).cpus for each in (first, second)]
        if cpus[0].isdisjoint(cpus[1]):
            return time.monotonic() - began
        assert time.monotonic() < began + HANGS, f"both on {cpus[0] & cpus[1]} for good"
        time.sleep(0.001)


@pytest.mark.usefixtures("daemon")
def test_an_exclusive_cpu_is_taken_from_a_container_that_is_just_starting(
    kubelet: Kubelet, daemon: Daemon
) -> None:
    lived = []
    for number in range(TRIES):
        guest = kubelet.run_pod(f"guest{number}", {"main": BEST_EFFORT}).create("main")
        owner = kubelet.run_pod(f"owner{number}", {"main": guaranteed(1000)})
        with starting(guest):
            time.sleep(0.03 + 0.02 * (number % 8) / 7)
            own = owner.create("main")
            own.start()
        first = cgroup.cpuset(guest.cgroup).cpus
        immediate = first.isdisjoint(cgroup.cpuset(own.cgroup).cpus)
        lived.append(0.0 if immediate else overlap(guest, own))
        assert cgroup.cpuset(guest.cgroup).cpus != cgroup.cpuset(own.cgroup).cpus
        guest.pod.delete()
        owner.delete()
    late = [seconds for seconds in lived if seconds]
    log.info(
        "%s: %d tries, %d overlaps, the longest of %.0f ms; %d cpusets written, registered %d x",
        kubelet.version(),
        TRIES,
        len(late),
        1000 * max(lived),
        daemon.counted("event=enforced"),
        daemon.counted("event=synchronized"),
    )
    assert max(lived) < LONGEST


@pytest.mark.usefixtures("daemon")
def test_an_owner_starts_on_cpus_that_all_its_neighbours_have_left(kubelet: Kubelet) -> None:
    """The first has them leave before the answer to its creation, the next beside it."""
    names = [f"n{number}" for number in range(NEIGHBOURS)]
    pod = kubelet.run_pod("neighbours", dict.fromkeys(names, BEST_EFFORT))
    neighbours = [pod.create(name) for name in names]
    for each in neighbours:
        each.start()
    for number in range(3):
        own = kubelet.run(f"owner{number}", guaranteed(1000))
        taken = cgroup.cpuset(own.cgroup).cpus

        def on_them(taken: CPUSet = taken) -> list[str]:
            return [e.name for e in neighbours if cgroup.cpuset(e.cgroup).cpus & taken]

        assert not eventually(on_them, lambda found: not found)  # at once, where 1 s is enough
        own.pod.delete()


def test_who_is_put_on_an_exclusive_cpu_by_hand_is_off_it_soon(
    kubelet: Kubelet, daemon: Daemon
) -> None:
    guest, own = kubelet.run("guest", BEST_EFFORT), kubelet.run("own", guaranteed(1000))
    before = eventually(guest.cpus, lambda cpus: str(cpus) == decided(daemon, guest))
    file = Path(cgroup.cpuset_hierarchy() or "", guest.cgroup.strip("/"), "cpuset.cpus")
    for _ in range(3):
        file.write_text(str(before | own.cpus()))
        lived = overlap(guest, own)
        log.info("%s: on it for %.0f ms", kubelet.version(), 1000 * lived)
        assert guest.cpus() == before


@pytest.fixture
def slow(runtime: Runtime) -> Iterator[Kubelet]:
    """Runs pods whose containers take two seconds to be created."""
    kubelet = runtime.kubelet("slow")
    yield kubelet
    kubelet.close()


@pytest.mark.parametrize("restarted", [False, True], ids=["", "daemon restarted meanwhile"])
def test_what_a_slow_creation_loses_is_made_up_for_before_the_container_runs(
    restarted: bool, kubelet: Kubelet, slow: Kubelet, daemon: Daemon
) -> None:
    guest = slow.run_pod("guest", {"main": BEST_EFFORT}).create("main")
    owner = kubelet.run_pod("owner", {"main": guaranteed(1000)})
    with starting(guest):
        time.sleep(0.5)
        own = owner.create("main")
        own.start()
        if restarted:
            daemon.kill()
            daemon.start()
    assert guest.cpus().isdisjoint(own.cpus())
    assert decided(daemon, guest) == str(guest.cpus())
    assert decided(daemon, own) == str(own.cpus())


def test_a_resize_that_the_runtime_refuses_frees_nothing(kubelet: Kubelet, daemon: Daemon) -> None:
    fill = "dd if=/dev/zero of=/dev/shm/x bs=1M count=50 && touch /dev/shm/full; sleep 1000000"
    large = guaranteed(1000, 96 << 20)
    full = kubelet.run_pod("full", {"main": large}).create(
        "main", command=("/bin/busybox", "sh", "-c", fill)
    )
    full.start()
    before = cgroup.cpuset(full.cgroup).cpus
    filled = Path(f"/proc/{cgroup.processes(full.cgroup)[0]}/root/dev/shm/full")
    assert eventually(filled.exists, bool)
    with pytest.raises(grpc.RpcError):
        full.update(guaranteed(500, 24 << 20))
    guest = kubelet.run("guest", BEST_EFFORT)
    assert guest.cpus().isdisjoint(before)
    daemon.await_line("the runtime refused its resize")
    assert decided(daemon, full) == str(before)
    assert cgroup.cpuset(full.cgroup).cpus == before
    assert "the runtime refused its resize" in daemon.ask("explain", "full").stdout
    last = kubelet.run("last", BEST_EFFORT)
    assert eventually(last.cpus, before.isdisjoint), "the daemon may just register again"
    full.update(large)
    assert cgroup.cpuset(full.cgroup).cpus == before


def test_a_container_that_is_stopped_before_its_start_moves_nobody(
    kubelet: Kubelet, daemon: Daemon
) -> None:
    again = kubelet.run_pod("again", {"main": BEST_EFFORT}).create("main")
    never = kubelet.run_pod("never", {"main": guaranteed(1000)}).create("main")
    again.stop()
    never.stop()
    guest = kubelet.run("guest", BEST_EFFORT)
    before = eventually(guest.cpus, lambda cpus: str(cpus) == decided(daemon, guest))
    daemon.kill()
    daemon.start()
    assert guest.cpus() == before
    kubelet.call("StopPodSandbox", pod_sandbox_id=never.pod.id)
    own = kubelet.run("own", guaranteed(1000))
    before = eventually(guest.cpus, lambda cpus: str(cpus) == decided(daemon, guest))
    daemon.kill()
    daemon.start()
    assert (guest.cpus(), own.cpus().isdisjoint(before)) == (before, True)
    assert "default/never/main" not in daemon.containers()
    try:
        again.start()
    except grpc.RpcError:
        return  # this runtime starts nothing that was stopped
    assert again.cpus().isdisjoint(own.cpus())
    assert decided(daemon, again) == str(again.cpus())


def test_a_container_that_ends_while_the_daemon_registers_is_released(
    kubelet: Kubelet, daemon: Daemon
) -> None:
    for number in range(ENDS):
        ends = kubelet.run(f"ends{number}", guaranteed(1000))
        pid = ends.pid()
        daemon.kill()
        daemon.launch()
        daemon.await_line("event=configured")
        time.sleep(0.05 * number)
        os.kill(pid, signal.SIGKILL)
        daemon.await_synchronized()
        name = f"default/ends{number}/main"

        def booked(name: str = name) -> bool:
            with connected(daemon.control) as client:
                return name in client.containers()

        assert not eventually(booked, lambda there: not there, every=0.2)
        kubelet.run(f"next{number}", guaranteed(1000)).pod.delete()
        ends.pod.delete()
