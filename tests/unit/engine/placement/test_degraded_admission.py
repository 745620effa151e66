"""Running containers are always booked, even if nothing is free for them."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from nri_policy.engine.event import Created, Synchronized
from nri_policy.engine.explanation import DecisionKind
from nri_policy.node import view_of
from nri_policy.workload.pod import Container
from tests.support import bookkeeping, memory_maps, nodes
from tests.support.engine_driver import EngineDriver

DOMAIN = "resource-policy.nri.io"


def with_memory(container: Container, gib: int) -> Container:
    """Return *container* with a limit of memory."""
    return replace(container, resources=replace(container.resources, memory_limit=gib << 30))


def admit(driver: EngineDriver, container: Container) -> str:
    """Admit a container, and return the last of what `explain` says of it."""
    driver.handle(Created(container=container, admitted=True))
    bookkeeping.check(driver.engine, driver.runtime)
    notes = driver.engine.state.placed[container.id].explanation.notes
    assert driver.decision.explanation == driver.engine.state.placed[container.id].explanation
    return notes[-1] if notes else ""


def test_one_for_which_there_is_room_is_placed_like_any_other() -> None:
    admitted, asked = EngineDriver(), EngineDriver()
    container = nodes.container(3000)
    assert not admit(admitted, container)
    asked.create(container)
    taken, wanted = admitted.decision, asked.decision
    assert (taken.grant, taken.placement, taken.changes) == (
        wanted.grant,
        wanted.placement,
        wanted.changes,
    )


def test_one_that_fits_nowhere_shares_what_the_others_leave() -> None:
    driver = EngineDriver()
    driver.create(nodes.container(12_000))
    late = nodes.container(4000)
    note = admit(driver, late)
    assert note.endswith("root comes closest, 1 CPU short; it shares 3 CPU now")
    assert driver.decision.warnings == (note,)
    placement = driver.decision.placement
    assert placement is not None
    assert placement.cpus == driver.free()
    assert placement.shares is None, "it keeps the weight that it came with"
    assert driver.grant(late).shared == 3000
    assert "no pool has room" in driver.refuse(nodes.container(1000)), "what it uses is used"


def test_what_it_asks_for_and_what_it_is_booked_with_are_two_things() -> None:
    driver = EngineDriver()
    driver.create(nodes.container(12_000))
    late = nodes.container(4000)
    admit(driver, late)
    placed = driver.engine.state.placed[late.id]
    assert (placed.asked.exclusive, placed.asked.shared) == (4, 0)
    assert (placed.request.exclusive, placed.request.shared) == (0, 3000)
    table = placed.explanation.table
    assert table is not None
    assert table.best() is None, "pools were compared for what it asks for"
    driver.reconfigure()
    assert driver.engine.state.placed[late.id].asked == placed.asked


def test_one_that_names_an_unknown_class_is_admitted_without_it() -> None:
    """A new container is refused. The message is the same for both."""
    driver = EngineDriver(schedulingClasses=[{"name": "calm", "policy": "batch"}])
    wrong = {f"scheduling-class.{DOMAIN}/pod": "clam"}
    text = driver.refuse(nodes.container(1000, annotations=wrong))
    assert "did you mean 'calm'?" in text
    late = nodes.container(1000, annotations=wrong)
    admit(driver, late)
    assert driver.cpus(late)
    assert driver.decision.warnings == (text,)
    assert driver.engine.state.classes[late.id].lacking == (text,)


@pytest.mark.parametrize("static", ["true", "false"])
def test_with_all_cpus_taken_it_shares_the_reserved_ones(static: str) -> None:
    driver = EngineDriver()
    driver.create(nodes.container(15_000))
    late = nodes.container(2000, annotations={f"static-cpus.{DOMAIN}": static})
    assert admit(driver, late).endswith("; it shares 0 CPU now")
    assert driver.cpus(late) == str(driver.engine.layout.capacity.reserved)
    assert driver.engine.state.placed[late.id].explanation.kind is DecisionKind.SPILLED


def test_one_that_needs_isolated_cpus_does_without() -> None:
    driver = EngineDriver(nodes.SMALL + " isolated=4-5")
    driver.create(nodes.container(8000))
    wish = {f"require-isolated-cpus.{DOMAIN}": "true"}
    late = nodes.container(3000, annotations=wish)
    assert admit(driver, late).endswith("; it shares 3 CPU now")
    assert not driver.grant(late).exclusive


def test_strict_hints_go_before_its_cpus_do() -> None:
    driver = EngineDriver(memory_maps.TIERED)
    wishes = {f"strict.topologyhints.{DOMAIN}/pod": "true", f"memory-type.{DOMAIN}/pod": "hbm"}
    driver.create(with_memory(nodes.container(500, annotations=wishes), 16))
    late = with_memory(nodes.container(2000, annotations=wishes), 16)
    assert admit(driver, late).endswith("; it runs all the same")
    assert len(driver.grant(late).exclusive) == 2


def test_memory_that_does_not_fit_is_booked_where_it_is() -> None:
    driver = EngineDriver(memory_maps.TIERED)
    assert admit(driver, with_memory(nodes.container(1000), 500)).endswith("; it runs all the same")
    short, _ = driver.decision.warnings
    assert "booked with" in short
    assert driver.decision.explanation is not None
    assert driver.decision.explanation.kind is DecisionKind.PLACED, "it is new"


def test_a_bad_annotation_is_none() -> None:
    driver = EngineDriver()
    late = nodes.container(2000, annotations={f"cpu.preserve.{DOMAIN}": "maybe"})
    note = admit(driver, late)
    assert note.startswith("annotation cpu.preserve")
    assert len(driver.grant(late).exclusive) == 2
    driver.resize(late, nodes.resources(3000, 3000))
    assert len(driver.grant(late).exclusive) == 3


def test_a_resize_to_what_it_has_asks_for_nothing() -> None:
    """The kubelet's static manager sends such ones: refused, they would be repeated for ever."""
    driver = EngineDriver()
    driver.create(nodes.container(12_000))
    late = nodes.container(4000)
    admit(driver, late)
    assert driver.resize(late, late.resources) == str(driver.free())
    assert driver.changed() == {}


def test_it_gets_its_due_when_everything_is_looked_at_again() -> None:
    driver = EngineDriver()
    first = nodes.container(12_000)
    driver.create(first)
    late = nodes.container(4000)
    admit(driver, late)
    assert driver.reconfigure().changes == {}, "settings are not refused for it"
    held = {late.id: view_of(driver.engine).to_store(late.id)}
    running = nodes.running(late, driver.runtime.cpus[late.id], driver.runtime.mems[late.id])
    driver.stop(first)
    driver.reconfigure()
    assert len(driver.grant(late).exclusive) == 4
    later = EngineDriver()
    later.handle(Synchronized(containers=(running,), held=held))
    assert len(later.grant(late).exclusive) == 4
