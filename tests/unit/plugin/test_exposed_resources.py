"""What running containers see of what they hold, when it changes."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from nri_policy.engine.engine import Engine
from nri_policy.engine.event import Created, Started, Stopped
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.node import Node
from nri_policy.plugin import exposed_resources
from nri_policy.plugin.exposed_resources import ExposedResources
from nri_policy.plugin.exposure import FILE, Exposure
from nri_policy.workload.pod import Container
from tests.support import nodes
from tests.support.daemon import pod, served
from tests.support.patience import HANGS


class Stage:
    """Containers that see their resources."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for delay in ("REST", "SOON"):
            monkeypatch.setattr(exposed_resources, delay, 0)
        machine = nodes.machine("package:1 core:4 pu:1")  # one pool, whose CPUs all share
        self.node = Node(Engine(machine, nodes.settings()))
        self.exposed = ExposedResources(self.node, Exposure(folder))
        self._folder = folder

    async def place(self, container: Container) -> None:
        async with self.node.turn:
            self.node.handle(Created(container=container))

    async def create(self, container: Container) -> None:
        await self.place(container)
        assert self.exposed.add(container.id)

    async def start(self, container: Container) -> None:
        await self.create(container)
        self.exposed.show(container.id)
        async with self.node.turn:
            self.node.handle(Started(container_id=container.id, now=0.0))

    def due(self, container: Container) -> list[str]:
        exposed = self.node.view.exposed(container.id)
        return [f'{key}="{cpus}"' for key, cpus in exposed.items()]

    def seen(self, container: Container) -> str:
        return (self._folder / container.id / FILE).read_text()

    def folders(self) -> set[str]:
        return {path.name for path in self._folder.iterdir()}

    async def written(self) -> None:
        assert self.exposed._updating is not None
        await self.exposed._updating


async def due_timers() -> None:
    """Let the loop come round to those that are due now."""
    for _ in range(2):
        await asyncio.sleep(0)


async def test_a_running_container_sees_what_changed_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage(tmp_path, monkeypatch)
    shared, own = nodes.best_effort(), nodes.container(2000)
    await stage.start(shared)
    before = stage.seen(shared)
    await stage.create(own)
    stage.exposed.update(shared.id)
    await stage.written()
    assert stage.seen(shared).splitlines() == stage.due(shared)
    assert stage.seen(shared) != before


async def test_a_new_container_sees_its_resources_once_the_creation_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may start while the daemon is not there."""
    stage, container = Stage(tmp_path, monkeypatch), nodes.best_effort()
    await stage.create(container)
    assert [*(tmp_path / container.id).iterdir()] == []
    await due_timers()
    assert stage.seen(container).splitlines() == stage.due(container)


async def test_a_container_that_is_removed_at_once_is_shown_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage, container = Stage(tmp_path, monkeypatch), nodes.best_effort()
    await stage.create(container)
    stage.exposed.remove(container.id)
    await due_timers()
    assert not (tmp_path / container.id).exists()


async def test_a_new_container_sees_its_resources_at_the_latest_when_the_daemon_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage, container, gone = Stage(tmp_path, monkeypatch), nodes.best_effort(), nodes.best_effort()
    await stage.create(container)
    await stage.create(gone)
    async with stage.node.turn:
        stage.node.handle(Stopped(container_id=gone.id))
    stage.exposed.close()
    assert stage.seen(container).splitlines() == stage.due(container)
    assert [*(tmp_path / gone.id).iterdir()] == []


async def test_a_container_sees_what_it_has_when_it_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its creation waits for no file, and what changes until then is in the first one."""
    stage = Stage(tmp_path, monkeypatch)
    shared, own = nodes.best_effort(), nodes.container(2000)
    await stage.create(shared)
    await stage.create(own)
    stage.exposed.update(shared.id)
    assert stage.exposed._updating is None
    assert [*(tmp_path / shared.id).iterdir()] == []
    stage.exposed.show(shared.id)
    assert stage.seen(shared).splitlines() == stage.due(shared)
    (tmp_path / shared.id / FILE).unlink()
    stage.exposed.show(shared.id)
    assert [*(tmp_path / shared.id).iterdir()] == [], "it is shown once"


async def test_what_was_created_before_a_restart_is_shown_when_it_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that the runtime has not listed yet."""
    stage, unlisted = Stage(tmp_path, monkeypatch), nodes.best_effort()
    listed = nodes.best_effort()
    await stage.create(listed)
    (tmp_path / unlisted.id).mkdir()
    stage.exposed.restart()
    assert stage.exposed._updating is None
    await stage.place(unlisted)
    for each in (listed, unlisted):
        stage.exposed.show(each.id)
        assert stage.seen(each).splitlines() == stage.due(each)


async def test_after_a_restart_all_see_what_they_have_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage(tmp_path, monkeypatch)
    container = nodes.best_effort()
    await stage.start(container)
    right = stage.seen(container)
    (tmp_path / container.id / FILE).write_text("SHARED_CPUS=1\n")
    stage.exposed.restart()
    await stage.written()
    assert stage.seen(container) == right


async def test_only_what_does_not_come_within_a_time_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder seems old where the date was set forward while its container was created."""
    stage, coming = Stage(tmp_path, monkeypatch), nodes.best_effort()
    monkeypatch.setattr(exposed_resources, "MAX_CREATION", 0)
    for each in (coming.id, "gone"):
        (tmp_path / each).mkdir()
        os.utime(tmp_path / each, (0, 0))
    stage.exposed.restart()
    assert stage.folders() == {coming.id, "gone"}
    await stage.place(coming)
    await due_timers()
    assert stage.folders() == {coming.id}
    stage.exposed.show(coming.id)
    assert stage.seen(coming).splitlines() == stage.due(coming)


async def test_a_container_runs_though_its_resources_cannot_be_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stage = Stage(tmp_path / "containers", monkeypatch)
    shown, unseen = nodes.best_effort(), nodes.best_effort()
    await stage.create(shown)
    (tmp_path / "containers" / shown.id / FILE).mkdir()
    stage.exposed.show(shown.id)
    (tmp_path / "containers").rename(tmp_path / "gone")
    (tmp_path / "containers").touch()
    await stage.place(unseen)
    assert stage.exposed.add(unseen.id) is None
    failed = [vars(each)["container"] for each in caplog.records if each.msg == "not-exposed"]
    assert failed == [shown.id, unseen.id]


async def test_what_could_not_be_written_is_written_once_it_can_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the container starts, and when its resources change."""
    stage = Stage(tmp_path, monkeypatch)
    monkeypatch.setattr(exposed_resources, "AGAIN", 0)
    new, running = nodes.best_effort(), nodes.best_effort()
    await stage.start(running)
    await stage.create(new)
    (tmp_path / running.id / FILE).unlink()
    for each in (new, running):
        (tmp_path / each.id / FILE).mkdir()
    stage.exposed.show(new.id)
    stage.exposed.update(running.id)
    await stage.written()
    for each in (new, running):
        (tmp_path / each.id / FILE).rmdir()
    async with asyncio.timeout(HANGS):
        written = (new, running)
        while not all((tmp_path / each.id / FILE).is_file() for each in written):  # noqa: ASYNC110 - a file tells nobody
            await asyncio.sleep(0.01)
    for each in (new, running):
        assert stage.seen(each).splitlines() == stage.due(each)


async def test_a_folder_that_the_host_does_not_have_is_mounted_nowhere(tmp_path: Path) -> None:
    """The runtime would refuse every container that was to mount it."""
    node = Node(Engine(nodes.machine(), nodes.settings()))
    exposed = ExposedResources(node, Exposure(tmp_path / "containers", on_host=False))
    guest = nodes.best_effort()
    async with node.turn:
        node.handle(Created(container=guest))
    assert exposed.add(guest.id) is None
    exposed.update(guest.id)
    exposed.close()
    exposed.remove(guest.id)
    assert not (tmp_path / "containers").exists()


async def test_all_see_what_changes_though_the_runtime_is_told_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another split of the same CPUs, and shared CPUs where none are pinned."""
    for delay in ("REST", "SOON"):
        monkeypatch.setattr(exposed_resources, delay, 0)
    async with served(tmp_path, "package:1 core:4 pu:1") as it:
        exposed = it.daemon.components.resources

        async def seen(container_id: str) -> str:
            assert exposed._updating is not None
            await exposed._updating
            return (tmp_path / "containers" / container_id / FILE).read_text()

        await it.start(pod("mixed", "1500m"))
        mixed = it.runtime.container("mixed/main")
        cpus = mixed.cpus
        await it.daemon.events.reconfigure(settings=nodes.settings(preferSharedCPUs=True))
        assert mixed.cpus == cpus
        assert await seen(mixed.id) == f'SHARED_CPUS="{cpus}"\nALL_MEMS="0"\nDRAM_MEMS="0"\n'
        await it.daemon.events.reconfigure(settings=nodes.settings(pinCPU=False))
        await it.start(pod("own", "1"))
        taken = CPUSet.union(each.grant.exclusive for each in it.daemon.node.view.placed.values())
        assert f'SHARED_CPUS="{cpus - taken}"' in (await seen(mixed.id)).splitlines()
