"""After every step of every scenario, the published zones are those of the engine's grants.

So are the CPUs set aside for containers that are not created yet, and the fingerprint of the pods
that a scheduler counts: both are computed here from the runtime's state. `test_scenarios` plays the
same scenarios for their expectations.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from nri_policy.manifests.pod import PodManifest
from nri_policy.manifests.quality_of_service import QoS
from nri_policy.nrt.fingerprint import fingerprint
from nri_policy.nrt.pending_pods import with_pending_pods
from nri_policy.report import plain
from nri_policy.simulation.containers import RuntimeState
from nri_policy.simulation.device_manager import number_devices
from nri_policy.simulation.embedded import EmbeddedRuntime
from nri_policy.simulation.node import SimulatedNode
from nri_policy.simulation.playback import Playback
from nri_policy.simulation.scenario import read_scenario
from tests.scenarios.test_scenarios import SCENARIOS, machine, source
from tests.support.topology_twin import Twin

LIVE = RuntimeState.CREATED, RuntimeState.RUNNING


def cpu_to_come(runtime: EmbeddedRuntime) -> dict[str, int]:
    """Return the milli-CPU that Guaranteed pods request for containers to come, by sandbox.

    A pod with a resized container has none: all its containers exist by then.
    """
    rest = {}
    for pod in runtime.pods:
        there = [each for each in pod.containers if each.state in LIVE]
        if any(
            update.cause == f"UpdateContainer {each.key}"
            for each in there
            for update in each.updated_by
        ):
            continue
        quota = pod.amounts.cpu.quota.value
        spec = pod.manifest.spec  # the live limits lack the quotas of exclusive containers
        limits = (spec.limit(pod.manifest.container(each.name), "cpu") for each in there)
        left = quota - 100 * sum(limits)
        if pod.ready and left > 0 and "burstable" not in pod.message.linux.cgroup_parent:
            rest[pod.id] = left // 100  # of periods of 100 ms
    return rest


def counted_pods(
    runtime: EmbeddedRuntime, started: set[str], *, devices: bool
) -> set[tuple[str, str]]:
    """Return the pods that schedulers count; *started*: sandboxes with a container that has run.

    Schedulers count Running pods (not Pending, not ended) that are Guaranteed, or have *devices*.
    """
    return {
        (pod.manifest.metadata.namespace, pod.manifest.metadata.name)
        for pod in runtime.pods
        if pod.ready
        and pod.id in started
        and (pod.manifest.qos is QoS.GUARANTEED or (devices and _has_devices(pod.manifest)))
    }


def _has_devices(manifest: PodManifest) -> bool:
    return any(
        "/" in resource
        for container in manifest.spec.every_container
        for resource in container.resources.limits
    )


async def check_each_step(path: Path, folder: Path) -> int:
    """Play a scenario and check what is published after each step; return the checked steps."""
    checked, before = 0, None
    started: set[str] = set()
    async with AsyncExitStack() as stack:
        devices = number_devices(source(path.parent).devices())
        node = SimulatedNode(machine(path.parent), None, folder, stack, devices)
        await stack.enter_async_context(node.runtime)
        async for _ in Playback(node.runtime, node).play(read_scenario(path)):
            if node.daemon is None:
                continue
            topology: Any = plain(await node.daemon.topology.document())
            if node.daemon is not before:  # it knows the pods that run of their containers
                started &= {each.pod.id for each in node.runtime.containers}
                before = node.daemon
            for container in node.runtime.containers:
                if container.state is RuntimeState.RUNNING:
                    started.add(container.pod.id)
            attributes = {each["name"]: each["value"] for each in topology["attributes"]}
            pods = counted_pods(
                node.runtime,
                started,
                devices=node.daemon.node.view.layout.settings.agent.pod_resource_api,
            )
            assert attributes["nodeTopologyPodsFingerprint"] == fingerprint(pods)
            view, _ = with_pending_pods(node.daemon.node)
            aside = {
                container: placed.request.milli
                for container, placed in view.placed.items()
                if container not in node.daemon.node.view.placed
            }
            coming = cpu_to_come(node.runtime)
            assert aside.items() <= coming.items()
            for pod in node.runtime.pods:
                if pod.id in coming.keys() - aside - view.rooms.keys():
                    # the pod has no room, so none of its containers runs
                    assert not any(each.state in LIVE for each in pod.containers)
            Twin(view).check(topology["zones"])
            checked += 1
    return checked


@pytest.mark.parametrize(
    "path", SCENARIOS, ids=[f"{path.parent.name}/{path.stem}" for path in SCENARIOS]
)
def test_published_zones_match_the_grants(path: Path, tmp_path: Path) -> None:
    assert asyncio.run(check_each_step(path, tmp_path)) or path.stem.endswith("wrong")
