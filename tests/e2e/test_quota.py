"""The CFS quota of containers with exclusive CPUs only, and of their pods, on real runtimes."""

from __future__ import annotations

from typing import Any

import pytest

from tests.e2e import cgroup
from tests.e2e.daemon import Daemon
from tests.e2e.kubelet import Kubelet, guaranteed
from tests.e2e.quota import FIFTH, become, busy, limits, throttled
from tests.e2e.runtime import Runtime
from tests.e2e.test_real_host import host_root, settings
from tests.e2e.waiting import eventually

__all__ = ["host_root", "settings"]  # fixtures

KEEP = {"exclusive-quota.resource-policy.nri.io/pod": "keep"}
RESERVED = {"prefer-reserved-cpus.resource-policy.nri.io/container.side": "true"}


@pytest.mark.usefixtures("daemon")
def test_a_busy_container_on_its_own_cpu_is_throttled_by_its_quota_if_it_keeps_it(
    kubelet: Kubelet,
) -> None:
    container = busy(kubelet, KEEP)
    assert len(cgroup.cpuset(container.cgroup).cpus) == 1
    assert limits(container.pod) == (FIFTH, FIFTH)
    assert eventually(lambda: throttled(container)[0], lambda times: times > 0) > 0
    assert limits(container.pod) == (FIFTH, FIFTH)


@pytest.mark.usefixtures("daemon")
def test_a_busy_container_on_its_own_cpu_is_never_throttled(kubelet: Kubelet) -> None:
    """What the runtime did to create it was within the pod's quota, and may have been throttled."""
    container = busy(kubelet, {})
    assert len(cgroup.cpuset(container.cgroup).cpus) == 1
    become(container.pod, (None, None))
    before, used = throttled(container), cgroup.seconds(container.cgroup)
    assert before[0] == 0
    enough = used + 1
    assert eventually(lambda: cgroup.seconds(container.cgroup), lambda now: now > enough) > enough
    assert throttled(container) == before


def test_no_quota_outlives_a_resize_and_restarts_and_comes_back_where_it_is_to(
    kubelet: Kubelet, runtime: Runtime, daemon: Daemon, settings: dict[str, Any]
) -> None:
    pod = kubelet.run_pod("own", {"main": guaranteed(1000)})
    cgroup.limit(pod.cgroup_parent, 100_000)
    container = pod.create("main")
    container.start()
    become(pod, (None, None))
    assert daemon.containers()["default/own/main"]["quota"] == "none (exclusive)"
    assert "none (exclusive)" in daemon.ask("explain", "own").stdout

    container.update(guaranteed(1000, 64 << 20))  # of its memory alone: the kubelet says all again
    cgroup.limit(pod.cgroup_parent, 100_000)  # and the pod's afterwards, where it grows
    become(pod, (None, None))

    own = container.cpus()
    daemon.stop()
    daemon.start()
    runtime.restart()
    daemon.await_synchronized()
    assert (limits(pod), container.cpus()) == ((None, None), own)
    assert daemon.containers()["default/own/main"]["exclusive"] == str(own)

    daemon.reload(settings | {"exclusiveQuota": "keep"})
    become(pod, (100_000, 100_000))
    daemon.reload(settings)
    become(pod, (None, None))

    container.update(guaranteed(500, 64 << 20))
    become(pod, (100_000, 50_000))  # a kubelet writes the pod's then
    container.update(guaranteed(1000, 64 << 20))
    become(pod, (None, None))

    daemon.reload(settings | {"onExit": "widen"})
    daemon.stop()
    become(pod, (100_000, 100_000))  # the container's by the runtime, which may take its time


def test_a_pod_has_its_quota_while_a_container_of_it_shares(
    kubelet: Kubelet, daemon: Daemon
) -> None:
    """And has it back at the start of such a one, though the daemon never saw it there."""
    asked = {"main": guaranteed(1000), "side": guaranteed(500)}
    pod = kubelet.run_pod("both", asked, annotations=RESERVED)
    cgroup.limit(pod.cgroup_parent, 150_000)
    pod.create("main").start()
    side = pod.create("side")
    become(pod, (None, None))
    daemon.kill()
    daemon.start()
    side.start()
    become(pod, (150_000, None))
    assert cgroup.limit_of(side.cgroup) == 50_000
    side.remove()
    become(pod, (None, None))
