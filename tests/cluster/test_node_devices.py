"""Devices that a real kubelet assigns: containers run on the NUMA nodes that they are on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from nri_policy.foundation.cpuset import CPUSet
from tests.cluster.device_plugin import DevicePlugin
from tests.cluster.node import NAME, Node, pod
from tests.e2e.daemon import Daemon

HARDWARE = "package:2 numa:2 core:4"
CARD = "example.com/card"
CARDS = {"first": 1, "second": 3}  # NUMA nodes that nobody would prefer without them


@pytest.fixture
def settings() -> dict[str, Any]:
    return {"reservedResources": {"cpu": 1}, "agent": {"podResourceAPI": True}}


@pytest.fixture(scope="module")
def cards(node: Node) -> Iterator[DevicePlugin]:
    """A device plugin of two cards, which the node offers."""
    plugin = DevicePlugin(CARDS)
    with plugin.serving(node.machine.folder / "var/lib/kubelet/device-plugins", CARD):

        def offered() -> str:
            found = node.cluster.asked("GET", f"/api/v1/nodes/{NAME}")["status"]["allocatable"]
            return str(found.get(CARD))

        node.cluster.until(lambda: offered() == str(len(CARDS)), "the node offers the cards")
        yield plugin


def of_numa_node(node: Node, number: int) -> CPUSet:
    assert node.machine.hardware is not None
    listed = node.machine.hardware / f"sys/devices/system/node/node{number}/cpulist"
    return CPUSet.parse(listed.read_text())


def test_containers_run_beside_the_devices_that_the_kubelet_assigned(
    node: Node, daemon: Daemon, cards: DevicePlugin
) -> None:
    for name in ("one", "two"):
        limits = {"cpu": "2", "memory": "64Mi", CARD: "1"}
        node.start(pod(name, {"main": {"limits": limits}}))
        ((assigned,),) = cards.assigned[-1:]
        cpus = node.cpuset(name, "main").cpus
        assert len(cpus) == 2
        assert cpus <= of_numa_node(node, CARDS[assigned])
        assert CARD in daemon.ask("explain", f"default/{name}/main").stdout
    assert {*cards.assigned} == {("first",), ("second",)}


def test_a_restart_moves_whoever_started_without_the_daemon_beside_its_device_and_nobody_else(
    node: Node, daemon: Daemon, cards: DevicePlugin
) -> None:
    """The pods have new names: the kubelet still lists deleted pods for a while."""
    limits = {"cpu": "2", "memory": "64Mi", CARD: "1"}
    node.start(pod("before", {"main": {"limits": limits}}))
    had = node.cpuset("before", "main")
    daemon.kill()
    node.start(pod("meanwhile", {"main": {"limits": limits}}))
    ((assigned,),) = cards.assigned[-1:]
    daemon.start()
    beside = of_numa_node(node, CARDS[assigned])
    node.cluster.until(
        lambda: (
            len(node.cpuset("meanwhile", "main").cpus) == 2
            and node.cpuset("meanwhile", "main").cpus <= beside
        ),
        "the second has CPUs beside its card",
    )
    assert node.cpuset("before", "main") == had
