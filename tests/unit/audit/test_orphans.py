"""Ended containers are released, unknown ones are booked; invisible ones are left alone."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest

from nri_policy.audit.cgroup import Cgroups, ContainerCgroups
from nri_policy.audit.orphans import MAX_CREATION, KnownContainer, KnownContainers, OrphanFinder
from nri_policy.foundation.clock import Clock
from tests.unit.audit.host import Root

POD = "/kubepods/pod1"


@dataclass
class Node:
    """Books and processes; `moments` are what the cgroups hold at the second look."""

    cgroups: dict[str, list[int]]  # of the pod, by name
    later: dict[str, list[int]] | None = None
    pids: tuple[int, ...] = ()  # that exist
    created: tuple[tuple[str, int], ...] = ()  # and not started: ids and what the runtime says
    now: float = 0.0
    released: list[str] = field(default_factory=list)
    given_up: list[str] = field(default_factory=list)
    admitted: list[str] = field(default_factory=list)
    rooms: dict[str, str] = field(default_factory=dict)  # without tenants: folders by pod
    others: dict[str, dict[str, list[int]]] = field(default_factory=dict)  # folders, as `cgroups`
    empty_rooms: list[str] = field(default_factory=list)

    async def known_containers(self) -> KnownContainers:
        running, created = (
            [
                KnownContainer(container_id=each, name=each, cgroup=f"{POD}/{each}", pid=pid)
                for each, pid in some
            ]
            for some in ((("c1", 11), ("c2", 12), ("c3", 0)), self.created)
        )
        known = {"pod1", "c1", "c2", "c3", "created"}
        folders = {POD, *self.rooms.values()}
        return KnownContainers(
            running=running, created=created, known=known, folders=folders, rooms=self.rooms
        )

    async def release(self, container_ids: Collection[str]) -> None:
        self.released += container_ids

    async def release_unstarted(self, container_ids: Collection[str]) -> None:
        self.given_up += container_ids

    async def release_rooms(self, pod_ids: Collection[str]) -> None:
        self.empty_rooms += pod_ids

    async def register_again(self, cgroups: Collection[str]) -> None:
        self.admitted += cgroups

    def processes(self, cgroup: str) -> Collection[int]:
        return self.cgroups.get(cgroup.rpartition("/")[2], ())

    def has_process(self, pid: int) -> bool:
        return pid in self.pids

    def find_populated(self, folder: str) -> Mapping[str, Collection[int]]:
        if folder != POD:
            return self.others.get(folder, {})
        return {name: threads for name, threads in self.cgroups.items() if threads}

    async def sleep(self, seconds: float) -> None:
        assert seconds
        if self.later is not None:
            self.cgroups = self.later

    async def after_a_round(self) -> tuple[list[str], list[str]]:
        clock = Clock(now=lambda: self.now, sleep=self.sleep)
        self.orphans = OrphanFinder(self, cast("ContainerCgroups", self), clock=clock)
        await self.orphans.round()
        return self.released, self.admitted


PAUSE = {"cri-containerd-pod1.scope": [10]}
ALL = PAUSE | {"c1": [11], "c2": [12], "c3": [13]}


async def test_who_runs_stays() -> None:
    assert await Node(ALL).after_a_round() == ([], [])


async def test_who_has_no_process_twice_in_a_row_has_ended() -> None:
    gone = PAUSE | {"c2": [12], "c3": [13]}
    assert await Node(gone).after_a_round() == (["c1"], [])
    assert await Node(gone, later=ALL).after_a_round() == ([], [])
    assert await Node(ALL, later=gone).after_a_round() == ([], [])


@pytest.mark.parametrize(
    "node",
    [
        Node(PAUSE | {"c2": [12], "c3": [13]}, pids=(11,)),
        Node(PAUSE | {"c1": [11], "c2": [12]}),
        Node({}),
        Node({"pod1": [0], "c2": [0]}),
    ],
    ids=["elsewhere", "unknown process", "no cgroups", "another PID namespace"],
)
async def test_a_container_without_a_visible_cgroup_has_not_ended(node: Node) -> None:
    assert await node.after_a_round() == ([], [])


async def test_a_creation_without_a_process_for_too_long_is_given_up() -> None:
    node = Node(ALL, created=(("created", 0), ("again", 21)))
    assert await node.after_a_round() == ([], [])
    node.now = MAX_CREATION - 1.0
    await node.orphans.round()
    assert node.given_up == []
    node.now = MAX_CREATION
    await node.orphans.round()
    assert node.given_up == ["again", "created"]
    assert node.released == []


@pytest.mark.parametrize(
    ("cgroups", "pids"),
    [(ALL | {"created": [20]}, ()), (ALL | {"created": [0]}, ()), (ALL, (20,)), ({}, ())],
    ids=["slow hook", "another PID namespace", "cgroup elsewhere", "no cgroups"],
)
async def test_a_creation_that_may_go_on_is_never_given_up(
    cgroups: dict[str, list[int]], pids: tuple[int, ...]
) -> None:
    node = Node(cgroups, pids=pids, created=(("created", 20),))
    await node.after_a_round()
    node.now = 1000 * MAX_CREATION
    await node.orphans.round()
    assert node.given_up == []


async def test_a_creation_has_its_time_from_when_it_was_last_seen_to_go_on() -> None:
    node = Node(ALL, created=(("created", 0),))
    await node.after_a_round()
    for node.now, node.cgroups in (
        (MAX_CREATION - 1.0, ALL | {"created": [20]}),
        (MAX_CREATION, ALL),
        (2 * MAX_CREATION - 1.0, ALL),
    ):
        await node.orphans.round()
        assert node.given_up == []
    node.now, node.later = 2 * MAX_CREATION, ALL | {"created": [20]}  # at the second look
    await node.orphans.round()
    assert node.given_up == []


async def test_who_is_in_no_book_is_taken_in_once() -> None:
    node = Node(ALL | {"c4": [14], "crio-conmon-c5": [15], "crio-created": [16]})
    assert await node.after_a_round() == ([], [f"{POD}/c4"])
    assert node.orphans.unknown == {f"{POD}/c4"}
    await node.orphans.round()
    assert node.admitted == [f"{POD}/c4"]
    node.cgroups = ALL
    await node.orphans.round()
    assert not node.orphans.unknown


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    ("folder", "path"),
    [
        ("/kubepods/pod1", "kubepods/pod1"),
        ("kubepods-pod1.slice", "kubepods.slice/kubepods-pod1.slice"),
    ],
)
def test_threads_are_read_from_cgroups(
    folder: str, path: str, version: int, tmp_path: Path
) -> None:
    root = Root(tmp_path, version)
    root.cgroup(f"{path}/c1", thread=70)
    root.cgroup(f"{path}/c2", thread=71).hold()
    cgroups = Cgroups(tmp_path)
    assert cgroups.find_populated(folder) == {"c1": {70}}
    assert cgroups.processes(f"/{path}/c1") == {70}
    assert not cgroups.processes(f"/{path}/c3")
    assert cgroups.has_process(70)
    assert not cgroups.has_process(72)


async def test_a_room_without_tenants_ends_with_the_last_process_of_its_pod() -> None:
    rooms = {"ended": "/kubepods/ended", "lives": "/kubepods/lives"}
    node = Node({"c1": [11], "c2": [12], "c3": [13]}, pids=(11, 12), rooms=rooms)
    node.others = {"/kubepods/lives": {"lives": [21]}}
    await node.after_a_round()
    assert node.empty_rooms == ["ended"]
    unseen = Node({}, rooms=rooms)
    await unseen.after_a_round()
    assert unseen.empty_rooms == [], "nothing can be seen from here"
