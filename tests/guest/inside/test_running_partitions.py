"""A partition while it runs: what happens to its pod, its CPUs, the settings and the daemon."""

from __future__ import annotations

import errno
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from tests.e2e import cgroup
from tests.e2e.daemon import Daemon
from tests.e2e.kubelet import Container, guaranteed
from tests.e2e.runtime import Runtime
from tests.guest.inside import kernel
from tests.guest.inside.partition_tree import PARTITION, cleared, read, settled
from tests.guest.inside.scene import SETTINGS, Scene, pods

ROOT = "root"
KILLS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair(Scene):
    """An owner and a sharer of one pod, which run through all tests of this module."""

    owner: Container
    side: Container


@pytest.fixture(scope="module")
def settings() -> dict[str, Any]:
    return SETTINGS | {"exclusivePartitions": ROOT}


@pytest.fixture(scope="module")
def pair(runtime: Runtime, daemon: Daemon) -> Iterator[Pair]:
    with pods(runtime) as kubelet:
        pod = kubelet.run_pod("pair", {"owner": guaranteed(2000), "side": guaranteed(500)})
        owner, side = (kernel.start(pod, name) for name in pod.containers)
        settled(owner, ROOT)
        yield Pair(kubelet=kubelet, daemon=daemon, owner=owner, side=side)


def test_a_partition_that_a_sibling_overlaps_is_made_again(pair: Pair) -> None:
    path, own = pair.owner.cgroup, pair.owner.cpus()
    os.kill(pair.daemon.pid, signal.SIGSTOP)  # it would be there before anybody has looked
    try:
        cgroup.write(pair.side.cgroup, "cpuset.cpus", str(own))
        assert read(path, PARTITION).startswith("root invalid")
    finally:
        os.kill(pair.daemon.pid, signal.SIGCONT)
    settled(pair.owner, ROOT)
    pair.settle()
    assert pair.owner.cpus() == own


def test_owners_that_run_follow_the_setting(pair: Pair) -> None:
    for kind in ("isolated", "off", ROOT):
        pair.daemon.reload(SETTINGS | {"exclusivePartitions": kind})
        if kind == "off":
            cleared()
        else:
            settled(pair.owner, kind)
        pair.settle()


def test_a_partition_follows_a_cpu_that_goes_offline(pair: Pair) -> None:
    lost = max(pair.owner.cpus())
    with offline(lost):
        pair.await_machine()
        pair.settle()
        assert lost not in pair.owner.cpus()
        settled(pair.owner, ROOT)
    pair.await_machine()
    pair.settle()
    settled(pair.owner, ROOT)


def test_the_only_cpu_of_a_partition_goes_offline_unless_the_kernel_refuses(pair: Pair) -> None:
    pair.owner.update(guaranteed(1000, 33 << 20))
    settled(pair.owner, ROOT)
    (last,) = pair.owner.cpus()
    try:
        with offline(last):
            pair.await_machine()
            pair.settle()
            assert last not in pair.owner.cpus()
            settled(pair.owner, ROOT)
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
    pair.await_machine()
    pair.settle()
    settled(pair.owner, ROOT)


def test_a_daemon_that_is_killed_amid_churn_leaves_nothing_of_owners_that_ended(
    pair: Pair,
) -> None:
    over = threading.Event()
    churning = threading.Thread(target=churn, args=(pair, over))
    churning.start()
    try:
        for _ in range(KILLS):
            pair.daemon.kill()
            pair.daemon.start()
    finally:
        over.set()
        churning.join()
    settled(pair.owner, ROOT)
    pair.settle()


def churn(pair: Pair, over: threading.Event) -> None:
    """Start owners and have them end, one after the other."""
    while not over.is_set():
        pair.run("passing", guaranteed(1000)).pod.delete()


@contextmanager
def offline(cpu: int) -> Iterator[None]:
    """Have a CPU be offline for the while; OSError where the kernel keeps it."""
    kernel.online(cpu, on=False)
    try:
        yield
    finally:
        kernel.online(cpu, on=True)
