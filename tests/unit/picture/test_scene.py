"""Scenes: marks, changes, and texts from outside."""

from __future__ import annotations

import pytest

from nri_policy.engine.engine import Engine
from nri_policy.engine.event import Created, Stopped
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.manifests.quality_of_service import QoS
from nri_policy.picture.mark import COLOURS
from nri_policy.picture.scene import DrawnUse, Purpose, Scene
from tests.support import nodes
from tests.support.pictures import container, holding, made_up, scene_of


def letters(scene: Scene) -> dict[str, str]:
    """Return the letters of containers by their names."""
    return {name: mark.letter for name, mark in scene.marks.items()}


def test_letters_stay_through_a_series_of_scenes(engine: Engine) -> None:
    first = scene_of(engine)
    assert letters(first) == {"default/db/main": "A", "default/cache/main": "B"}
    engine.handle(Stopped(container_id="db"))
    engine.handle(Created(container=container("ml", 2000, None, "default", QoS.GUARANTEED)))
    second = scene_of(engine, first)
    assert letters(second)["default/cache/main"] == "B"
    assert letters(second)["default/ml/main"] == "C"
    engine.handle(Created(container=container("db", 2000, None, "default", QoS.GUARANTEED)))
    assert letters(scene_of(engine, second))["default/db/main"] == "A"


def test_a_letter_is_used_again_only_when_all_are(engine: Engine) -> None:
    full = made_up(engine, {f"c{number}": holding() for number in range(36)})
    assert len(set(letters(full).values())) == 36
    later = made_up(engine, {"c35": holding(), "new": holding()}, full)
    assert letters(later) == {"c35": letters(full)["c35"], "new": "A"}


def test_those_for_whom_no_letter_is_left_share_one(engine: Engine) -> None:
    crowd = made_up(engine, {f"c{number}": holding() for number in range(40)})
    assert list(letters(crowd).values())[35:] == ["9", "#", "#", "#", "#"]


def test_a_container_alone_has_the_same_colour_in_every_picture(engine: Engine) -> None:
    alone = {name: made_up(engine, {name: holding()}).marks[name].colour for name in ("a", "b")}
    assert alone == {"a": 213, "b": 208}, "as ever: the colour follows from the name"


def test_the_first_eight_containers_have_the_colours_that_are_far_from_each_other(
    engine: Engine,
) -> None:
    names = [f"pod-{number}/main" for number in range(8)]
    marks = made_up(engine, {name: holding() for name in names}).marks
    assert {mark.colour for mark in marks.values()} == set([*COLOURS][:8])


def test_containers_have_different_colours_while_there_are_enough(engine: Engine) -> None:
    names = [f"pod-{number}/main" for number in range(len(COLOURS))]
    marks = made_up(engine, {name: holding() for name in names}).marks
    assert {mark.colour for mark in marks.values()} == set(COLOURS)


@pytest.mark.parametrize(
    ("fields", "change"),
    [
        ({}, ""),
        ({"cpus": "1-3"}, "got CPUs 2-3"),
        ({"cpus": "2"}, "left CPU 1; got CPU 2"),
        ({"cpus": str(CPUSet(range(1, 31, 2)))}, "got 14 CPUs"),
        ({"shared_milli": 500}, "shared 0 before"),
        ({"mems": ""}, "mems 0 before"),
        ({"pool": "socket #0"}, "from root"),
    ],
)
def test_a_change_is_said_in_a_few_words(
    engine: Engine, fields: dict[str, object], change: str
) -> None:
    before = made_up(engine, {"c": holding()})
    assert made_up(engine, {"c": holding(**fields)}, before).occupants[0].change == change


def test_a_newcomer_is_said(engine: Engine) -> None:
    before = made_up(engine, {"old": holding()})
    after = made_up(engine, {"old": holding(), "new": holding()}, before)
    assert [each.change for each in after.occupants] == ["", "new"]


def test_cpus_that_change_hands_are_marked_and_those_shared_by_others_are_not(
    engine: Engine,
) -> None:
    before = made_up(engine, {"a": holding(exclusive="1-2")})
    a = holding(exclusive="2-3")
    after = made_up(
        engine, {"a": a, "b": holding(exclusive="", cpus="8-11", shared_milli=100)}, before
    )
    assert after.moved == CPUSet([1, 3])
    assert after.places[8] == DrawnUse(Purpose.SHARED)
    assert before.places[8] == DrawnUse(Purpose.IDLE)


def test_what_is_granted_counts_in_every_pool_around(engine: Engine) -> None:
    scene = made_up(
        engine,
        {
            "a": holding(pool="NUMA node #1", exclusive="", shared_milli=1500),
            "b": holding(pool="a pool of other settings", exclusive="8", shared_milli=500),
        },
    )
    captions = {area.name: area.caption for area in scene.areas.values()}
    assert captions["NUMA node #1"] == "mem 1 · shared 1.5 of 7"
    assert captions["socket #0"] == "mem 0-1 · shared 1.5 of 13"
    assert captions["NUMA node #0"] == "mem 0 · shared 0 of 6"


def test_names_from_outside_are_made_fit_to_be_shown(engine: Engine) -> None:
    evil = "default/\x1b[2Jp\u202e\ud800/c\n"
    scene = made_up(
        engine, {evil: holding(), "no": holding(pool=None, error="bad \x07 annotation")}
    )
    (name,) = scene.marks
    assert name == "default/\\x1b[2Jp\\u202e\\ud800/c\\n"
    assert scene.places[1] == DrawnUse(Purpose.OWN, name)
    assert scene.refused == {"no": "bad \\x07 annotation"}


def test_who_made_way_is_shown_with_the_pool_that_it_goes_back_to() -> None:
    machine = nodes.machine("package:2 numa:1 core:4 pu:1")
    engine = Engine(machine, nodes.settings(reservedResources={"cpu": "cpuset:0"}))
    engine.handle(Created(container=container("db", 100, 100, "default", QoS.GUARANTEED)))
    before = scene_of(engine)
    engine.handle(Created(container=container("ml", 4000, None, "default", QoS.GUARANTEED)))
    after = scene_of(engine, before)
    (db,) = (each for each in after.occupants if each.name == "default/db/main")
    assert (db.pool, db.place) == ("root", "root, from socket #1")
    assert db.change.startswith("from socket #1; ")
    engine.handle(Stopped(container_id="ml"))
    (db,) = scene_of(engine, after).occupants
    assert (db.place, db.change.split(";")[0]) == ("socket #1", "from root")
