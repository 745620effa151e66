"""RDT classes end to end: a daemon, a tuner, and a resctrl that is as strict as the kernel's."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from nri_policy.classes import Equipment
from nri_policy.daemon.tuner_link import check_hardware
from nri_policy.hardware.resctrl import resctrl_of
from nri_policy.plugin.sources import Sources
from nri_policy.pools.capacity import CapacityError
from nri_policy.tuning.decision import ItemState
from tests.support import nodes
from tests.support.daemon import Served, pod
from tests.support.fake_resctrl import FakeGroups, FakeResctrl
from tests.support.patience import HANGS
from tests.support.tunables import TunedHost

KEY = "rdtclass.resource-policy.nri.io/pod"


def rdt(gold: str = "60%", **fields: Any) -> dict[str, Any]:
    """Return settings with a partition of 12 of 20 ways, and one of 8."""
    shares = {"high": ("60%", {"gold": {"l3Allocation": {"all": {"unified": gold}}}})}
    shares["low"] = ("40%", {"bronze": {}})
    partitions = {
        name: {"l3Allocation": {"all": {"unified": share}}, "classes": classes}
        for name, (share, classes) in shares.items()
    }
    return {"rdt": {"enable": True, "partitions": partitions, **fields}}


class Host(TunedHost):
    """A host with resctrl and a tuner."""

    def __init__(self, folder: Path, **features: Any) -> None:
        self.resctrl = FakeResctrl(folder, **({"caches": {"L3": 20}, "ids": [0]} | features))
        super().__init__(folder, FakeGroups(folder, self.resctrl))

    def equipment(self) -> Equipment:
        found = resctrl_of(self.folder)
        assert found is not None
        return Equipment(rdt_groups=found.existing)

    def schemata(self) -> dict[str, str]:
        """Return what groups have, by name."""
        return {
            path.parent.name: path.read_text().split("\n")[0]
            for path in self.resctrl.top.glob("*/schemata")
        }

    def run(self, control: dict[str, Any]) -> AbstractAsyncContextManager[Served]:
        """Return a daemon with the settings `control`, for an `async with`."""
        sources = Sources(equipment=self.equipment)
        return self.serving(sources=sources, listening=False, control=control)


@pytest.fixture(name="host")
def _host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def run(test: Callable[[], Coroutine[None, None, None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), HANGS))


def test_groups_are_made_for_classes_and_removed_with_them(
    host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    """The peer leaves its groups behind (RDT F5)."""
    host.resctrl.mkdir("theirs")  # the peer removes such a group

    async def test() -> None:
        async with host.run(rdt()) as up:
            link = up.daemon.tuner_link
            link.inform()
            assert host.schemata() == {
                "gold": "L3:0=ff00",  # 8 of the upper 12 ways
                "bronze": "L3:0=ff",
                "theirs": "L3:0=fffff",
            }
            assert {each.state for each in link.tunables.values()} == {ItemState.OK}
            await up.daemon.events.equip()
            up.runtime.machine.rdt_groups = frozenset({"gold", "bronze"})
            assert not await up.start(pod("web", annotations={KEY: "gold"}))
            process = up.runtime.container("web/main").process
            assert process is not None
            assert process.rdt_group == "gold"
            host.resctrl.tasks = {7: "gold"}
            (host.resctrl.top / "gold/tasks").write_text("7\n")
            with caplog.at_level(logging.INFO):
                link.release()
            assert host.schemata().keys() == {"theirs"}
            assert host.resctrl.tasks == {7: ""}
            fields = [each.__dict__ for each in caplog.records if each.msg == "group-removed"]
            assert {each["group"]: each["tasks"] for each in fields} == {"gold": 1, "bronze": 0}

    run(test)


def test_new_shares_count_at_once(host: Host) -> None:
    async def test() -> None:
        async with host.run(rdt("100%")) as up:
            link = up.daemon.tuner_link
            link.inform()
            assert host.schemata()["gold"] == "L3:0=fff00"
            settings = nodes.settings(control=rdt("50%"))
            await up.daemon.events.reconfigure(settings=settings)
            link.inform()
            assert host.schemata()["gold"] == "L3:0=3f00"
            off = nodes.settings(control=rdt(enable=False))
            await up.daemon.events.reconfigure(settings=off)
            link.inform()
            assert not host.schemata(), "with the peer they stay"

    run(test)


@pytest.mark.parametrize("force", [False, True])
def test_a_group_of_somebody_else_is_taken_over_only_by_force(host: Host, force: bool) -> None:
    host.resctrl.mkdir("gold")
    host.resctrl.write("gold/schemata", b"L3:0=1\n")

    async def test() -> None:
        async with host.run(rdt("100%", force=force)) as up:
            link = up.daemon.tuner_link
            for _ in range(2):  # it is somebody else's the second time, too
                link.inform()
                assert host.schemata()["gold"] == ("L3:0=fff00" if force else "L3:0=1")
            told = "groups of resctrl that exist already, and are not changed: gold"
            assert any(told in each for each in link.problems()) is not force
            link.release()
            assert host.schemata() == {"gold": "L3:0=1"}, "as it was"

    run(test)


def test_groups_of_others_stay_with_their_tasks_even_by_force(host: Host) -> None:
    """The peer removes every group that its settings do not have (RDT F1)."""
    for name in ("empty", "busy"):  # of the runtime, of an exporter: no settings name them
        host.resctrl.mkdir(name)
    host.resctrl.write("busy/schemata", b"L3:0=3\n")
    host.resctrl.tasks = {7: "busy"}
    before = host.schemata()

    async def test() -> None:
        async with host.run(rdt("100%", force=True)) as up:
            link = up.daemon.tuner_link
            link.inform()
            assert before.items() < host.schemata().items()
            await up.daemon.events.reconfigure(settings=nodes.settings(control={}))
            link.inform()
            assert host.schemata() == before
            assert host.resctrl.tasks == {7: "busy"}

    run(test)


def test_what_the_kernel_says_is_quoted(tmp_path: Path) -> None:
    host = Host(tmp_path, closids=3)
    host.resctrl.mkdir("theirs")

    async def test() -> None:
        async with host.run(rdt()) as up:
            link = up.daemon.tuner_link
            link.inform()
            (each,) = (each for each in link.tunables.values() if each.state is ItemState.PENDING)
            assert each.why == "ENOSPC No space left on device (Out of CLOSIDs)"
            host.resctrl.rmdir("theirs")
            host.time += 1
            link.inform()
            assert {each.state for each in link.tunables.values()} == {ItemState.OK}

    run(test)


@pytest.mark.parametrize("engine_refuses", [False, True])
def test_settings_that_are_refused_leave_no_group_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine_refuses: bool
) -> None:
    """The peer goes group by group, with no way back (RDT F2)."""
    host = Host(tmp_path, closids=4 if engine_refuses else 3)
    host.resctrl.mkdir("theirs")  # so there is room for one group, or for two
    new = nodes.settings(control=rdt())

    async def refuse(**_: Any) -> bool:
        assert host.schemata().keys() == {"theirs", "gold", "bronze"}
        raise CapacityError("a container has come meanwhile")

    async def test() -> None:
        async with host.serving(listening=False, load=lambda: new) as up:
            up.daemon.tuner_link.inform()
            if engine_refuses:
                monkeypatch.setattr(up.daemon.events, "reconfigure", refuse)
            result = await up.daemon.reloads.reload()
            assert not result.accepted
            assert host.schemata().keys() == {"theirs"}
            assert not host.tuner.list_tunables()
            if not engine_refuses:
                why = "control.rdt: resctrl/gold/schemata cannot be 'L3:0=ff00"
                assert result.reason.startswith(why)
                assert "ENOSPC No space left on device (Out of CLOSIDs)" in result.reason
                host.resctrl.rmdir("theirs")
                assert (await up.daemon.reloads.reload()).accepted
                assert host.schemata().keys() == {"gold", "bronze"}

    run(test)


def test_a_group_whose_shares_are_refused_is_not_left_behind(host: Host) -> None:
    host.resctrl.exclusive = {""}  # all of the cache

    async def test() -> None:
        async with host.run(rdt()) as up:
            link = up.daemon.tuner_link
            link.inform()
            assert not host.schemata()
            whys = {each.why for each in link.tunables.values()}
            assert whys == {"EINVAL Invalid argument (Overlaps with exclusive group)"}

    run(test)


def test_a_host_without_resctrl_runs_without(tmp_path: Path) -> None:
    """The peer does not start there (RDT F3)."""
    settings = nodes.settings(control=rdt())
    (notice,) = check_hardware(settings, tmp_path, nodes.machine())
    assert "resctrl is not mounted" in notice
    FakeResctrl(tmp_path, caches={"L3": 20}, closids=2)
    with pytest.raises(CapacityError, match=r"2 classes: this machine can have 1 groups"):
        check_hardware(settings, tmp_path, nodes.machine())
