"""How many CPUs are published for claims."""

from __future__ import annotations

from msgspec.structs import replace

from nri_policy.dra.cpu_devices import published
from nri_policy.dra.resource_slice import attributes_of
from nri_policy.engine.event import Resized, ResizeEnded
from nri_policy.node import view_of
from nri_policy.workload.claim import DRIVER
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


def test_the_attribute_pool_has_at_most_64_bytes_and_no_half_of_a_letter() -> None:
    """The API server refuses a slice with a longer one; spec dra.md §2.1."""
    driver = EngineDriver()
    layout, (first, *_) = driver.engine.layout, published(view_of(driver.engine), {})
    for name, expected in (
        ("n" * 64, "n" * 64),
        ("n" * 65, "n" * 64),
        ("n" + 40 * "ö", "n" + 31 * "ö"),
    ):
        pools = list(layout.tree.pools)
        pools[first.device.pool] = replace(pools[first.device.pool], name=name)
        renamed = replace(layout, tree=replace(layout.tree, pools=tuple(pools)))
        attributes = attributes_of(renamed, first)
        assert attributes[f"{DRIVER}/pool"] == expected
