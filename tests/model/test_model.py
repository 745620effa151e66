"""All that can happen to two containers: a part of what `make model` explores."""

from __future__ import annotations

from functools import partial
from itertools import product
from unittest import mock

import pytest

from nri_policy.delivery import machine
from nri_policy.nri import versions
from tests.model.__main__ import explore
from tests.model.coverage import Row, met, rows_of_table
from tests.model.mutants import MUTANTS
from tests.model.scenes import RELEASES, SCENES, differences
from tests.model.world import Scene

STATES = 300  # of each scene and release
BY_NAME = {each.name: each for each in SCENES}
NEWEST_CONTAINERD = ("containerd", "2.4.0")


@pytest.mark.parametrize(
    ("scene", "release"),
    list(product(SCENES, RELEASES)),
    ids=lambda each: " ".join(each) if isinstance(each, tuple) else each.name,
)
def test_decisions_come_into_force_whatever_happens_next(
    scene: Scene, release: tuple[str, str]
) -> None:
    found = explore(scene, release, STATES)
    assert not found.broken, "\n".join([found.broken, *found.history])


def test_each_release_is_like_one_that_is_explored() -> None:
    explored = {differences(*release) for release in RELEASES}
    shipped = {
        (name, ".".join(map(str, number)))
        for name, rows in versions._SHIPPED.items()
        for number, _ in rows
    }
    assert {differences(*release) for release in shipped} == explored


@pytest.mark.parametrize(
    ("fault", "scene", "release", "states"),
    [
        (
            "a start does not look at what is in doubt",
            "a sharer and an owner to come",
            NEWEST_CONTAINERD,
            2500,
        ),
        (
            "a resize is answered before others have left its CPUs",
            "an owner comes to a sharer",
            NEWEST_CONTAINERD,
            2500,
        ),
        (
            "a start does not look for what systemd has undone",
            "an owner comes to a sharer of systemd's, a fault",
            ("containerd", "1.7.24"),
            6000,
        ),
        (
            "CPUs that a partition still has are given to another",
            "owner and sharer of one pod, the kernel keeps others off",
            NEWEST_CONTAINERD,
            2500,
        ),
        (
            "what an earlier daemon has left in files of partitions stays",
            "two owners that move, the kernel keeps others off, a fault",
            NEWEST_CONTAINERD,
            500,
        ),
    ],
)
def test_the_model_finds_a_known_fault(
    fault: str, scene: str, release: tuple[str, str], states: int
) -> None:
    found = explore(BY_NAME[scene], release, states, MUTANTS[fault])
    assert found.broken.startswith(("S1", "S2", "L1"))


def test_the_rows_of_the_machines_table_are_known() -> None:
    assert rows_of_table() == [each.value for each in Row]


@pytest.mark.parametrize("release", RELEASES, ids=" ".join)
def test_each_row_of_the_machines_table_is_reached(release: tuple[str, str]) -> None:
    rows: set[Row] = set()
    for name in (
        "an owner comes to a sharer",
        "a sharer comes to an owner",
        "an owner comes to a sharer, a fault",
        "two owners that move, the kernel keeps others off, a fault",
    ):
        explore(BY_NAME[name], release, STATES, partial(met, rows))
    with mock.patch.object(machine, "MAX_TRIES", 1):  # one fault has a change given up
        scene = BY_NAME["an owner comes, cgroups are read-only, a fault"]
        explore(scene, release, STATES, partial(met, rows))
    assert rows == {*Row}
