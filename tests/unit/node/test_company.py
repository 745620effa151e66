"""Who may run on exclusive CPUs beside their owner; spec placement.md §3."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from msgspec import UNSET
from msgspec.structs import replace

from nri_policy.cli import main
from nri_policy.engine.event import Created, Started
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.kube.events import ClusterEvent, Subject
from nri_policy.node import list_company, view_of
from nri_policy.observability.gauges import make_gauges, take_snapshot
from nri_policy.report import answer_report
from nri_policy.simulation.cgroups import SimulatedCgroups
from nri_policy.workload.pod import Container
from tests.support import nodes
from tests.support.daemon import Served, pod, served
from tests.support.engine_driver import EngineDriver

PRESERVE = {"cpu.preserve.resource-policy.nri.io/pod": "true"}


def run(driver: EngineDriver, *containers: Container) -> None:
    for each in containers:
        driver.handle(Created(container=each))
        driver.handle(Started(container_id=each.id, now=0.0))


def beside(driver: EngineDriver) -> dict[str, str]:
    """Return who may run beside each owner, by the owner's name."""
    view = view_of(driver.engine)
    found = {each.name.split("/")[1]: each.beside for each in list_company(view)}
    for placed in view.placed.values():
        name = placed.container.pod.name
        alone = f"not alone: {found[name]}" if found.get(name) else UNSET
        if view.layout.settings.pin_cpu:
            assert answer_report(view, placed).alone == alone, "explain says the same"
    return found


def test_who_is_not_pinned_may_run_on_the_exclusive_cpus_of_all() -> None:
    driver = EngineDriver()
    own, other = (nodes.container(2000, name=name) for name in ("own", "other"))
    run(driver, own, other, nodes.container(100, 200, name="sharer"))
    assert beside(driver) == {own.pod.name: "", other.pod.name: ""}
    run(driver, nodes.best_effort(name="evil", annotations=PRESERVE))
    evil = [*driver.engine.state.placed.values()][-1].container
    said = f"{evil.full_name} is not pinned"
    assert beside(driver) == {own.pod.name: said, other.pod.name: said}
    found = {each.name: each for each in make_gauges(take_snapshot(view_of(driver.engine)))}
    (sample,) = found["nri_policy_accompanied_exclusive_cpus"].samples
    assert sample.value == 4


def test_one_that_came_with_a_cpuset_is_beside_owners_there_only() -> None:
    driver = EngineDriver()
    own, other = (nodes.container(2000, name=name) for name in ("own", "other"))
    run(driver, own, other)
    cpus = driver.cpus(own)
    kept = nodes.best_effort(annotations=PRESERVE)
    kept = replace(kept, resources=replace(kept.resources, cpus=cpus.split("-")[0]))
    run(driver, kept)
    assert beside(driver) == {
        own.pod.name: f"{kept.full_name} is not pinned",
        other.pod.name: "",
    }
    (first, _) = list_company(view_of(driver.engine))
    assert [each.cpus for each in first.others] == [CPUSet.parse(cpus.split("-")[0])]


def test_with_unowned_all_are_alone() -> None:
    driver = EngineDriver(preserve="unowned")
    own = nodes.container(2000)
    run(driver, own, nodes.best_effort(annotations=PRESERVE))
    assert beside(driver) == {own.pod.name: ""}


def test_without_pinning_all_may_run_everywhere() -> None:
    driver = EngineDriver(pinCPU=False)
    own = nodes.container(2000)
    run(driver, own, nodes.best_effort())
    assert beside(driver) == {own.pod.name: "all containers: pinCPU is false"}


def test_of_many_three_are_named() -> None:
    driver = EngineDriver()
    own = nodes.container(2000)
    run(driver, own, *(nodes.best_effort(annotations=PRESERVE) for _ in range(5)))
    assert beside(driver)[own.pod.name].endswith(", and 2 more")


async def _ask(it: Served, *command: str, code: int = 0) -> Any:
    runner = CliRunner(env={"COLUMNS": "200", "NRI_POLICY_CONTROL_SOCKET": str(it.socket)})
    result = await asyncio.to_thread(runner.invoke, main, [*command])
    assert result.exit_code == code, result.output
    return result.output


async def test_an_owner_hears_once_that_it_is_not_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The audit lists it, explain says so, and the owner's pod has one Event."""
    monkeypatch.setattr("nri_policy.audit.auditor.GRACE", 0.0)
    events: list[ClusterEvent] = []
    async with served(tmp_path, cgroups=SimulatedCgroups, record=events.append) as it:
        await it.start(pod("own", "2"), pod("evil", annotations=PRESERVE))
        output = await _ask(it, "audit", code=1)
        assert "not alone: default/evil/main is not pinned" in output
        assert "Who may run on exclusive CPUs beside their owner" in output
        await it.daemon.auditor.round()
        (event,) = events
        assert event.about == Subject.pod("default", "own", event.about.uid)
        assert event.reason == "ExclusiveCPUsNotAlone"
        assert "default/evil/main is not pinned" in event.text
        (drift,) = json.loads(await _ask(it, "audit", "-o", "json", code=1))["drifts"]
        assert (drift["what"], drift["container"]) == ("company", "default/own/main")
        assert "not alone: default/evil/main is not pinned" in await _ask(it, "explain", "own")
        assert "default/own/main shares its exclusive CPUs" in await _ask(it, "status")

        await it.runtime.delete_pod(it.runtime.pod("evil"))
        output = await _ask(it, "audit")
        assert "No container may run on exclusive CPUs of another" in output
        assert "not alone" not in await _ask(it, "explain", "own")
        assert len(events) == 1
