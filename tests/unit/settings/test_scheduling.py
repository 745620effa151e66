"""Scheduling classes: what the kernel and runc would refuse is an error of the settings."""

from __future__ import annotations

from typing import Any

import pytest

from nri_policy.settings import SettingsError, from_spec

RESERVED = {"reservedResources": {"cpu": "750m"}}
DEADLINE = {
    "policy": "deadline",
    "flags": ["reset-on-fork"],
    "runtime": "1ms",
    "deadline": "5ms",
    "period": "10ms",
}


def problems_of(**fields: Any) -> list[str]:
    spec = RESERVED | {"schedulingClasses": [{"name": "a", **fields}]}
    try:
        from_spec(spec, "here")
    except SettingsError as error:
        return [str(problem).removeprefix("schedulingClasses[0].") for problem in error.problems]
    return []


@pytest.mark.parametrize(
    "fields",
    [
        {"policy": "none", "nice": 5},
        {"policy": "other", "nice": -20},
        {"policy": "batch", "nice": 19},
        {"policy": "idle", "nice": 5},
        {"policy": "fifo", "priority": 1},
        {"policy": "rr", "priority": 99},
        {"nice": 5},
        {"flags": ["reset-on-fork"]},
        DEADLINE,
        {**DEADLINE, "period": 0},
        {**DEADLINE, "runtime": 1024, "deadline": 1024, "period": 100_000},
        {**DEADLINE, "period": 4_194_304_000},
        {"ioClass": "be", "ioPriority": 7},
        {"ioClass": "rt", "ioPriority": 0},
        {"ioClass": "idle", "ioPriority": 7},
        {"ioClass": "none"},
    ],
)
def test_what_the_kernel_takes_is_taken(fields: dict[str, Any]) -> None:
    assert not problems_of(**fields)


@pytest.mark.parametrize(
    ("fields", "remark"),
    [
        ({"policy": "fifo", "priority": 1, "nice": 5}, "nice has no effect with policy fifo"),
        ({"policy": "rr", "priority": 1, "nice": 0}, "nice has no effect with policy rr"),
        ({"policy": "idle", "nice": 5}, "nice has no effect with policy idle"),
        ({**DEADLINE, "nice": 5}, "nice has no effect with policy deadline"),
        ({"ioClass": "idle", "ioPriority": 7}, "ioPriority has no effect with ioClass idle"),
        ({"policy": "batch", "nice": 5, "ioClass": "be", "ioPriority": 7}, None),
    ],
)
def test_what_the_kernel_ignores_is_noticed(fields: dict[str, Any], remark: str | None) -> None:
    found = from_spec(RESERVED | {"schedulingClasses": [{"name": "c", **fields}]}, "here")
    assert found.notices == (() if remark is None else (f"scheduling class c: {remark}",))


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"policy": "iso"}, "policy: 'iso' is not implemented by Linux: the kernel refuses it"),
        ({"nice": 20}, "nice: 20 is not from -20 to 19"),
        ({"nice": -21}, "nice: -21 is not from -20 to 19"),
        ({"policy": "fifo"}, "priority: 0: policy fifo requires one from 1 to 99"),
        (
            {"policy": "rr", "priority": 100},
            "priority: 100: policy rr requires one from 1 to 99",
        ),
        (
            {"policy": "batch", "priority": 1},
            "priority: 1: only policies fifo and rr have a priority",
        ),
        ({"runtime": 5}, "runtime: 5: only policy deadline has a runtime"),
        (
            {**DEADLINE, "flags": []},
            "flags: policy deadline requires reset-on-fork: otherwise the process cannot fork",
        ),
        (
            {**DEADLINE, "runtime": 1000},
            "runtime: 1000 ns is less than 1024",
        ),
        (
            {**DEADLINE, "runtime": "6ms"},
            "deadline: 5000000 ns is not between runtime and period",
        ),
        (
            {**DEADLINE, "deadline": "20ms"},
            "deadline: 20000000 ns is not between runtime and period",
        ),
        (
            {**DEADLINE, "period": "5s"},
            "period: 5000000000 ns is more than 4.19s",
        ),
        (
            {"flags": ["util-clamp-min"]},
            "flags: util-clamp-min needs a value, which a container's specification does not have",
        ),
        ({"ioPriority": 3}, "ioPriority: 3: it requires an ioClass"),
        ({"ioClass": "none", "ioPriority": 1}, "ioPriority: 1: ioClass none has no levels"),
        ({"ioClass": "be", "ioPriority": 8}, "ioPriority: 8 is not from 0 to 7"),
    ],
)
def test_what_a_container_would_die_of_is_refused(fields: dict[str, Any], problem: str) -> None:
    """The peer leaves ranges to runc, which refuses the container (scheduling F6)."""
    assert problems_of(**fields) == [problem]


def test_microseconds_are_not_taken_for_nanoseconds() -> None:
    """The peer says microseconds, and its values are nanoseconds (scheduling F1)."""
    times = {"runtime": 10_000, "deadline": 30_000, "period": 30_000}
    assert problems_of(**(DEADLINE | times)) == [
        "period: 30000 ns is less than 100us: nanoseconds, not microseconds?"
    ]


def test_a_name_is_there_once_and_a_reference_leads_to_it() -> None:
    spec = RESERVED | {
        "schedulingClasses": [{"name": "calm"}, {"name": "calm"}],
        "namespaceSchedulingClasses": {"ci": "clam"},
        "podQoSSchedulingClasses": {"Guaranteed": "calm", "sometimes": "calm"},
    }
    with pytest.raises(SettingsError) as caught:
        from_spec(spec, "here")
    assert [str(problem) for problem in caught.value.problems] == [
        "podQoSSchedulingClasses: 'sometimes' is not one of besteffort, burstable, guaranteed"
    ]
    del spec["podQoSSchedulingClasses"]
    with pytest.raises(SettingsError) as caught:
        from_spec(spec, "here")
    assert [str(problem) for problem in caught.value.problems] == [
        "schedulingClasses[1].name: 'calm' is given twice",
        (
            "namespaceSchedulingClasses.ci: 'clam' is not one of schedulingClasses (calm, calm);"
            " did you mean 'calm'?"
        ),
    ]
