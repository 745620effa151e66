"""The engine's rules as scenarios: each YAML file plays on the machine that its folder describes.

`machine.txt` in a folder is a synthetic specification, or the name of a capture beside it. Every
expectation in a scenario is derived from the spec (`§` is a section of placement.md), in a comment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from functools import cache
from pathlib import Path
from types import MappingProxyType

import pytest

from nri_policy.cli.options import Source
from nri_policy.hardware.machine import Machine
from nri_policy.simulation.device_manager import number_devices
from nri_policy.simulation.node import SimulatedNode
from nri_policy.simulation.playback import Playback, Result
from nri_policy.simulation.scenario import Apply, Expect, Step, read_scenario, read_step
from nri_policy.store.folder import FILE
from tests.support import stores

HERE = Path(__file__).parent
SCENARIOS = sorted(HERE.glob("*/*.yaml"))


def source(folder: Path) -> Source:
    """Return where the machine of a folder of scenarios is read from."""
    words = folder.joinpath("machine.txt").read_text().strip()
    if words.endswith(".tar.xz"):
        return Source(capture=folder / words)
    return Source(synthetic=words)


@cache
def machine(folder: Path) -> Machine:
    """Return the machine of a folder of scenarios."""
    return source(folder).machine()


async def played(
    machine: Machine,
    steps: Sequence[Step],
    folder: Path,
    devices: Mapping[str, Sequence[int]] = MappingProxyType({}),
) -> list[Result]:
    """Return the results of *steps* on *machine*, with devices on these NUMA nodes."""
    async with AsyncExitStack() as stack:
        node = SimulatedNode(machine, None, folder, stack, number_devices(devices))
        await stack.enter_async_context(node.runtime)
        return [result async for result in Playback(node.runtime, node).play(steps)]


def complaints(steps: Sequence[Step], results: Sequence[Result]) -> list[str]:
    """Return what was not as expected, in words; a failure must be expected in the next step."""
    found = []
    for step, result, after in zip(steps, results, [*steps[1:], None], strict=True):
        found += [f"step {result.step}: {mismatch}" for mismatch in result.mismatches]
        if result.error and not _expected(step, result, after):
            found.append(f"step {result.step}: {result.error}")
    return found


def _expected(step: Step, result: Result, after: Step | None) -> bool:
    """Whether *after* expects the failure of *step*: of every container that did not start."""
    if not isinstance(after, Expect):
        return False
    if not isinstance(step, Apply):
        return after.error is not None
    started = {pod.key for pod in step.pods}
    failed = {
        key
        for key, container in result.containers.items()
        if container.error and key.rpartition("/")[0] in started
    }
    expecting = {
        name if name.count("/") == 2 else f"default/{name}"
        for name, fields in after.containers.items()
        if fields and fields.get("error")
    }
    return bool(failed) and failed <= expecting


@pytest.mark.parametrize(
    "path", SCENARIOS, ids=[f"{path.parent.name}/{path.stem}" for path in SCENARIOS]
)
def test_a_scenario_goes_as_the_spec_says(path: Path, tmp_path: Path) -> None:
    steps = read_scenario(path)
    assert any(isinstance(step, Expect) for step in steps), "nothing is expected"
    devices = source(path.parent).devices()
    results = asyncio.run(played(machine(path.parent), steps, tmp_path, devices))
    wrong = complaints(steps, results)
    assert not wrong, "\n".join([f"{path}:", *wrong])
    again = stores.replayed(tmp_path / "store" / FILE)
    assert again.state.placed, "nothing was replayed"


def test_a_failure_is_a_complaint_unless_the_next_step_expects_it(tmp_path: Path) -> None:
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}}
    huge = {"limits": {"cpu": 99, "memory": "4Mi"}}
    spec = {"containers": [{"name": name, "resources": huge} for name in ("a", "b")]}
    steps = [
        read_step(step, folder=tmp_path)
        for step in (
            {"settings": {"reservedResources": {"cpu": 1}}},
            {"apply": {**pod, "spec": spec}},
            {"expect": {"p/a": {"error": "84 CPUs short"}}},
            {"delete": "nobody"},
            {"delete": "nobody"},
            {"expect": {"error": "nobody", "p/b": None}},
        )
    ]
    results = asyncio.run(played(machine(HERE / "small"), steps, tmp_path))
    found = complaints(steps, results)
    assert [complaint.partition(":")[0] for complaint in found] == ["step 2", "step 4", "step 6"]
    assert found[0].count("84 CPUs short") == 2
    assert found[1:] == [
        "step 4: there is no nobody",
        "step 6: default/p/b: want 'absent', got 'there'",
    ]
