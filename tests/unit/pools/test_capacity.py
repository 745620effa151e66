"""What is reserved, isolated and sharable: every form of the settings, and the impossible ones."""

from __future__ import annotations

import pytest

from nri_policy.foundation.cpuset import CPUSet
from nri_policy.pools.capacity import (
    NOTHING,
    Capacity,
    CapacityError,
    Earlier,
    capacity_left,
    capacity_of,
)
from nri_policy.pools.picker import picker_of
from tests.support import nodes


def capacity(spec: str, available: str | None, reserved: object) -> Capacity:
    machine = nodes.machine(spec)
    options: dict[str, object] = {"reservedResources": {"cpu": reserved}}
    if available is not None:
        options["availableResources"] = {"cpu": available}
    return capacity_of(machine, nodes.settings(**options), picker_of(machine))


ISOLATED = nodes.SMALL + " isolated=4-5,10"


@pytest.mark.parametrize(
    ("spec", "available", "reserved", "parts"),
    [
        (nodes.SMALL, None, "750m", ("0", "", "1-15")),
        (nodes.SMALL, None, "1", ("0", "", "1-15")),
        (nodes.SMALL, None, 2, ("0-1", "", "2-15")),
        (nodes.SMALL, None, "1001m", ("0-1", "", "2-15")),
        (nodes.SMALL, None, "3", ("0-2", "", "3-15")),
        (nodes.SMALL, None, "5", ("0-4", "", "5-15")),
        (nodes.SMALL, None, "16", ("0-15", "", "")),
        (nodes.SMALL, None, "cpuset:3,9", ("3,9", "", "0-2,4-8,10-15")),
        (nodes.SMALL, None, "exclude-cpuset:2-15", ("0-1", "", "2-15")),
        (nodes.SMALL, "cpuset:4-11", "cpuset:11", ("11", "", "4-10")),
        (nodes.SMALL, "cpuset:4-11", "exclude-cpuset:4-10", ("11", "", "4-10")),
        (nodes.SMALL, "exclude-cpuset:0-3", "1", ("4", "", "5-15")),
        # CPU 1 is half a core by now: it goes before whole ones
        (nodes.SMALL, "exclude-cpuset:0", "1", ("1", "", "2-15")),
        (nodes.SMALL, "cpuset:0-400", "1", ("0", "", "1-15")),
        (nodes.SMALL + " offline=0-1", None, "1", ("2", "", "3-15")),
        (nodes.SMALL + " offline=0-1", "cpuset:0-3", "1", ("2", "", "3")),
        # CPU 6 is a whole core, because 7 is offline: reserved before threads of lower cores
        (nodes.SMALL + " offline=7", None, "1", ("6", "", "0-5,8-15")),
        # isolated CPUs are never reserved by a quantity, and may be by a list
        (ISOLATED, None, "750m", ("0", "4-5,10", "1-3,6-9,11-15")),
        (ISOLATED, None, "cpuset:0,4", ("0,4", "5,10", "1-3,6-9,11-15")),
        (ISOLATED, "cpuset:5-9", "cpuset:9", ("9", "5", "6-8")),
    ],
)
def test_available_cpus_are_parted_in_three(
    spec: str, available: str | None, reserved: object, parts: tuple[str, str, str]
) -> None:
    found = capacity(spec, available, reserved)
    assert (str(found.reserved), str(found.isolated), str(found.sharable)) == parts
    assert bool(found.notes) is not bool(found.sharable)


def test_settings_that_leave_pods_no_cpu_to_share_are_noted() -> None:
    takes = "is left for pods: reservedResources.cpu takes"
    assert capacity(nodes.SMALL, None, "cpuset:0-15").notes == (f"no CPU {takes} 0-15",)
    few = capacity(ISOLATED, "cpuset:0-5", "cpuset:0-3")
    assert few.notes == (f"no CPU but the isolated 4-5 {takes} 0-3",)


@pytest.mark.parametrize(
    ("spec", "available", "reserved", "message"),
    [
        (
            nodes.SMALL,
            "cpuset:16-20",
            "1",
            "availableResources.cpu: no CPU is left: this machine has 0-15 online",
        ),
        (
            nodes.SMALL,
            "exclude-cpuset:0-15",
            "1",
            "availableResources.cpu: no CPU is left: this machine has 0-15 online",
        ),
        (
            nodes.SMALL,
            None,
            "17",
            (
                "reservedResources.cpu: cannot reserve 17 CPUs:"
                " the available CPUs that are not isolated are 0-15"
            ),
        ),
        (
            nodes.SMALL,
            "exclude-cpuset:0-3,6-15",
            "2001m",
            (
                "reservedResources.cpu: cannot reserve 3 CPUs:"
                " the available CPUs that are not isolated are 4-5"
            ),
        ),
        (
            "package:1 core:4 isolated=0-3",
            None,
            "1",
            (
                "reservedResources.cpu: cannot reserve 1 CPU:"
                " the available CPUs that are not isolated are none"
            ),
        ),
        (
            nodes.SMALL,
            "cpuset:4-17",
            "cpuset:15-16",
            "reservedResources.cpu: 16 is not in the available CPUs 4-15",
        ),
        (
            nodes.SMALL + " offline=3",
            None,
            "cpuset:3",
            "reservedResources.cpu: 3 is not in the available CPUs 0-2,4-15",
        ),
        (
            nodes.SMALL,
            None,
            "exclude-cpuset:0-15",
            "reservedResources.cpu: it contains none of the available CPUs 0-15",
        ),
    ],
)
def test_the_impossible_is_refused_with_its_reason(
    spec: str, available: str | None, reserved: str, message: str
) -> None:
    with pytest.raises(CapacityError) as refused:
        capacity(spec, available, reserved)
    assert str(refused.value) == message


def test_no_reservation_is_no_settings() -> None:
    machine = nodes.machine()
    with pytest.raises(ValueError, match=r"reservedResources\.cpu: it is required"):
        capacity_of(machine, nodes.settings(reservedResources={}), picker_of(machine))


@pytest.mark.parametrize(
    ("left", "available", "reserved", "parts", "notes"),
    [
        ("offline=4-15", None, "2", ("0-1", "", "2-3"), []),
        ("offline=1-15", None, "2", ("0", "", ""), ["cannot reserve 2 CPUs"]),
        ("offline=0-3", "cpuset:0-3", "1", ("4", "", "5-15"), ["all online CPUs 4-15 are used"]),
        ("offline=0-2", "cpuset:0-3", "cpuset:0", ("3", "", ""), ["CPUs 3: 3 is reserved"]),
        ("offline=0", None, "cpuset:0-2", ("1-2", "", "3-15"), ["1-15: 1-2 is reserved"]),
        ("offline=0-1", None, "exclude-cpuset:2-15", ("2", "", "3-15"), ["2-15: 2 is reserved"]),
        (
            "offline=0-1 isolated=2-15",
            None,
            "1",
            ("2", "3-15", ""),
            ["are not isolated are none: 2 is"],
        ),
    ],
)
def test_what_a_machine_has_left_of_what_is_asked(
    left: str, available: str | None, reserved: object, parts: tuple[str, ...], notes: list[str]
) -> None:
    machine = nodes.machine(f"{nodes.SMALL} {left}")
    asked: dict[str, object] = {"reservedResources": {"cpu": reserved}}
    if available is not None:
        asked["availableResources"] = {"cpu": available}
    found, said = capacity_left(machine, nodes.settings(**asked), picker_of(machine), NOTHING)
    assert (str(found.reserved), str(found.isolated), str(found.sharable)) == parts
    assert len(said) == len(notes)
    assert all(note in text for note, text in zip(notes, said, strict=True)), said


def test_what_is_left_and_was_reserved_stays_reserved() -> None:
    machine = nodes.machine(f"{nodes.SMALL} offline=0-3")
    settings = nodes.settings(reservedResources={"cpu": "cpuset:0"})
    earlier = Earlier(reserved=CPUSet((7,)), exclusive=CPUSet((4,)))
    found, _ = capacity_left(machine, settings, picker_of(machine), earlier)
    assert str(found.reserved) == "7"
