"""What running containers see of what they hold, when it changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from nri_policy.engine.engine import Engine
from nri_policy.engine.event import Created
from nri_policy.node import Node
from nri_policy.plugin import exposed_resources
from nri_policy.plugin.exposed_resources import ExposedResources
from nri_policy.plugin.exposure import FILE, Exposure
from nri_policy.workload.pod import Container
from tests.support import nodes


class Stage:
    """Containers that see their resources."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(exposed_resources, "REST", 0)
        machine = nodes.machine("package:1 core:4 pu:1")  # one pool, whose CPUs all share
        self.node = Node(Engine(machine, nodes.settings()))
        self.exposed = ExposedResources(self.node, Exposure(folder))
        self._folder = folder

    async def create(self, container: Container) -> None:
        async with self.node.turn:
            self.node.handle(Created(container=container))
        assert self.exposed.add(container.id)

    def seen(self, container: Container) -> str:
        return (self._folder / container.id / FILE).read_text()

    async def written(self) -> None:
        assert self.exposed._updating is not None
        await self.exposed._updating


async def test_a_running_container_sees_what_changed_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage(tmp_path, monkeypatch)
    shared, own = nodes.best_effort(), nodes.container(2000)
    await stage.create(shared)
    before = stage.seen(shared)
    await stage.create(own)
    stage.exposed.update(shared.id)
    await stage.written()
    lines = [f'{key}="{cpus}"' for key, cpus in stage.node.view.exposed(shared.id).items()]
    assert stage.seen(shared).splitlines() == lines
    assert stage.seen(shared) != before


async def test_after_a_restart_all_see_what_they_have_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage(tmp_path, monkeypatch)
    container = nodes.best_effort()
    await stage.create(container)
    right = stage.seen(container)
    (tmp_path / container.id / FILE).write_text("SHARED_CPUS=1\n")
    (tmp_path / "gone").mkdir()
    stage.exposed.restart()
    await stage.written()
    assert stage.seen(container) == right
    assert not (tmp_path / "gone").exists()
