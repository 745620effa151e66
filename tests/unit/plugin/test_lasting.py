"""Having systemd keep what was written to scopes."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from nri_policy.foundation.cpuset import CPUSet
from nri_policy.plugin import lasting as lasting_module
from nri_policy.plugin.confirmation import Phase
from nri_policy.plugin.lasting import Lasting
from nri_policy.simulation.cgroups import SimulatedCgroups
from tests.support.daemon import Served, pod, served


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

    async def allow(self, cgroup: str, cpus: CPUSet) -> str:
        self.held = self.turn.locked()
        if not self.refusal:
            self.scopes[cgroup] = cpus
        return self.refusal


def lasting(it: Served, systemd: Systemd) -> Lasting:
    return Lasting(
        it.daemon.node,
        it.daemon._update_queue,
        cgroups=it.daemon._cgroups,
        scopes=systemd,
        turn=systemd.turn,
    )


async def written(it: Served) -> None:
    """Have a container that shares written."""
    await it.start(pod("shared"))
    queue = it.daemon._update_queue
    while queue.confirmations.sent:  # noqa: ASYNC110 - it announces itself by no event
        await asyncio.sleep(0.001)
    await it.start(pod("own", "2"))
    shared = it.runtime.container("shared/main")
    (change,) = [it.daemon.node.view.placement(shared.id)]
    assert change is not None
    queue.ledger.written(shared.id, change, shared.cpus, 1.0)


async def test_systemd_keeps_what_was_written_while_nobody_else_writes(tmp_path: Path) -> None:
    async with served(tmp_path, cgroups=ScopedCgroups) as it:
        await written(it)
        systemd, ledger = Systemd(), it.daemon._update_queue.ledger
        await lasting(it, systemd).keep()
        shared = it.runtime.container("shared/main")
        assert systemd.scopes == {shared.message.linux.cgroups_path: shared.cpus}
        assert systemd.held
        assert not ledger.fleeting


async def test_systemd_is_not_asked_about_a_container_that_is_about_to_start(
    tmp_path: Path,
) -> None:
    """It would take runc's device program away while runc attaches it: the start would fail."""
    async with served(tmp_path, cgroups=ScopedCgroups) as it:
        await written(it)
        systemd, queue = Systemd(), it.daemon._update_queue
        shared = it.runtime.container("shared/main")
        queue.confirmations.enter(shared.id, Phase.CREATED)
        await lasting(it, systemd).keep()
        assert (systemd.scopes, [*queue.ledger.fleeting]) == ({}, [shared.id])
        queue.confirmations.enter(shared.id, Phase.RUNNING)
        await lasting(it, systemd).keep()
        assert systemd.scopes == {shared.message.linux.cgroups_path: shared.cpus}


async def test_what_systemd_does_not_keep_is_said_and_stays_first(tmp_path: Path) -> None:
    async with served(tmp_path, cgroups=ScopedCgroups) as it:
        await written(it)
        systemd, ledger = Systemd(refusal="Access denied"), it.daemon._update_queue.ledger
        keeping = lasting(it, systemd)
        await keeping.keep()
        shared = it.runtime.container("shared/main")
        assert keeping.trouble == "Access denied"
        assert [*ledger.fleeting] == [shared.id]
        systemd.refusal = ""
        await keeping.keep()
        assert keeping.trouble == ""
        assert not ledger.fleeting


async def test_what_systemd_does_not_keep_holds_up_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lasting_module, "RETRY", 1e6)
    async with served(tmp_path, cgroups=ScopedCgroups) as it:
        await written(it)
        systemd, ledger = Systemd(refusal="Access denied"), it.daemon._update_queue.ledger
        keeping = lasting(it, systemd)
        running = asyncio.create_task(keeping.run())
        while not keeping.trouble:
            ledger.fresh.set()  # which the daemon's own hears of, too
            await asyncio.sleep(0.001)
        systemd.refusal = ""
        shared = it.runtime.container("shared/main")
        change = it.daemon.node.view.placement(shared.id)
        assert change is not None
        ledger.written(shared.id, change, shared.cpus, 2.0)
        while ledger.fleeting:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        running.cancel()


async def test_a_cgroup_of_no_scope_lasts_by_itself(tmp_path: Path) -> None:
    async with served(tmp_path, cgroups=SimulatedCgroups) as it:
        await written(it)
        systemd = Systemd()
        await lasting(it, systemd).keep()
        assert systemd.scopes == {}
        assert not it.daemon._update_queue.ledger.fleeting
