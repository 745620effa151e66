"""Pods that have their CPUs as one, on a real node: by a kubelet's cgroups, and through resizes."""

from __future__ import annotations

from typing import Any

from nri_policy.foundation.cpuset import CPUSet
from tests.cluster.node import Node, pod
from tests.e2e.daemon import Daemon
from tests.support.rooms import ROOM
from tools.control_plane import OLDEST

HARDWARE = "package:2 numa:2 core:4 pu:2"
SHARES = {"prefer-shared-cpus.resource-policy.nri.io/container.log": "true"}


def amounts(cpu: str, memory: str = "64Mi") -> dict[str, dict[str, str]]:
    asked = {"cpu": cpu, "memory": memory}
    return {"requests": asked, "limits": asked}


def with_room(manifest: dict[str, Any]) -> dict[str, Any]:
    manifest["metadata"]["annotations"] = {**ROOM, **SHARES}
    return manifest


def shop(main: str = "2", log: str = "1") -> dict[str, Any]:
    """Return a pod: main has a slice of its CPUs, log has the rest."""
    return with_room(pod("shop", {"main": amounts(main), "log": amounts(log)}))


def room(node: Node, daemon: Daemon) -> dict[str, CPUSet]:
    """Return the CPUs of the pod, and those of its containers, once they have these."""

    def held() -> dict[str, CPUSet]:
        shown = daemon.containers()
        return {name: CPUSet.parse(shown[f"default/shop/{name}"]["cpus"]) for name in parts}

    def found() -> dict[str, CPUSet]:
        return {name: node.cpuset("shop", name).cpus for name in parts}

    parts = sorted(node.ids("shop"))
    node.cluster.until(lambda: found() == held(), "they are where the daemon has them")
    whole = CPUSet.parse(daemon.containers()[f"default/shop/{parts[0]}"]["room"])
    return {"": whole, **held()}


def quotas(node: Node) -> dict[str, int]:
    """Return the quotas of the containers, -1 for none; the pod's is not written on played CPUs."""
    return {name: node.amounts("shop", name).quota for name in node.ids("shop")}


def test_a_room_is_its_pod_s_alone_and_has_no_quota(node: Node, daemon: Daemon) -> None:
    node.start(pod("other", {"main": {}}), shop())
    cpus = room(node, daemon)
    assert [len(cpus[each]) for each in ("", "main", "log")] == [3, 2, 1]
    assert cpus["main"] | cpus["log"] == cpus[""]
    assert node.cpuset("other", "main").cpus.isdisjoint(cpus[""])
    assert quotas(node) == {"main": -1, "log": 100_000}
    assert "room of 3: 2 main, 1 shared by log" in daemon.ask("explain", "shop").stdout

    daemon.stop()
    daemon.start()
    assert room(node, daemon) == cpus
    node.delete("shop")
    node.start(pod("next", {"main": amounts("31")}))
    assert cpus[""] <= node.cpuset("next", "main").cpus


def test_a_room_grows_and_shrinks_with_its_pod_and_through_restarts(
    node: Node, daemon: Daemon
) -> None:
    """The older release's containerd does not say that the pod is resized."""
    node.start(shop())
    before = room(node, daemon)
    node.resize("shop", {"main": amounts("3", "128Mi")})
    node.until_resized("shop")
    grown = room(node, daemon)
    assert [len(grown[each]) for each in ("", "main", "log")] == [4, 3, 1]
    assert before["main"] <= grown["main"]
    assert before[""] <= grown[""]

    daemon.stop()
    daemon.start()
    assert room(node, daemon) == grown
    node.resize("shop", {"main": amounts("3", "256Mi")})  # its CPU amounts are those in force
    node.until_resized("shop")
    assert room(node, daemon) == grown

    node.resize("shop", {"main": amounts("1", "256Mi")})
    node.until_resized("shop")
    node.cluster.until(lambda: len(room(node, daemon)[""]) == 2, "the room is smaller, too")
    assert quotas(node) == {"main": -1, "log": 100_000}


def test_a_room_grows_out_of_its_numa_node_and_shrinks_again(node: Node, daemon: Daemon) -> None:
    """A node has 8 CPUs; what the kubelet admits there is room for on the machine."""
    node.start(shop())
    before = room(node, daemon)
    node.resize("shop", {"main": amounts("16")})
    node.until_resized("shop")
    node.cluster.until(lambda: len(room(node, daemon)[""]) == 17, "the room has grown")
    grown = room(node, daemon)
    assert [len(grown[each]) for each in ("main", "log")] == [16, 1]
    assert before[""] <= grown[""]
    node.resize("shop", {"main": amounts("2")})
    node.until_resized("shop")
    node.cluster.until(lambda: len(room(node, daemon)[""]) == 3, "the room is smaller again")
    assert room(node, daemon)[""] <= grown[""]


def test_a_burstable_pod_s_containers_share_its_room(node: Node, daemon: Daemon) -> None:
    asked = {"main": {"requests": {"cpu": "1500m"}}, "log": {"requests": {"cpu": "500m"}}}
    node.start(with_room(pod("shop", asked)))
    cpus = room(node, daemon)
    assert len(cpus[""]) == 2
    assert cpus["main"] == cpus["log"] == cpus[""]
    node.resize("shop", {"main": {"requests": {"cpu": "2500m"}}})
    node.until_resized("shop")
    node.cluster.until(lambda: len(room(node, daemon)[""]) == 3, "the room has grown")
    assert cpus[""] <= room(node, daemon)[""]


def test_the_room_of_a_pod_with_resources_as_a_whole(node: Node, daemon: Daemon) -> None:
    """Containers without amounts are shown to the runtime with those of their pod (KEP-2837)."""
    asked = {"main": amounts("2"), "log": {}, "mesh": {"requests": {"cpu": "100m"}}}
    node.start(with_room(pod("shop", asked, resources=amounts("4", "512Mi"))))
    cpus = room(node, daemon)
    assert [len(cpus[each]) for each in ("", "main")] == [4, 2]
    assert cpus["log"] == cpus["mesh"] == cpus[""] - cpus["main"]
    if node.release == OLDEST:  # it does not resize such pods
        return
    node.cluster.asked(
        "PATCH",
        "/api/v1/namespaces/default/pods/shop/resize",
        {"spec": {"resources": amounts("6", "512Mi")}},
        content="application/strategic-merge-patch+json",
    )
    node.cluster.until(lambda: len(room(node, daemon)[""]) == 6, "the room has grown")
    grown = room(node, daemon)
    assert grown["main"] == cpus["main"]
    assert grown["log"] == grown["mesh"] == grown[""] - grown["main"]


def test_first_containers_use_the_room_before_those_that_stay(node: Node, daemon: Daemon) -> None:
    """And sidecars share it with these (KEP-753)."""
    made = shop()
    (main, _) = made["spec"]["containers"]
    first = {**main, "name": "first", "command": ["/bin/busybox", "true"]}
    sidecar = {**main, "name": "side", "resources": amounts("1"), "restartPolicy": "Always"}
    made["metadata"]["annotations"] |= {
        "prefer-shared-cpus.resource-policy.nri.io/container.side": "true"
    }
    made["spec"]["initContainers"] = [sidecar, first]
    node.start(made)
    shown = daemon.containers()
    whole = CPUSet.parse(shown["default/shop/main"]["room"])
    assert len(whole) == 4
    assert len(node.cpuset("shop", "main").cpus) == 2
    rest = whole - node.cpuset("shop", "main").cpus
    node.cluster.until(
        lambda: node.cpuset("shop", "side").cpus == node.cpuset("shop", "log").cpus == rest,
        "they share what main leaves",
    )
