"""The devices of this node, by what the API server has of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from nri_policy.dra.objects import DeviceLocation
from nri_policy.dra.slices import UNAVAILABLE, UNWANTED, Slices
from nri_policy.foundation.clock import Clock
from nri_policy.kube import list_watch
from nri_policy.kube.client import Client
from nri_policy.kube.connection import access
from tests.support.apiserver import GARBLED, Answer, APIServer
from tests.support.resources import slice_

from .waiting import until

DRIVER = "gpu.example.com"
PLURAL = "resourceslices"


class Pauses:
    """Sleeps of which each lasts until the test ends one."""

    def __init__(self) -> None:
        self.slept: list[float] = []
        self._ended = asyncio.Semaphore(0)

    async def sleep(self, seconds: float) -> None:
        if seconds:  # no pause between two watches
            self.slept.append(seconds)
            await self._ended.acquire()

    async def end(self, number: int = 1) -> None:
        """End so many, and wait for the next one to begin."""
        before = len(self.slept)
        for _ in range(number):
            self._ended.release()
        await until(lambda: len(self.slept) == before + number)

    async def begun(self) -> None:
        """Wait for the first one."""
        await until(lambda: self.slept != [])

    def end_last(self) -> None:
        self._ended.release()


@asynccontextmanager
async def following(
    folder: Path, *, wanted: Callable[[], bool] = lambda: True
) -> AsyncIterator[tuple[Slices, APIServer, Pauses]]:
    async with APIServer(folder) as server:
        server.resources.compacted = 0
        connect = access(server.kubeconfig)
        assert connect is not None
        client, pauses = Client(connect), Pauses()
        slices = Slices(
            client, "node-a", clock=Clock(sleep=pauses.sleep), delay=lambda failures: failures
        )
        task: list[asyncio.Task[None]] = []

        async def run() -> None:
            await slices.run(wanted)

        task.append(asyncio.create_task(run()))
        try:
            yield slices, server, pauses
        finally:
            task[0].cancel()
            await asyncio.wait(task)
            await client.close()


def at(slices: Slices, device: str, pool: str = "node-a") -> int | None:
    found = slices.where(DRIVER, pool, device)
    return None if found is None else found.node


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(list_watch, "_PAUSE", 0)


async def test_only_the_slices_of_this_node_are_asked_for(tmp_path: Path) -> None:
    async with following(tmp_path) as (slices, server, _):
        await slices.settled.wait()
        await server.resources.put(PLURAL, slice_("other", {"x": {"numa": 0}}, node="node-b"))
        await server.resources.put(PLURAL, slice_("own", {"gpu-0": {"numa": 1}}))
        await until(lambda: at(slices, "gpu-0") == 1)
        assert slices.available
        assert slices.where(DRIVER, "node-b", "x") is None
        asked = {each.query.get("fieldSelector") for each in server.requests}
        assert asked == {"spec.nodeName=node-a"}
        assert not server.writes()


async def test_devices_come_change_and_vanish(tmp_path: Path) -> None:
    async with following(tmp_path) as (slices, server, _):
        await slices.settled.wait()
        await server.resources.put(PLURAL, slice_("own", {"gpu-0": {"numa": 1}}))
        await until(lambda: at(slices, "gpu-0") == 1)
        await server.resources.put(PLURAL, slice_("own", {"gpu-1": {"numa": 0}}, generation=2))
        await until(lambda: at(slices, "gpu-1") == 0)
        assert at(slices, "gpu-0") is None
        await server.resources.delete(PLURAL, "own")
        await until(lambda: at(slices, "gpu-1") is None)


async def test_the_newest_generation_of_a_pool_counts_and_older_ones_until_it_is_complete(
    tmp_path: Path,
) -> None:
    async with following(tmp_path) as (slices, server, _):
        await slices.settled.wait()
        old = slice_("a", {"gpu-0": {"numa": 0}, "gpu-1": {"numa": 0}, "gone": {"numa": 0}})
        await server.resources.put(PLURAL, old)
        new = slice_("b", {"gpu-0": {"numa": 1}}, generation=2, of=2)
        await server.resources.put(PLURAL, new)
        await until(lambda: at(slices, "gpu-0") == 1)
        assert (at(slices, "gpu-1"), at(slices, "gone")) == (0, 0)
        rest = slice_("c", {"gpu-1": {"numa": 1}}, generation=2, of=2)
        await server.resources.put(PLURAL, rest)
        await until(lambda: at(slices, "gpu-1") == 1)
        assert at(slices, "gone") is None
        other = slice_("d", {"gone": {"numa": 3}}, pool="other", generation=1)
        await server.resources.put(PLURAL, other)
        await until(lambda: at(slices, "gone", "other") == 3)
        assert at(slices, "gone") is None, "pools are apart"


async def test_a_watch_from_too_long_ago_begins_with_a_list_again(tmp_path: Path) -> None:
    async with following(tmp_path) as (slices, server, pauses):
        await slices.settled.wait()
        await server.resources.put(PLURAL, slice_("own", {"gpu-0": {"numa": 1}}))
        await until(lambda: at(slices, "gpu-0") == 1)
        server.resources.compacted = 1 << 60
        await server.resources.delete(PLURAL, "own")
        await until(lambda: at(slices, "gpu-0") is None)
        server.resources.compacted = 0
        assert not pauses.slept, "it is no failure"


async def test_a_server_that_is_away_is_asked_again_and_what_was_known_stays(
    tmp_path: Path,
) -> None:
    async with following(tmp_path) as (slices, server, pauses):
        await slices.settled.wait()
        await server.resources.put(PLURAL, slice_("own", {"gpu-0": {"numa": 1}}))
        await until(lambda: at(slices, "gpu-0") == 1)
        await server.stop()
        await pauses.begun()
        await pauses.end(2)
        assert at(slices, "gpu-0") == 1
        assert slices.available
        assert pauses.slept == [1, 2, 3], "the pause grows"
        await server.resources.delete(PLURAL, "own")
        await server.start()
        pauses.end_last()
        await until(lambda: at(slices, "gpu-0") is None)


@pytest.mark.parametrize(
    ("refusal", "level", "text"),
    [
        ("forbidden", logging.WARNING, "configs/kubernetes/rbac.yaml has what is needed"),
        ("older", logging.INFO, "the cluster has no resource.k8s.io/v1"),
    ],
)
async def test_without_permission_or_api_one_line_says_so_and_it_is_asked_again_hourly(
    refusal: str, level: int, text: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "nri_policy.dra")
    async with following(tmp_path) as (slices, server, pauses):
        if refusal == "forbidden":
            server.forbidden = {"list"}
        else:
            server.resources.versions = set()
        await slices.settled.wait()
        await pauses.begun()
        await pauses.end(6)
        assert not slices.available
        assert pauses.slept == [1, 2, 3, 4, 5, UNAVAILABLE, UNAVAILABLE]
        (record,) = caplog.records
        assert record.levelno == level
        assert text in vars(record)["reason"]
        server.forbidden, server.resources.versions = set(), {"v1"}
        await server.resources.put(PLURAL, slice_("own", {"gpu-0": {"numa": 1}}))
        pauses.end_last()
        await until(lambda: at(slices, "gpu-0") == 1)
        assert slices.available


async def test_a_server_that_refuses_for_a_moment_changes_nothing(tmp_path: Path) -> None:
    async with following(tmp_path) as (slices, server, pauses):
        await slices.settled.wait()
        await server.resources.put(PLURAL, slice_("own", {"gpu-0": {"numa": 1}}))
        await until(lambda: at(slices, "gpu-0") == 1)
        server.forbidden = {"list", "watch"}
        await server.stop()
        await server.start()
        await pauses.begun()
        await pauses.end(3)
        assert (at(slices, "gpu-0"), slices.available) == (1, True)
        server.forbidden = set()
        pauses.end_last()
        await server.resources.put(PLURAL, slice_("own", {"gpu-0": {"numa": 2}}))
        await until(lambda: at(slices, "gpu-0") == 2)


async def test_a_slice_that_makes_no_sense_keeps_no_other_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with following(tmp_path) as (slices, server, _):
        await slices.settled.wait()
        bad = slice_("bad", {"x": {"numa": 0}})
        bad["spec"]["pool"]["generation"] = "first"
        await server.resources.put(PLURAL, bad)
        await server.resources.put(PLURAL, slice_("own", {"gpu-0": {"numa": 1}}))
        await until(lambda: at(slices, "gpu-0") == 1)
        assert at(slices, "x") is None
    (record,) = caplog.records
    assert "generation" in vars(record)["reason"]


async def test_an_answer_that_makes_no_sense_is_asked_for_again(tmp_path: Path) -> None:
    async with following(tmp_path) as (slices, server, pauses):
        server.disturb = lambda _: GARBLED
        await pauses.begun()
        assert not slices.settled.is_set()
        server.disturb = lambda _: None
        pauses.end_last()
        await slices.settled.wait()
        assert slices.available


async def test_nothing_is_asked_while_it_is_not_wanted(tmp_path: Path) -> None:
    wanted = False
    async with following(tmp_path, wanted=lambda: wanted) as (slices, server, pauses):
        await pauses.begun()
        assert pauses.slept == [UNWANTED]
        assert not server.requests
        wanted = True
        pauses.end_last()
        await slices.settled.wait()
        assert slices.available


async def test_what_a_gate_drops_is_not_known(tmp_path: Path) -> None:
    made = slice_("own", {"gpu-0": {"numaNode": [1, 0]}})
    async with following(tmp_path) as (slices, server, _):
        await slices.settled.wait()
        await server.resources.put(PLURAL, made)
        await until(lambda: slices.where(DRIVER, "node-a", "gpu-0") == DeviceLocation())
        server.resources.gates |= {"DRAListTypeAttributes"}
        await server.resources.put(PLURAL, made)
        await until(lambda: at(slices, "gpu-0") == 1)


async def test_a_retry_after_is_heeded(tmp_path: Path) -> None:
    async with following(tmp_path) as (_, server, pauses):
        server.disturb = lambda _: Answer(status=429, body="busy", headers={"Retry-After": "30"})
        await pauses.begun()
        assert pauses.slept == [30.0]
