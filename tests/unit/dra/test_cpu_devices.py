"""How many CPUs are published for claims."""

from __future__ import annotations

from nri_policy.dra.cpu_devices import published
from nri_policy.engine.event import Resized, ResizeEnded
from nri_policy.node import view_of
from tests.support import nodes
from tests.support.engine_driver import EngineDriver


def test_what_a_resize_frees_is_published_once_it_is_in_force() -> None:
    """Until then it is the container's, and the scheduler must not give it away."""
    driver, container = EngineDriver(), nodes.container(3000)

    def total() -> int:
        return sum(each.cpus for each in published(view_of(driver.engine), {}))

    driver.create(container)
    before = total()
    resized = Resized(
        container_id=container.id, resources=nodes.resources(1000, 1000), certain=False
    )
    driver.handle(resized)
    assert total() == before
    driver.handle(ResizeEnded(container_id=container.id))
    assert total() == before + 2


def test_with_full_cores_only_whole_cores_are_published() -> None:
    """One that shares CPUs leaves an odd number; the engine gives claims no half of a core."""
    driver = EngineDriver(fullCores="require")
    driver.create(nodes.container(500))
    values = [each.cpus for each in published(view_of(driver.engine), {})]
    assert values
    assert not any(cpus % 2 for cpus in values)
    driver = EngineDriver()
    driver.create(nodes.container(500))
    assert any(each.cpus % 2 for each in published(view_of(driver.engine), {}))
