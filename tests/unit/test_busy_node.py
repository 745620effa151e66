"""A daemon among many containers, and after many: what it costs at once, and what stays."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections import deque
from functools import partial
from pathlib import Path

import pytest

from nri_policy.daemon.daemon import Daemon, Environment
from nri_policy.engine.event import Synchronized
from nri_policy.plugin.exposure import Exposure
from nri_policy.simulation.embedded import EmbeddedRuntime
from nri_policy.store.database import RecordLink
from tests.support import nodes, stores
from tests.support.daemon import Served, make_runtime, pod, served
from tests.support.patience import HANGS, until

LARGE = "package:2 numa:4(memory=32GiB) core:16 pu:2"  # 256 CPUs
CROWD = 500


def crowd() -> list[dict[str, object]]:
    """Return pods of every sort, for which there is room."""
    kinds = [
        pod("own", "2"),
        pod("shared", "100m", shared=True),
        pod("mixed", "1500m"),
        pod("best"),
    ]
    weights = [0] * 20 + [1] * 200 + [2] * 20 + [3] * (CROWD - 240)
    return [
        {**kinds[kind], "metadata": {"name": f"pod-{number}", "namespace": "default"}}
        for number, kind in enumerate(weights)
    ]


def were_told(runtime: EmbeddedRuntime, times: int) -> bool:
    """Whether each container was updated so often."""
    return all(len(each.updated_by) >= times for each in runtime.containers)


async def synchronized_twice(folder: Path, disk: threading.Event) -> EmbeddedRuntime:
    """Return a runtime whose crowd two daemons found, one after the other."""
    machine = nodes.machine(LARGE)
    runtime = make_runtime(machine, folder)
    for each in crowd():
        await runtime.start_pod(each)
    async with runtime:
        for life in range(2):
            daemon = Daemon(machine, nodes.settings(), Environment(state_dir=folder))
            async with daemon.serving(runtime.socket_path):
                await runtime.synchronized(after=life)
                assert len(daemon.node.view.placed) == CROWD
                assert stores.on_disk(daemon._store.path) == stores.grants(daemon.node._engine)
                disk.set()
                # no cgroups are visible, so a new daemon sends all updates again
                await until(partial(were_told, runtime, life + 1))
            await daemon.close()
    return runtime


def test_a_crowd_is_synchronized_in_one_decision_and_nobody_waits_for_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = threading.Event()
    monkeypatch.setattr(Exposure, "write", lambda *_: disk.wait(HANGS))
    runtime = asyncio.run(synchronized_twice(tmp_path, disk))
    assert all(container.cpus for container in runtime.containers)
    assert {len(container.updated_by) for container in runtime.containers} == {2}
    records = stores.records(tmp_path / "store" / "state.db")
    assert [type(record.event) for record in records if record.link is not RecordLink.BASE] == [
        Synchronized,
        Synchronized,
    ]


def held(root: object) -> dict[str, int]:
    """Return how many entries the collections hold that *root* leads to, by their owners' type."""
    seen, todo = {id(root)}, deque([root])
    sizes: dict[str, int] = {}
    while todo:
        each = todo.popleft()
        name = f"{type(each).__module__}.{type(each).__qualname__}"
        if isinstance(each, dict | list | set | frozenset | tuple | deque):
            sizes[name] = sizes.get(name, 0) + len(each)
        elif not name.startswith("nri_policy."):
            continue
        else:
            sizes[name] = sizes.get(name, 0) + 1
        for other in gc.get_referents(each):
            if id(other) not in seen and not isinstance(other, type):
                seen.add(id(other))
                todo.append(other)
    return sizes


async def lives(node: Served, count: int) -> None:
    """Let so many pods come, change and go; some are refused."""
    for _ in range(count):
        for each in crowd()[:: CROWD // 8]:
            await node.start(each)
        await node.start(pod("large", "300"))
        for running in node.runtime.pods:
            await node.runtime.delete_pod(running)
    updating = node.daemon.plugin._resources._updating
    if updating is not None:
        await updating


async def growth(folder: Path) -> tuple[dict[str, int], dict[str, int]]:
    """Return what a daemon holds after some lives, and after many more."""
    async with served(folder, LARGE, listening=False) as node:
        await lives(node, 5)
        gc.collect()
        before = held(node.daemon)
        await lives(node, 20)
        gc.collect()
        return before, held(node.daemon)


def test_nothing_is_left_of_containers_that_are_gone(tmp_path: Path) -> None:
    before, after = asyncio.run(growth(tmp_path))
    assert after == before
