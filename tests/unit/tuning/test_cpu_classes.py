"""What CPU classes set, on machines of more than one kind of CPU."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from nri_policy.foundation.cpuset import CPUSet
from nri_policy.hardware.discovery import discover
from nri_policy.hardware.power import Power, power_of
from nri_policy.hardware.synthetic import write
from nri_policy.settings import CPUClass
from nri_policy.tuning.cpu_classes import ClassAssignment, Wishes, find_faults, find_wishes
from nri_policy.tuning.items import check
from tests.support import nodes
from tests.support.fake_cpus import HYBRID, FakeCPUs, two_kinds

Classes = dict[str, tuple[str, dict[str, Any]]]  # CPUs and fields, by name


@pytest.fixture(name="power")
def _power(tmp_path: Path) -> Power:
    write(HYBRID, tmp_path)
    two_kinds(tmp_path)
    return power_of(tmp_path, discover(tmp_path))


def cpu_class(name: str, **fields: Any) -> CPUClass:
    (found,) = nodes.settings(
        cpuClasses=[{"name": name, **fields}], sharedPoolCPUClass=name
    ).cpu_classes
    return found


def wish(power: Power, packages: list[str], **of: tuple[str, dict[str, Any]]) -> Wishes:
    """Return the wishes of classes by name: their CPUs and fields."""
    assignments = [
        ClassAssignment(given=cpu_class(name, **fields), cpus=CPUSet.parse(cpus), origin=name)
        for name, (cpus, fields) in of.items()
    ]
    wishes = find_wishes(assignments, power, map(CPUSet.parse, packages))
    for item, each in wishes.items.items():
        check(item, each.value)  # the tuner takes it
    return wishes


def values(power: Power, **of: tuple[str, dict[str, Any]]) -> dict[str, str]:
    items = wish(power, ["0-3"], **of).items
    return {str(item): each.value for item, each in items.items()}


def test_symbols_are_those_of_each_cpu(power: Power) -> None:
    """The peer takes the first CPU's for all, which is wrong on hybrid machines."""
    assert values(power, fast=("0-3", {"minFreq": "base", "maxFreq": "turbo"})) == {
        "cpufreq/0/min_freq": "2400000",
        "cpufreq/0/max_freq": "3600000",
        "cpufreq/1/min_freq": "2400000",
        "cpufreq/1/max_freq": "3600000",
        "cpufreq/2/min_freq": "1600000",
        "cpufreq/2/max_freq": "2800000",
    }


def test_a_number_is_limited_to_the_range_as_the_kernel_reads_it(power: Power) -> None:
    found = values(power, fast=("0-1", {"minFreq": 1, "maxFreq": "9GHz"}))
    assert found["cpufreq/0/min_freq"] == "800000"
    assert found["cpufreq/1/max_freq"] == "3600000"


def test_an_attribute_that_is_left_out_has_no_wish(power: Power) -> None:
    """The peer leaves the last class's value."""
    assert not values(power, plain=("0-3", {}))
    assert values(power, plain=("0", {"freqGovernor": "performance"}), other=("1-3", {})) == {
        "cpufreq/0/governor": "performance"
    }


def test_cpus_that_are_set_together_have_the_highest_minimum_and_maximum(power: Power) -> None:
    """The peer has the last writer's (CPU classes F7)."""
    wishes = wish(
        power,
        ["0-3"],
        slow=("2", {"minFreq": "1GHz", "maxFreq": "1.2GHz"}),
        fast=("3", {"minFreq": "2GHz", "maxFreq": "2.5GHz"}),
    )
    assert {str(item): each.value for item, each in wishes.items.items()} == {
        "cpufreq/2/min_freq": "2000000",
        "cpufreq/2/max_freq": "2500000",
    }
    assert all(each.origin == ("fast",) for each in wishes.items.values())
    because = "CPUs 3, which need it, are set together with these"
    assert wishes.unmet == {
        "slow": (
            f"min_freq is 2000000, not 1000000: {because}",
            f"max_freq is 2500000, not 1200000: {because}",
        )
    }


def test_cpus_that_are_set_together_have_the_fastest_governor_and_preference(power: Power) -> None:
    """The first class in the list does not win by its position."""
    wishes = wish(
        power,
        ["0-3"],
        slow=("2", {"freqGovernor": "powersave", "energyPerformancePreference": 200}),
        fast=("3", {"freqGovernor": "performance", "energyPerformancePreference": 0}),
    )
    found = {str(item): (each.value, each.origin) for item, each in wishes.items.items()}
    assert found == {
        "cpufreq/2/governor": ("performance", ("fast",)),
        "cpufreq/2/epp": ("performance", ("fast",)),
    }
    assert [text.partition(":")[0] for text in wishes.unmet["slow"]] == [
        "governor is performance, not powersave",
        "epp is performance, not 200",
    ]


def test_a_maximum_is_not_lowered_for_cpus_that_have_their_original(power: Power) -> None:
    assert not values(power, slow=("2", {"maxFreq": "1GHz"}), plain=("3", {}))


def test_cpus_set_together_with_some_in_no_class_are_left_alone(power: Power) -> None:
    wishes = wish(power, ["0-3"], slow=("2", {"maxFreq": "1GHz"}))
    assert not wishes.items
    assert "CPUs 3, which are in no class" in wishes.unmet["slow"][0]


def test_only_the_highest_turbo_priority_of_a_package_has_turbo(power: Power) -> None:
    turbo: dict[str, Any] = {"maxFreq": "turbo"}
    one: Classes = {"first": ("0", {**turbo, "turboPriority": 2}), "second": ("1", turbo)}
    found = wish(power, ["0-1", "2-3"], **one, third=("2-3", {**turbo, "turboPriority": 1})).items
    assert {str(item): each.value for item, each in found.items()} == {
        "cpufreq/0/max_freq": "3600000",
        "cpufreq/1/max_freq": "2400000",
        "cpufreq/2/max_freq": "2800000",  # of another package
    }
    found = wish(power, ["0-3"], **one, third=("2-3", {**turbo, "turboPriority": 1})).items
    assert [each.value for each in found.values()] == ["3600000", "2400000", "1600000"]
    found = wish(power, ["0-3"], first=("0", turbo), second=("1", turbo)).items
    assert [each.value for each in found.values()] == ["3600000", "3600000"], "there is no contest"


def test_a_minimum_is_not_above_the_maximum_that_a_contest_leaves(power: Power) -> None:
    found = values(
        power,
        first=("0", {"maxFreq": "turbo", "turboPriority": 1}),
        second=("1", {"minFreq": "3GHz", "maxFreq": "turbo"}),
    )
    assert found["cpufreq/1/min_freq"] == found["cpufreq/1/max_freq"] == "2400000"


@pytest.mark.parametrize(
    ("number", "intel", "amd"),
    [
        (0, "performance", "performance"),
        (20, "20", "performance"),
        (128, "balance_performance", "balance_performance"),
        (160, "160", "balance_performance"),
        (161, "161", "balance_power"),
        (255, "power", "power"),
    ],
)
def test_a_preference_is_a_number_or_the_nearest_word(
    tmp_path: Path, number: int, intel: str, amd: str
) -> None:
    """The peer never writes it."""
    write("package:1 core:2 pu:1", tmp_path)
    cpus = FakeCPUs(tmp_path)
    cpus.add_policy(0, [0])
    cpus.add_policy(1, [1], driver="amd-pstate-epp")
    power = power_of(tmp_path, discover(tmp_path))
    found = values(power, eager=("0-1", {"energyPerformancePreference": number}))
    assert found == {"cpufreq/0/epp": intel, "cpufreq/1/epp": amd}
    for policy, value in ((0, intel), (1, amd)):
        cpus.write(f"cpufreq/policy{policy}/energy_performance_preference", value.encode())


@pytest.mark.parametrize(
    ("names", "fast", "slow"),
    [
        (["C8"], {"resume_latency": "170"}, {}),
        (["C6", "C8"], {"resume_latency": "2"}, {"resume_latency": "1"}),
        (["C1", "C6", "C8"], {"resume_latency": "n/a"}, {"resume_latency": "n/a"}),
        (["C6"], {"state2": "1"}, {"resume_latency": "1"}),
        (["C1", "C8"], {"state1": "1", "state3": "1"}, {"state1": "1"}),
    ],
)
def test_deep_idle_states_are_excluded_by_a_limit_and_others_one_by_one(
    power: Power, names: list[str], fast: Mapping[str, str], slow: Mapping[str, str]
) -> None:
    found = values(power, awake=("0,2", {"disabledCstates": names}))
    assert found == {
        **{f"cpu/0/{name}": value for name, value in fast.items()},
        **{f"cpu/2/{name}": value for name, value in slow.items()},
    }


def test_a_die_has_the_highest_range_of_its_cpus(power: Power) -> None:
    found = values(
        power,
        calm=("0-1", {"uncoreMinFreq": "min", "uncoreMaxFreq": "1.2GHz"}),
        quick=("2", {"uncoreMinFreq": "1950MHz", "uncoreMaxFreq": "turbo"}),
    )
    assert found == {
        "uncore/package_00_die_00/min_freq": "1900000",  # in steps of 100 MHz
        "uncore/package_00_die_00/max_freq": "2500000",
    }


def test_a_policy_sets_no_cpu_that_is_offline(tmp_path: Path) -> None:
    write("package:1 core:2 pu:1", tmp_path)
    cpus = FakeCPUs(tmp_path)
    cpus.add_policy(0, [0, 9])
    cpus.add_policy(8, [8])
    (policy,) = power_of(tmp_path, discover(tmp_path)).policies
    assert (policy.id, str(policy.cpus)) == (0, "0")


def faults(power: Power, **fields: Any) -> list[tuple[str, bool]]:
    found = find_faults([cpu_class("one", **fields)], power)
    return [(f"{each.path}: {each.text}", each.fatal) for each in found]


def test_what_the_machine_does_not_have_is_found(power: Power) -> None:
    """The peer ignores unknown C-states (CPU classes F5)."""
    text = (
        "cpuClasses[0].freqGovernor: 'performence' is not a governor of CPUs 0"
        " (performance, powersave); did you mean 'performance'?"
    )
    assert faults(power, freqGovernor="performence") == [(text, True)]
    text = (
        "cpuClasses[0].disabledCstates: 'C10' is not a C-state of any CPU here"
        " (C1, C6, C8, POLL); did you mean 'C1'?"
    )
    assert faults(power, disabledCstates=["C8", "C10"]) == [(text, True)]
    assert faults(power, disabledCstates=["C10"], optional=True)[0][1] is False
    assert not faults(
        power, minFreq="base", uncoreMaxFreq="turbo", energyPerformancePreference=0, maxFreq=1
    )


def test_a_virtual_machine_is_told_what_has_no_effect() -> None:
    found = faults(
        Power(), minFreq="base", freqGovernor="schedutil", disabledCstates=["C6"], uncoreMinFreq=1
    )
    assert [text.partition(": ")[2] for text, fatal in found if not fatal] == [
        "no effect here: this machine has no cpufreq",
        "no effect here: this machine has no cpufreq",
        "no effect here: this machine has no cpuidle",
    ]
    assert [text for text, fatal in found if fatal] == [
        "cpuClasses[0].uncoreMinFreq: this machine has no intel_uncore_frequency (a kernel module)"
    ]


def test_a_driver_without_preferences_is_found(tmp_path: Path) -> None:
    write("package:1 core:1 pu:1", tmp_path)
    FakeCPUs(tmp_path).add_policy(0, [0], driver="acpi-cpufreq", words="")
    power = power_of(tmp_path, discover(tmp_path))
    assert faults(power, energyPerformancePreference=3) == [
        ("cpuClasses[0].energyPerformancePreference: the frequency driver here has none", True)
    ]
