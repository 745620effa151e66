"""All that can happen to two containers: a part of what `make model` explores."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Collection, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from unittest import mock

import pytest

from nri_policy.delivery import next_actions
from nri_policy.nri import versions
from tests.loop.mutants import MUTANTS as LOOP_MUTANTS
from tests.model.__main__ import explore, silent
from tests.model.coverage import Row, met, rows_of_table
from tests.model.invariants import Invariants
from tests.model.known_faults import BY_MODEL, BY_TEST
from tests.model.mutants import MUTANTS
from tests.model.scenes import RELEASES, SCENES, differences
from tests.model.world import Model, Scene

STATES = 100  # of each scene and release
STATES_FOR_ROWS = 300  # of five scenes
BY_NAME = {each.name: each for each in SCENES}
ROOT = Path(__file__).parents[2]


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


def follow(scene: str, release: tuple[str, str], steps: Sequence[str]) -> Collection[str]:
    """Follow a history, and return what can come next.

    What must hold does so after each step, and in the end.
    """
    with silent():
        model = Model(BY_NAME[scene], *release)
        invariants, world = Invariants(model), model.first()
        for step in steps:
            world = dict(model.moves(world))[step]
            assert not invariants.wrong(world), step
        broken, then = invariants.settles(world)
        assert not broken, then
        return [text for text, _ in model.moves(world)]


def test_a_resize_may_come_into_force_after_the_last_look_before_it_is_taken_back() -> None:
    """What it frees is given to another, and the next look has it leave that."""
    follow(
        "two owners that move",
        ("containerd", "2.4.0"),
        (
            "owner is to be resized; the daemon answers: the runtime goes on with owner",
            "some seconds pass",
            "the daemon's turn: read",
            "files are read",
            "the runtime resizes owner: 1,3",
            "other is to be resized; the daemon answers: the runtime goes on with other",
        ),
    )


def test_an_answer_that_is_not_handled_yet_undoes_nothing() -> None:
    """What it says is in force already, which a look finds; then other CPUs are decided."""
    then = follow(
        "owner and sharer, a CPU comes and goes",
        ("cri-o", "1.36.3"),
        (
            "a CPU goes offline",
            "owner is to be resized",
            "sharer is written: 2-3 → 0",
            "the daemon hears of it",
            "the daemon answers with sharer on 0",
            "the daemon's turn: read",
            "files are read",
            "a CPU comes back",
            "the daemon's turn: write",
        ),
    )
    assert "the runtime updates sharer" in then
    assert "sharer is written: 0 → 1" not in then


def test_a_container_leaves_the_cpus_of_an_owner_that_moves_before_that_comes() -> None:
    """They exchange CPUs: the one that shares them may be on those that the owner leaves."""
    then = follow(
        "owner and sharer, a CPU comes and goes, a fault",
        ("containerd", "2.4.0"),
        (
            "a CPU goes offline",
            "owner is to be resized",
            "the daemon is killed",
            "the runtime resizes owner: 1",
            "a new daemon starts",
            "the runtime lists its containers",
            "files are read",
            "files are read",
        ),
    )
    assert "sharer is written: 2-3 → 1; owner is written: 1 → 2-3" in then


def test_a_write_that_a_resize_does_not_wait_for_may_come_after_its_answer() -> None:
    """A system call cannot be called back: what waits behind it puts an end to that."""
    follow(
        "owner and sharer, a CPU comes and goes, a fault",
        ("containerd", "2.4.0"),
        (
            "a CPU goes offline",
            "the daemon's turn: write",
            "owner is to be resized",
            "the daemon waits for files no longer",
            "the daemon answers with sharer on 0",
            "the runtime updates sharer",
            "the runtime goes on with owner",
            "the runtime resizes owner: 2-3",
            "sharer is written: 0 → 3; owner is written: 2-3 → 2",
        ),
    )


def test_a_write_may_come_after_a_resize_whose_connection_was_lost() -> None:
    follow(
        "owner and sharer, a CPU comes and goes, a fault",
        ("containerd", "2.4.0"),
        (
            "a CPU goes offline",
            "the daemon's turn: write",
            "sharer is written: 2-3 → 3; owner is written: 1 → 2",
            "a CPU comes back",
            "the daemon hears of it",
            "owner is to be resized",
            "the connection is lost",
            "the runtime resizes owner: 1",
            "sharer is written: 3 → 1,3",
        ),
    )


def test_a_resize_may_come_into_force_after_the_list_that_a_registration_believes() -> None:
    follow(
        "two owners that move, two faults",
        ("containerd", "2.4.0"),
        (
            "owner is to be resized; the daemon answers: the runtime goes on with owner",
            "the connection is lost",
            "the runtime lists its containers",
            "the runtime resizes owner: 1,3",
            "the daemon waits for files no longer",
            "the daemon answers: the daemon is registered",
            "other is to be resized; the daemon answers: the runtime goes on with other",
        ),
    )


def test_a_resize_looks_again_if_systemd_undoes_what_a_look_has_written() -> None:
    then = follow(
        "owner and sharer of systemd's, two faults",
        ("containerd", "2.4.0"),
        (
            "owner is to be resized",
            "sharer cannot be written",
            "the daemon hears of it",
            "files are read",
            "sharer is written: 2-3 → 3",
            "systemd undoes what was written to sharer",
            "the daemon hears of it",
            "files are read",
        ),
    )
    assert "sharer is written: 2-3 → 3" in then


def test_a_late_answer_may_be_given_while_systemd_has_undone_a_write() -> None:
    follow(
        "an owner comes to a sharer of systemd's, two faults",
        ("containerd", "2.4.0"),
        (
            "owner is to be created; the daemon answers: the runtime goes on with owner",
            "owner is created",
            "the runtime prepares the start of owner",
            "owner starts",
            "sharer is written: 1-3 → 2-3",
            "systemd undoes what was written to sharer",
            "the daemon waits for files no longer",
            "the daemon hears of it",
            "the daemon answers: the runtime goes on with owner",
        ),
    )


def test_each_release_is_like_one_that_is_explored() -> None:
    explored = {differences(*release) for release in RELEASES}
    shipped = {
        (name, ".".join(map(str, number)))
        for name, rows in versions._SHIPPED.items()
        for number, _ in rows
    }
    assert {differences(*release) for release in shipped} == explored


@pytest.mark.parametrize("fault", BY_MODEL)
def test_the_model_finds_a_known_fault(fault: str) -> None:
    scene, release, states = BY_MODEL[fault]
    assert explore(BY_NAME[scene], release, states, MUTANTS[fault]).broken


def test_a_test_of_its_own_finds_each_other_known_fault() -> None:
    """In a process of its own: pytest runs no tests within a test."""
    assert BY_MODEL.keys() | BY_TEST.keys() == MUTANTS.keys()
    assert BY_MODEL.keys().isdisjoint(BY_TEST)
    ended = subprocess.run(
        [sys.executable, "-m", "tests.model.known_faults"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_the_page_of_delivery_names_what_finds_each_known_fault() -> None:
    page = (ROOT / "docs/design/delivery.md").read_text()
    found = {**dict.fromkeys(LOOP_MUTANTS, "the loop"), **dict.fromkeys(BY_MODEL, "the model")}
    found |= {each: f"`{test.split('/')[-1]}`" for each, test in BY_TEST.items()}
    assert [f"| {each} | {by} |" for each, by in found.items()] == [
        each for each in page.splitlines() if each.endswith((" the model |", " the loop |", "` |"))
    ]


def test_the_rows_of_the_table_of_states_are_known() -> None:
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
        explore(BY_NAME[name], release, STATES_FOR_ROWS, partial(met, rows))
    with mock.patch.object(next_actions, "MAX_TRIES", 1):  # one fault has a change given up
        scene = BY_NAME["an owner comes, cgroups are read-only, a fault"]
        explore(scene, release, STATES_FOR_ROWS, partial(met, rows))
    assert rows == {*Row}
