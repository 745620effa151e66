"""A real kubelet resizes pods, is started again, and finds the daemon away."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from nri_policy.foundation.cpuset import CPUSet
from tests.cluster.node import Node, pod
from tests.e2e import cgroup, image
from tests.e2e.cgroup import Amounts
from tests.e2e.daemon import Daemon
from tools.control_plane import OLDEST

HARDWARE = "package:2 numa:2 core:2 pu:2"


def guaranteed(cpu: str, memory: str = "64Mi") -> dict[str, dict[str, str]]:
    amounts = {"cpu": cpu, "memory": memory}
    return {"requests": amounts, "limits": amounts}


@pytest.mark.usefixtures("daemon")
def test_a_container_grows_and_shrinks_around_the_cpus_that_it_has(node: Node) -> None:
    node.start(pod("own", {"main": guaranteed("2")}))
    first = node.cpuset("own", "main").cpus
    node.resize("own", {"main": guaranteed("3", "128Mi")})
    node.until_resized("own")
    grown = node.cpuset("own", "main").cpus
    assert len(grown) == 3
    assert first <= grown
    assert node.amounts("own", "main") == Amounts(shares=3072, quota=-1, memory=128 << 20)
    node.resize("own", {"main": guaranteed("1", "128Mi")})
    node.until_resized("own")
    node.cluster.until(lambda: len(node.cpuset("own", "main").cpus) == 1, "so has its cpuset")
    assert node.cpuset("own", "main").cpus <= grown
    assert node.amounts("own", "main").quota == -1
    node.resize("own", {"main": guaranteed("1500m", "128Mi")})
    node.until_resized("own")
    assert node.amounts("own", "main").quota == 150_000


def test_a_refused_resize_leaves_the_container_as_it_was_and_tells_its_owner(
    node: Node, daemon: Daemon
) -> None:
    node.start(pod("own", {"main": guaranteed("2")}))
    before = node.cpuset("own", "main")
    node.resize("own", {"main": guaranteed("16")})  # the node has them, but for the reserved one

    def said() -> str:
        return " ".join(
            each.get("message", "")
            for each in node.pod("own")["status"]["conditions"]
            if each["type"].startswith("PodResize")
        )

    node.cluster.until(lambda: "16 exclusive CPUs" in said(), "the owner is told")
    assert node.cpuset("own", "main") == before
    assert node.amounts("own", "main").shares == 2048
    # the newer kubelet asks before it writes, and the newer containerd asks us then
    of_pod = cgroup.amounts(node.cgroup_of_pod("own"))
    assert of_pod.quota == (1_600_000 if node.release == OLDEST else 200_000)
    node.resize("own", {"main": guaranteed("3")})
    node.until_resized("own")
    assert len(node.cpuset("own", "main").cpus) == 3
    assert daemon.containers()["default/own/main"]["state"] == "running"


def test_containers_and_their_cpus_outlive_the_kubelet(node: Node, daemon: Daemon) -> None:
    node.start(pod("own", {"main": guaranteed("2")}), pod("shares", {"main": {}}))
    before = {name: (node.ids(name), node.cpuset(name, "main")) for name in ("own", "shares")}
    node.kill_kubelet()
    late = pod("late", {"main": guaranteed("1")})
    node.create(late)
    node.start_kubelet()
    node.until_ready("late")
    after = {name: (node.ids(name), node.cpuset(name, "main")) for name in ("own", "shares")}
    assert after == before
    assert not node.cpuset("late", "main").cpus & before["own"][1].cpus
    assert daemon.counted("event=creation-missed") == 0


def greedy(name: str) -> dict[str, Any]:
    """Return a pod that writes more than it may, for which the kubelet evicts it."""
    made = pod(name, {"main": guaranteed("2")})
    made["spec"]["volumes"] = [{"name": "data", "emptyDir": {"sizeLimit": "1Mi"}}]
    (container,) = made["spec"]["containers"]
    container["volumeMounts"] = [{"name": "data", "mountPath": "/data"}]
    script = "/bin/busybox dd if=/dev/zero of=/data/all bs=1M count=4; exec /bin/busybox sleep 9999"
    container["command"] = ["/bin/busybox", "sh", "-c", script]
    return made


def is_evicted(node: Node, name: str) -> bool:
    status = node.pod(name)["status"]
    return (status["phase"], status.get("reason")) == ("Failed", "Evicted")


def test_an_evicted_pod_gives_its_cpus_back(node: Node, daemon: Daemon) -> None:
    """Its object stays, and so does its sandbox in the runtime."""
    node.start(pod("own", {"main": guaranteed("2")}), greedy("greedy"))
    before = node.cpuset("own", "main")
    held = daemon.containers()
    assert len(CPUSet.parse(held["default/greedy/main"]["exclusive"])) == 2
    node.cluster.until(lambda: is_evicted(node, "greedy"), "it is evicted")
    node.cluster.until(
        lambda: "default/greedy/main" not in daemon.containers(), "its CPUs are free"
    )
    daemon.stop()
    daemon.start()
    assert "default/greedy/main" not in daemon.containers()
    assert node.cpuset("own", "main") == before


def until_consistent(node: Node, daemon: Daemon) -> None:
    """Wait until those that run, and no others, have the cpusets that the daemon says."""

    def differences() -> dict[str, Any]:
        """Return what differs, by container: the daemon's CPUs, and what the runtime was told."""
        shown = daemon.containers()
        held = {each: said["cpus"] for each, said in shown.items() if each.startswith("default/")}
        pods = {each.split("/")[1] for each in held}
        runs = {f"default/{pod}/{each}" for pod in pods for each in node.running(pod)}
        found: dict[str, Any] = {}
        for each in sorted(held.keys() | runs):
            _, pod, name = each.split("/")
            if each not in held or each not in runs:
                found[each] = "runs" if each in runs else "is the daemon's alone"
            elif str(node.cpuset(pod, name).cpus) != held[each]:
                found[each] = shown[each], node.calls(pod, name)
        return found

    node.cluster.until(
        lambda: not differences(), "all are where the daemon has them", found=differences
    )


def _create(node: Node) -> None:
    node.start(pod("late", {"main": guaranteed("2")}))


def _delete(node: Node) -> None:
    node.delete("own")


def _resize(node: Node) -> None:
    node.resize("own", {"main": guaranteed("1")})
    node.until_resized("own")


def _evict(node: Node) -> None:
    node.create(greedy("greedy"))
    node.cluster.until(lambda: is_evicted(node, "greedy"), "it is evicted")


def _start_first_ones(node: Node) -> None:
    """Start a pod of which one container ends before the others start, and one stays with them."""
    first: dict[str, Any] = {"name": "first", "image": image.NAME, "resources": guaranteed("3")}
    first["command"] = ["/bin/busybox", "true"]
    sidecar: dict[str, Any] = {"name": "sidecar", "image": image.NAME, "resources": guaranteed("1")}
    sidecar["restartPolicy"] = "Always"
    node.start(pod("app", {"main": guaranteed("2")}, initContainers=[first, sidecar]))


def _start_static(node: Node) -> None:
    node.start_static(pod("static", {"main": guaranteed("2")}))


CHANGES = [_create, _delete, _resize, _evict, _start_first_ones, _start_static]


@pytest.mark.parametrize("change", CHANGES)
def test_what_the_kubelet_did_while_the_daemon_was_dead_is_made_up_for(
    node: Node, daemon: Daemon, change: Callable[[Node], None]
) -> None:
    node.start(
        pod("own", {"main": guaranteed("2")}),
        pod("other", {"main": guaranteed("2")}),
        pod("shares", {"main": {}}),
    )
    other = node.cpuset("other", "main")
    daemon.kill()
    change(node)
    daemon.start()
    until_consistent(node, daemon)
    own = [CPUSet.parse(each["exclusive"]) for each in daemon.containers().values()]
    assert sum(map(len, own)) == len(CPUSet.union(own)), "no CPU is two containers' own"
    assert node.cpuset("other", "main") == other


def test_a_pod_that_starts_while_the_daemon_is_killed_has_its_cpus_in_the_end(
    node: Node, daemon: Daemon
) -> None:
    for number in range(4):
        node.create(pod(f"own-{number}", {"main": guaranteed("2")}))
    daemon.kill()
    daemon.start()
    for number in range(4):
        node.until_ready(f"own-{number}")
    until_consistent(node, daemon)
    held: dict[str, Any] = daemon.containers()
    own = [CPUSet.parse(held[f"default/own-{number}/main"]["exclusive"]) for number in range(4)]
    assert [len(each) for each in own] == [2, 2, 2, 2]
    assert len(CPUSet.union(own)) == 8
