"""The questions that users ask most, each on a node where it comes up: `explain` has the answer."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from nri_policy.foundation.cpuset import CPUSet
from nri_policy.manifests.resources import Amounts, ResourceChange
from nri_policy.simulation.containers import CRIError
from nri_policy.simulation.node import SimulatedNode
from tests.support import nodes
from tests.support.daemon import Served, pod, served

from .test_daemon_commands import run

PAGE = (Path(__file__).parents[3] / "docs" / "explain.md").read_text()
Then = Callable[[Served], Coroutine[Any, Any, object]]


def answer(
    folder: Path,
    name: str,
    *pods: dict[str, Any],
    machine: str = nodes.SMALL,
    then: Then | None = None,
    **spec: Any,
) -> str:
    """Return what `explain NAME --why` says once *pods* came to *machine*, in one line."""

    async def both() -> str:
        async with served(folder, machine, **spec) as node:
            await node.start(*pods)
            if then is not None:
                await then(node)
            await node.runtime.settled()
            result = await asyncio.to_thread(run, node.socket, "explain", name, "--why")
            assert result.exit_code == 0, result.output
            return " ".join(result.stdout.split())

    return asyncio.run(both())


def assert_says(said: str, text: str) -> None:
    """Assert that *text* was said, and that the documentation shows it."""
    assert text in said
    assert text in PAGE


def annotated(key: str, value: str) -> dict[str, str]:
    return {f"{key}.resource-policy.nri.io/pod": value}


def test_why_not_node_0(tmp_path: Path) -> None:
    said = answer(tmp_path, "database", pod("database", "3"))
    assert "CPUs 4-6, exclusive, 1 core and 1 thread on NUMA node #1" in said
    assert "NUMA node #0 1 2 0 CPUs 0 less suitable room is left" in said
    assert_says(said, "less suitable room is left: 0 CPUs, not 1 CPU")


def test_why_shared(tmp_path: Path) -> None:
    said = answer(tmp_path, "web", pod("web", "2", shared=True))
    assert_says(
        said,
        "got 2 shared: only Guaranteed containers get exclusive CPUs, and it is Burstable",
    )


def test_why_shared_though_guaranteed(tmp_path: Path) -> None:
    said = {
        "part": answer(tmp_path / "1", "part", pod("part", "500m")),
        "fraction": answer(tmp_path / "2", "fraction", pod("fraction", "2500m")),
        "setting": answer(tmp_path / "3", "setting", pod("setting", "2"), preferSharedCPUs=True),
        "wish": answer(
            tmp_path / "4",
            "wish",
            pod("wish", "2", annotations=annotated("prefer-shared-cpus", "true")),
        ),
    }
    assert "got 500m shared: it asks for less than one CPU" in said["part"]
    assert 'with prefer-shared-cpus: "false" the whole CPUs would be exclusive' in said["fraction"]
    assert "got 2 shared: the setting preferSharedCPUs asks for that" in said["setting"]
    assert "got 2 shared: its annotation prefer-shared-cpus asks for that" in said["wish"]


def test_why_are_my_cpus_on_two_sockets(tmp_path: Path) -> None:
    said = answer(tmp_path, "wide", pod("wide", "10"))
    assert_says(said, "no other pool has room: socket #1 is 2 CPUs short")
    assert_says(said, "its CPUs are in more than one NUMA node: socket #1 was 2 CPUs short")
    assert "3 CPUs short" in said, "socket #0, where one is reserved"


def test_who_took_my_cpu(tmp_path: Path) -> None:
    said = answer(
        tmp_path, "web", pod("web"), pod("database", "2"), machine="package:1 core:4 pu:1"
    )
    assert "Changed by others, the latest first" in said
    when = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[+-]\d\d:\d\d"
    assert re.search(f"{when} 3 0 default/database/main was placed", said), "a time as of `history`"
    assert_says(said, "default/database/main was placed")


def test_why_was_it_refused(tmp_path: Path) -> None:
    said = answer(tmp_path, "huge", pod("huge", "99"))
    assert_says(
        said,
        "refused: no pool has room for 99 exclusive CPUs: root comes closest, 84 CPUs short",
    )
    assert "NUMA node #1" in said


def test_why_was_my_resize_refused(tmp_path: Path) -> None:
    async def resize(node: Served) -> None:
        change = ResourceChange(requests=Amounts(cpu=99_000), limits=Amounts(cpu=99_000))
        for _ in range(3):
            with pytest.raises(CRIError, match="99 exclusive CPUs"):
                await node.runtime.resize(node.runtime.pod("own"), "main", change)

    said = answer(tmp_path, "own", pod("own", "2"), then=resize)
    assert "own/main: placed on NUMA node #1 CPUs 4-5, exclusive" in said
    assert "A later resize was refused The kubelet asks again every second" in said
    assert "Until then the pod's allocatedResources have the refused size" in said
    assert "have it, too. own/main: refused: no pool has room for 99" in said
    assert "it was refused 3 times, from 20" in said


def test_why_did_my_memory_widen(tmp_path: Path) -> None:
    old = pod("old", "500m", shared=True, memory="2500Mi")
    old["spec"]["containers"][0]["resources"]["limits"] = {"cpu": "1", "memory": "2500Mi"}
    said = answer(
        tmp_path,
        "other",
        old,
        pod("other", "1", memory="2500Mi"),
        pod("new", "1", memory="2500Mi"),
        machine="package:2 numa:1(memory=4GiB) core:4 pu:1",
    )
    assert "0-1 default/new/main was placed" in said
    assert_says(said, "default/new/main was placed; its memory was on nodes 0 before")


def test_why_is_it_on_reserved_cpus(tmp_path: Path) -> None:
    system = answer(tmp_path / "1", "kube-system/dns", pod("dns", "100m", namespace="kube-system"))
    assert_says(system, "got 100m reserved: its namespace is kube-system")
    listed = answer(
        tmp_path / "2",
        "logging/agent",
        pod("agent", "100m", namespace="logging"),
        reservedPoolNamespaces=["log*"],
    )
    assert "its namespace logging is among reservedPoolNamespaces" in listed
    wished = answer(
        tmp_path / "3",
        "agent",
        pod("agent", "100m", annotations=annotated("prefer-reserved-cpus", "true")),
    )
    assert "its annotation prefer-reserved-cpus asks for that" in wished
    last = answer(tmp_path / "4", "guest", pod("guest"), pod("all", "3"), machine="core:4 pu:1")
    assert "on the reserved CPUs: no other is left" in last or " 0 " in last


def test_why_a_pod_of_the_system_is_not_on_the_reserved_cpus(tmp_path: Path) -> None:
    manifest = pod("sys")
    manifest["metadata"]["namespace"] = "kube-system"
    manifest["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "1500m"}}
    said = answer(tmp_path, "kube-system/sys", manifest, machine="package:2 core:4 pu:1")
    assert "placed on socket #" in said
    assert "asks for 1500m of the reserved CPUs, which have 1 left" in said


ISOLATED = "package:2 core:4 pu:1 isolated=2-3"


def test_why_isolated_or_not(tmp_path: Path) -> None:
    def said(number: int, cpu: str, *more: dict[str, Any], **spec: Any) -> str:
        return answer(
            tmp_path / str(number), "own", *more, pod("own", cpu), machine=ISOLATED, **spec
        )

    assert_says(said(1, "1", preferIsolatedCPUs=True), "got 1 isolated")
    by_setting = said(2, "1", preferIsolatedCPUs=False)
    assert_says(
        by_setting, "got 1 exclusive, not isolated: the setting preferIsolatedCPUs is false"
    )
    two = said(3, "2", preferIsolatedCPUs=True)
    assert "isolated only with the annotation prefer-isolated-cpus" in two
    others = [pod("a", "1"), pod("b", "1")]
    none_left = said(4, "1", *others, preferIsolatedCPUs=True)
    assert "got 1 exclusive" in none_left
    assert "its CPUs are not isolated: " in none_left
    assert "has too few of them left" in none_left


def test_why_a_wish_for_isolated_cpus_has_no_effect_on_a_node_without_any(tmp_path: Path) -> None:
    wish = annotated("prefer-isolated-cpus", "true")
    said = answer(tmp_path / "wish", "own", pod("own", "2", annotations=wish))
    assert "got 2 exclusive, not isolated: the kernel of this node isolates no CPUs" in said
    assert "not isolated" not in answer(tmp_path / "none", "own", pod("own", "1"))


def test_why_is_it_there_after_a_restart_of_the_daemon(tmp_path: Path) -> None:
    """An upgrade is no reason to forget the reasons."""

    async def both() -> str:
        async with AsyncExitStack() as stack:
            node = SimulatedNode(nodes.machine(), nodes.settings(), tmp_path, stack)
            await stack.enter_async_context(node.runtime)
            await node.restart()
            await node.runtime.synchronized()
            await node.runtime.start_pod(pod("database", "3"))
            await node.restart()
            await node.runtime.synchronized(after=1)
            assert node.daemon is not None
            socket = tmp_path / "control.sock"
            await stack.enter_async_context(node.daemon.listening(socket))
            result = await asyncio.to_thread(run, socket, "explain", "database", "--why")
            return " ".join(result.stdout.split())

    said = asyncio.run(both())
    assert "database/main: kept its place on NUMA node #1" in said
    assert "why here it kept its place: NUMA nodes #1, #2 and #3 are" in said
    assert "How it came there database/main: placed on NUMA node #1 asked 3 CPUs → got 3" in said
    assert "are equally good, and the lowest number wins" in said
    assert_says(said, "less suitable room is left: 0 CPUs, not 1 CPU")


def test_why_did_it_move_at_a_reload(tmp_path: Path) -> None:
    async def reload(node: Served) -> None:
        settings = nodes.settings(reservedResources={"cpu": "cpuset:4-7"})
        await node.daemon.events.reconfigure(settings=settings)
        await node.runtime.synchronized(after=1)

    said = answer(tmp_path, "own", pod("own", "2"), then=reload)
    assert_says(said, "it ran on CPUs 4-5 before: those are no longer available")
    assert_says(said, "the settings changed")


def test_why_did_it_move_when_a_cpu_went(tmp_path: Path) -> None:
    async def unplug(node: Served) -> None:
        machine = nodes.machine()
        await node.daemon.events.reconfigure(
            machine=machine.restricted(machine.online - CPUSet([4]))
        )
        await node.runtime.synchronized(after=1)

    said = answer(tmp_path, "own", pod("own", "2"), then=unplug)
    assert "it ran on CPUs 4-5 before" in said
    assert "the machine changed" in said


def test_why_is_my_burst_confined(tmp_path: Path) -> None:
    burst = pod("burst", "1", shared=True)
    burst["spec"]["containers"][0]["resources"]["limits"] = {"cpu": "14", "memory": "1Mi"}
    said = answer(tmp_path, "burst", pod("own", "3"), burst)
    assert_says(said, "its CPU limit of 14 does not fit: root leaves it 12 at most")


def test_what_a_container_had_that_has_ended_is_said_in_the_same_form(tmp_path: Path) -> None:
    async def both() -> tuple[str, str]:
        async with served(tmp_path, nodes.SMALL) as node:
            await node.start(pod("gone", "3"))
            await node.runtime.stop_pod(node.runtime.pod("gone"))
            await node.runtime.settled()
            plain, tables = [
                await asyncio.to_thread(run, node.socket, "explain", "gone", *why)
                for why in ((), ("--why",))
            ]
            return plain.stdout, tables.stdout

    plain, tables = asyncio.run(both())
    assert [line.split()[:3] for line in plain.splitlines()[:3]] == [
        ["gone/main:", "placed", "on"],
        ["asked", "3", "CPUs"],
        ["why", "here", "NUMA"],
    ]
    assert "From the journal: " in plain
    assert "why not" not in plain
    assert "why not" in tables
