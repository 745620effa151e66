"""Two owners of one CPU: what the runtime loses of what it is told, and that it is made up for.

The embedded runtime loses what the real ones lose, held against them in tests/e2e/test_owners.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from nri_policy.cli.simulated_cgroups import SimulatedCgroups
from nri_policy.cpuset import CPUSet
from nri_policy.nri import telling
from nri_policy.runtime.containers import Container
from nri_policy.runtime.embedded import EmbeddedRuntime
from tests.served import Served, pod, served

ONE_POOL = "package:1 numa:1 core:4 pu:1"
RUNTIMES = pytest.mark.parametrize(
    "runtime",
    [
        ("containerd", "1.7.24"),
        ("containerd", "2.1.9"),
        ("containerd", "2.4.0"),
        ("cri-o", "1.36.3"),
    ],
)


class Gate:
    """Keeps one container where it is in its life, until it is opened."""

    def __init__(self, runtime: EmbeddedRuntime, where: str, name: str) -> None:
        self.reached, self.open = asyncio.Event(), asyncio.Event()
        self._at = where, name
        runtime.between = self

    async def __call__(self, where: str, container: Container) -> None:
        if (where, container.pod.manifest.metadata.name) == self._at:
            self.reached.set()
            await self.open.wait()


class Unwritable(SimulatedCgroups):
    """Cgroups on a file system that is mounted read-only."""

    def confine(self, cgroup: str, cpus: CPUSet) -> str:  # noqa: ARG002 - the signature
        return "Read-only file system"


def owners(it: Served) -> dict[int, list[str]]:
    """Return who runs on each CPU that is somebody's own and should have one user."""
    state = it.daemon.engine.state
    own = CPUSet.union(each.grant.exclusive for each in state.placed.values())
    using = {
        cpu: [each.key for each in it.runtime.containers if each.in_force and cpu in each.cpus]
        for cpu in own
    }
    return {cpu: users for cpu, users in using.items() if len(users) > 1}


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - what it waits for announces itself by no event
        await asyncio.sleep(0.001)


@RUNTIMES
@pytest.mark.parametrize("where", ["creating", "starting", "started"])
async def test_an_update_that_a_starting_container_loses_is_made_up_for_before_it_runs(
    where: str, runtime: tuple[str, str], tmp_path: Path
) -> None:
    async with served(
        tmp_path, ONE_POOL, cgroups=SimulatedCgroups, name=runtime[0], version=runtime[1]
    ) as it:
        gate = Gate(it.runtime, where, "slow")
        starting = asyncio.create_task(it.start(pod("slow")))
        await gate.reached.wait()
        await it.start(pod("own", "1"))
        slow, own = (it.runtime.container(f"{each}/main") for each in ("slow", "own"))
        assert len(own.cpus) == 1
        if where == "started":  # it runs, as far as anybody knows
            assert own.cpus.isdisjoint(slow.cpus)
        gate.open.set()
        await starting
        assert owners(it) == {}
        assert slow.cpus == it.daemon.engine.state.told[slow.id][0]
        await until(lambda: not it.daemon._policy.enforcement.unconfirmed)
        # and the runtime's own idea of it is put right with the next answer
        await it.start(pod("next"))
        assert CPUSet.parse(slow.message.linux.resources.cpu.cpus).isdisjoint(own.cpus)
        assert it.runtime.synchronizations == 1


@RUNTIMES
@pytest.mark.parametrize("cgroups", [None, Unwritable], ids=["unseen", "read-only"])
@pytest.mark.parametrize("where", ["creating", "starting", "started"])
async def test_where_no_cgroup_can_be_written_the_runtime_is_told_again_at_once(
    where: str,
    cgroups: type[SimulatedCgroups] | None,
    runtime: tuple[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(telling, "PATIENCE", 0.0)
    async with served(
        tmp_path, ONE_POOL, cgroups=cgroups, name=runtime[0], version=runtime[1]
    ) as it:
        gate = Gate(it.runtime, where, "slow")
        starting = asyncio.create_task(it.start(pod("slow")))
        await gate.reached.wait()
        await it.start(pod("own", "1"))
        gate.open.set()
        await starting
        await until(lambda: owners(it) == {})
        slow = it.runtime.container("slow/main")
        await until(lambda: slow.cpus == it.daemon.engine.state.told[slow.id][0])


async def test_what_is_told_counts_only_once_it_is_seen_in_force(tmp_path: Path) -> None:
    async with served(tmp_path, ONE_POOL, cgroups=SimulatedCgroups) as it:
        await it.start(pod("shared", "500m"))
        shared = it.runtime.container("shared/main")
        gate = Gate(it.runtime, "creating", "own")
        starting = asyncio.create_task(it.start(pod("own", "1")))
        await gate.reached.wait()
        assert shared.id in it.daemon._telling.confirmations.sent
        assert shared.in_force is not None
        decided, shared.in_force.cpu.cpus = shared.cpus, "1-3"  # it never got that far
        gate.open.set()
        await starting
        assert owners(it) == {}
        assert shared.cpus == decided
        await until(lambda: not it.daemon._telling.confirmations.sent)
