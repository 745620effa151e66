"""The simulated node answers questions as a real one does."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from nri_policy.control.client import connected
from nri_policy.daemon import tuner_link
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.hardware.interrupts import Interrupt, Interrupts, read_interrupts
from nri_policy.report import TunableChange, WhatIfReport
from nri_policy.simulation.node import SimulatedNode
from nri_policy.simulation.playback import Playback
from nri_policy.simulation.scenario import read_step
from tests.support import nodes

GPU = "v.com/gpu"


def asking(name: str, limits: Mapping[str, Any] | None = None) -> dict[str, Any]:
    limits = limits or {"cpu": 1, "memory": "1Mi", GPU: 1}
    container = {"name": "main", "resources": {"limits": limits}}
    metadata = {"name": name}
    spec = {"containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


@pytest.mark.parametrize("asked", [True, False])
async def test_what_if_counts_the_devices_that_pods_have_left(asked: bool, tmp_path: Path) -> None:
    spec = {"reservedResources": {"cpu": 1}, "agent": {"podResourceAPI": asked}}
    steps = [
        {"settings": spec},
        {"devices": {GPU: [{"id": "a", "numa": 1}]}},
        {"apply": asking("first")},
    ]
    socket = tmp_path / "control.sock"

    def ask() -> WhatIfReport:
        with connected(socket) as client:
            return client.what_if(json.dumps(asking("second")), 1)

    async with AsyncExitStack() as stack:
        node = SimulatedNode(nodes.machine(nodes.SMALL), None, tmp_path, stack)
        await stack.enter_async_context(node.runtime)
        read = [read_step(step, folder=tmp_path) for step in steps]
        assert [each.error async for each in Playback(node.runtime, node).play(read)] == [None] * 3
        assert node.daemon is not None
        await stack.enter_async_context(node.daemon.listening(socket))
        report = await asyncio.to_thread(ask)
    assert report.fits is not asked
    assert [GPU in each for each in report.warnings] == ([] if asked else [True])


async def test_wrong_settings_are_said_to_be_those_of_the_step(tmp_path: Path) -> None:
    step = read_step({"settings": {"reservedResource": {"cpu": 1}}}, folder=tmp_path)
    async with AsyncExitStack() as stack:
        node = SimulatedNode(nodes.machine(nodes.SMALL), None, tmp_path, stack)
        await stack.enter_async_context(node.runtime)
        (result,) = [each async for each in Playback(node.runtime, node).play([step])]
    assert result.error is not None
    assert result.error.startswith("the settings of this step: reservedResource: unknown field")
    assert "did you mean 'reservedResources'?" in result.error


@pytest.mark.parametrize(("read", "exact"), [("auto", True), ("off", False)])
async def test_what_containers_ask_for_is_in_their_manifests_unless_nobody_reads_pods(
    tmp_path: Path, read: str, exact: bool
) -> None:
    asked = 1000 << 20
    resources = {"requests": {"cpu": "500m", "memory": asked}, "limits": {"memory": 2 * asked}}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}}
    spec = {"containers": [{"name": "app", "resources": resources}]}
    steps = [
        {"settings": {"reservedResources": {"cpu": "cpuset:0"}, "agent": {"podSpecs": read}}},
        {"apply": {**pod, "spec": spec}},
    ]
    async with AsyncExitStack() as stack:
        node = SimulatedNode(nodes.machine(nodes.SMALL), None, tmp_path, stack)
        await stack.enter_async_context(node.runtime)
        played = [read_step(step, folder=tmp_path) for step in steps]
        assert [each.error async for each in Playback(node.runtime, node).play(played)] == [
            None
        ] * 2
        assert node.daemon is not None
        (placed,) = node.daemon.node.view.placed.values()
    assert (placed.request.memory == asked) is exact


async def test_a_simulated_node_has_every_group_of_resctrl(tmp_path: Path) -> None:
    """No tuner runs there that would make the groups of the settings."""
    rdt = {"enable": True, "usePodQoSAsDefaultClass": True}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}}
    steps = [
        {"settings": {"reservedResources": {"cpu": 1}, "control": {"rdt": rdt}}},
        {"apply": {**pod, "spec": {"containers": [{"name": "app"}]}}},
    ]
    async with AsyncExitStack() as stack:
        node = SimulatedNode(nodes.machine(nodes.SMALL), None, tmp_path, stack)
        await stack.enter_async_context(node.runtime)
        read = [read_step(step, folder=tmp_path) for step in steps]
        assert [each.error async for each in Playback(node.runtime, node).play(read)] == [None] * 2
        (container,) = node.runtime.containers
    assert container.message.linux.resources.rdt_class.value == "BestEffort"


async def test_a_simulated_node_has_no_interrupts_of_the_machine_below(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def preview() -> Mapping[str, TunableChange]:
        steps = [
            {"settings": {"reservedResources": {"cpu": 1}, "isolateInterrupts": "exclusive"}},
            {"apply": asking("app", {"cpu": 2, "memory": "1Mi"})},
        ]
        async with AsyncExitStack() as stack:
            node = SimulatedNode(nodes.machine(nodes.SMALL), None, tmp_path, stack)
            await stack.enter_async_context(node.runtime)
            read = [read_step(step, folder=tmp_path) for step in steps]
            playback = Playback(node.runtime, node)
            assert [each.error async for each in playback.play(read[:1])] == [None]
            assert node.daemon is not None
            before = node.daemon.node.view
            assert [each.error async for each in playback.play(read[1:])] == [None]
            return node.daemon.tuner_link.preview(before, node.daemon.node.view).changes

    below = Interrupts(each=(Interrupt(number=9, name="acpi", affinity=CPUSet.parse("0-3")),))
    monkeypatch.setattr(
        tuner_link,
        "read_interrupts",
        lambda root, _devices: below if root == Path("/") else read_interrupts(root),
    )
    assert await preview() == {}
