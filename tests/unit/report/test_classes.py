"""The report of a container's classes: wanted and found values, and whether they agree."""

from __future__ import annotations

import pytest

from nri_policy.classes import BlockIOClass, Classes, IOPriority, Origin, Scheduler, Scheduling
from nri_policy.report import class_items
from nri_policy.settings import IOClass, SchedulingFlag, SchedulingPolicy

LINE = "8:0 rbps=1 wbps=max riops=max wiops=max"
CLASSES = Classes(
    scheduling=Scheduling(
        name="calm",
        origin=Origin.NAMESPACE,
        scheduler=Scheduler(
            policy=SchedulingPolicy.BATCH, nice=5, flags=(SchedulingFlag.RESET_ON_FORK,)
        ),
        io_priority=IOPriority(io_class=IOClass.BE, level=7),
    ),
    blockio=BlockIOClass(
        name="slow", origin=Origin.QOS, limits={"io.max": LINE}, lacking=("no disk",), notes=("so",)
    ),
)


@pytest.mark.parametrize(
    ("found", "states"),
    [
        ({}, {"scheduler": "pending", "io_priority": "pending", "io.max": "pending"}),
        # flags cannot be read, and what else is limited is not ours
        (
            {
                "scheduler": "batch, nice 5",
                "io_priority": "be 7",
                "io.max": f"{LINE}\n8:16 rbps=5 wbps=max riops=max wiops=max\n",
            },
            {"scheduler": "ok", "io_priority": "ok", "io.max": "ok"},
        ),
        (
            {"scheduler": "other, nice 0", "io_priority": "be 4", "io.max": ""},
            dict.fromkeys(("scheduler", "io_priority", "io.max"), "not applied"),
        ),
        (
            {"scheduler": "batch, nice 5"},
            {"scheduler": "ok", "io_priority": "pending", "io.max": "pending"},
        ),
    ],
)
def test_what_is_wanted_is_compared_with_what_is_found(
    found: dict[str, str], states: dict[str, str]
) -> None:
    items = class_items(CLASSES, found)
    assert items is not None
    assert {each.item: each.state for each in items if each.item} == states
    assert {each.item: each.found for each in items if each.item} == dict.fromkeys(states) | found
    assert [(each.wanted, each.state) for each in items if not each.item] == [
        ("no disk", "unsupported"),
        ("so", "note"),
    ]
    assert {(each.kind, each.name, each.origin) for each in items} == {
        ("scheduling", "calm", "namespace"),
        ("blockio", "slow", "QoS"),
    }


def test_who_is_in_no_class_has_no_items() -> None:
    assert class_items(None, {}) is None
