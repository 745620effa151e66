"""Having systemd keep what was written to scopes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest

from nri_policy.delivery import delivery_state, executor
from nri_policy.delivery.inputs import Written
from nri_policy.delivery.overlaps import Overlaps
from nri_policy.delivery.record import Phase
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.manifests.resources import Amounts, ResourceChange
from nri_policy.simulation.cgroups import SimulatedCgroups
from nri_policy.simulation.containers import SimulatedContainer
from tests.support.daemon import Served, pod, served
from tests.support.deliveries import change
from tests.support.patience import HANGS


class ScopedCgroups(SimulatedCgroups):
    """Cgroups of a node whose runtime has systemd make them."""

    def kept_by_systemd(self, cgroup: str) -> bool:  # noqa: ARG002 - the signature
        return True


@dataclass
class Systemd:
    """Scopes' CPUs, as long as it does not refuse."""

    refusal: str = ""
    scopes: dict[str, CPUSet] = field(default_factory=dict)
    held: bool = False  # whether the writers' lock was held by whoever asked

    def __post_init__(self) -> None:
        self.turn = asyncio.Lock()
        self.answers = asyncio.Event()  # unset: it is busy
        self.answers.set()

    async def allow(self, cgroup: str, cpus: CPUSet) -> str:
        self.held = self.turn.locked()
        await self.answers.wait()
        if not self.refusal:
            self.scopes[cgroup] = cpus
        return self.refusal


async def written(it: Served, systemd: Systemd) -> SimulatedContainer:
    """Have a container that shares be written, with this *systemd* from then on."""
    await it.start(pod("shared"))
    executor = it.daemon.executor
    while executor.state.in_flight:  # noqa: ASYNC110 - it announces itself by no event
        await asyncio.sleep(0.001)
    await it.start(pod("own", "2"))
    systemd.turn = executor.lock
    executor._scopes = systemd
    shared = it.runtime.container("shared/main")
    write(it, shared)
    return shared


def write(it: Served, container: SimulatedContainer) -> None:
    """Write its present placement again."""
    executor = it.daemon.executor
    due = executor.state.desired.placement(container.id)
    assert due is not None
    executor.apply(Written(container_id=container.id, placement=due, cpus=container.cpus))


async def test_systemd_keeps_what_was_written_while_nobody_else_writes(tmp_path: Path) -> None:
    async with served(tmp_path, cgroups=ScopedCgroups) as it:
        systemd = Systemd()
        shared = await written(it, systemd)
        await it.daemon.executor.persist()
        assert systemd.scopes == {shared.message.linux.cgroups_path: shared.cpus}
        assert systemd.held
        assert not it.daemon.executor.state.volatile


async def test_a_systemd_that_is_busy_holds_up_no_write_and_is_asked_again_about_it(
    tmp_path: Path,
) -> None:
    async with served(tmp_path, "package:1 numa:1 core:8 pu:1", cgroups=ScopedCgroups) as it:
        systemd = Systemd()
        systemd.answers.clear()
        shared = await written(it, systemd)
        while not systemd.held:  # noqa: ASYNC110 - it announces itself by no event
            await asyncio.sleep(0.001)
        had = shared.cpus
        await it.start(pod("new", "1"))
        assert shared.cpus == had - it.runtime.container("new/main").cpus
        systemd.answers.set()
        while it.daemon.executor.state.volatile:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        assert systemd.scopes == {shared.message.linux.cgroups_path: shared.cpus}


async def test_systemd_is_not_asked_about_a_container_that_is_about_to_start(
    tmp_path: Path,
) -> None:
    """It would take runc's device program away while runc attaches it: the start would fail."""
    async with served(tmp_path, cgroups=ScopedCgroups) as it:
        systemd, executor = Systemd(), it.daemon.executor
        shared = await written(it, systemd)
        change(executor, shared.id, phase=Phase.CREATED)
        await executor.persist()
        assert (systemd.scopes, [*executor.state.volatile]) == ({}, [shared.id])
        change(executor, shared.id, phase=Phase.RUNNING)
        await executor.persist()
        assert systemd.scopes == {shared.message.linux.cgroups_path: shared.cpus}


async def test_what_systemd_does_not_keep_is_said_and_stays_first(tmp_path: Path) -> None:
    async with served(tmp_path, cgroups=ScopedCgroups) as it:
        systemd, executor = Systemd(refusal="Access denied"), it.daemon.executor
        shared = await written(it, systemd)
        await executor.persist()
        assert executor.scope_trouble == "Access denied"
        assert [*executor.state.volatile] == [shared.id]
        systemd.refusal = ""
        await executor.persist()
        assert executor.scope_trouble == ""
        assert not executor.state.volatile


async def test_what_systemd_does_not_keep_holds_up_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery_state, "RETRY_SCOPE", 1e6)
    async with served(tmp_path, cgroups=ScopedCgroups) as it:
        systemd, executor = Systemd(refusal="Access denied"), it.daemon.executor
        shared = await written(it, systemd)
        while not executor.scope_trouble:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        systemd.refusal = ""
        write(it, shared)
        while executor.state.volatile:  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def test_a_cgroup_of_no_scope_lasts_by_itself(tmp_path: Path) -> None:
    async with served(tmp_path, cgroups=SimulatedCgroups) as it:
        systemd = Systemd()
        await written(it, systemd)
        await it.daemon.executor.persist()
        assert systemd.scopes == {}
        assert not it.daemon.executor.state.volatile


@asynccontextmanager
async def beside_undone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cgroups: type[SimulatedCgroups]
) -> AsyncIterator[tuple[Served, SimulatedContainer, SimulatedContainer, CPUSet]]:
    """Yield a container that shares, beside one with a CPU of its own that is about to start.

    And the CPUs that systemd gives the first again; it is not asked to keep others.
    """
    monkeypatch.setattr(executor, "MAX_WAIT", HANGS)
    monkeypatch.setattr(Overlaps, "look", AsyncMock(return_value=1e6))
    async with served(tmp_path, "package:1 numa:1 core:8 pu:1", cgroups=cgroups) as it:
        deliveries = it.daemon.executor
        deliveries.persist = AsyncMock()  # type: ignore[method-assign]  # systemd is not asked yet
        shared = await written(it, Systemd())
        had = shared.cpus
        new = await it.runtime.run_pod(pod("new", "1"))
        own = await it.runtime.create_container(new, "main")
        while deliveries.state.shrink():  # noqa: ASYNC110 - it announces itself by no event
            await asyncio.sleep(0.001)
        assert had - shared.cpus == own.cpus
        yield it, shared, own, had


@pytest.mark.parametrize("cgroups", [ScopedCgroups, SimulatedCgroups])
async def test_a_start_on_cpus_of_its_own_finds_what_systemd_has_undone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cgroups: type[SimulatedCgroups]
) -> None:
    """Only there: where systemd keeps no cpuset, what is written stays."""
    async with beside_undone(tmp_path, monkeypatch, cgroups) as (it, shared, own, had):
        shared.write_cpus(had, cause="systemd")
        await it.runtime.start_container(own)
        assert bool(shared.cpus & own.cpus) is (cgroups is SimulatedCgroups)


async def test_a_resize_on_cpus_of_its_own_finds_what_systemd_has_undone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = list[CPUSet]()
    async with beside_undone(tmp_path, monkeypatch, ScopedCgroups) as (it, shared, own, had):
        await it.runtime.start_container(own)
        take = it.daemon.plugin._answers.take

        def answered(*arguments: Any, **options: Any) -> Any:
            seen.append(shared.cpus & own.cpus)
            return take(*arguments, **options)

        monkeypatch.setattr(it.daemon.plugin._answers, "take", answered)
        shared.write_cpus(had, cause="systemd")
        amounts = Amounts(memory=2 << 30)
        await it.runtime.resize(own.pod, "main", ResourceChange(requests=amounts, limits=amounts))
    assert not seen[-1]
