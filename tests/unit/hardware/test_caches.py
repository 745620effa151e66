from __future__ import annotations

import pytest

from nri_policy.hardware.machine import Machine

from .conftest import Change, Link, Read

CPU = "sys/devices/system/cpu"


def shared(machine: Machine, level: int) -> list[tuple[str, str, int]]:
    return [(str(c.cpus), c.type, c.size) for c in machine.caches if c.level == level]


def cache(cpu: int, index: int, **files: str) -> dict[str, Change]:
    return {f"{CPU}/cpu{cpu}/cache/index{index}/{name}": text for name, text in files.items()}


def test_caches_are_told_apart_by_their_cpus(read: Read) -> None:
    machine = read("package:2 l3:2 core:2 pu:2")  # no cache has an id
    assert [cpus for cpus, _, _ in shared(machine, 3)] == ["0-3", "4-7", "8-11", "12-15"]
    assert len(shared(machine, 2)) == 8
    assert shared(machine, 1)[0] == ("0-1", "data", 48 << 10)
    assert len(shared(machine, 1)) == 16


@pytest.mark.parametrize(
    ("text", "size"), [("512", 512), ("32K", 32 << 10), ("4M", 4 << 20), ("1G", 1 << 30)]
)
def test_sizes_have_unit_suffixes(read: Read, text: str, size: int) -> None:
    assert shared(read("core:1", cache(0, 2, size=text)), 2) == [("0", "unified", size)]


@pytest.mark.parametrize("text", ["", "big", "-1K"])
def test_a_size_that_is_none_is_zero(read: Read, text: str) -> None:
    assert shared(read("core:1", cache(0, 2, size=text)), 2) == [("0", "unified", 0)]


def test_masks_stand_in_for_lists(read: Read) -> None:
    changes = cache(0, 3, shared_cpu_map="3")
    changes[f"{CPU}/cpu0/cache/index3/shared_cpu_list"] = None
    assert shared(read("core:2", changes), 3)[0][0] == "0-1"


def test_a_cache_that_nobody_shares_is_its_cpus_own(read: Read) -> None:
    assert shared(read("core:1", cache(0, 3, shared_cpu_list="\n")), 3)[0][0] == "0"


def test_offline_sharers_are_left_out(read: Read) -> None:
    [(cpus, _, _)] = shared(read("core:4 offline=2", cache(0, 3, shared_cpu_list="0-3")), 3)
    assert cpus == "0-1,3"


def test_a_cache_is_read_from_one_of_its_cpus(read: Read) -> None:
    machine = read("core:2", cache(0, 3, size="8M") | cache(1, 3, size="4M"))
    assert shared(machine, 3) == [("0-1", "unified", 8 << 20)]


def test_a_cpu_all_whose_caches_are_known_from_others_is_not_read(read: Read) -> None:
    machine = read("core:1 pu:2", cache(1, 0, level="one"))
    assert not [each for each in machine.notes if "level" in each]


def test_a_cpu_with_a_cache_that_none_of_the_others_has_is_read(read: Read) -> None:
    own = cache(1, 9, level="4", type="Unified", shared_cpu_list="1")
    assert shared(read("core:1 pu:2", own), 4) == [("1", "unified", 0)]


def test_one_cache_may_have_another_index_at_each_of_its_cpus(read: Read) -> None:
    changes: dict[str, Change] = {
        f"{CPU}/cpu1/cache": None,
        **cache(1, 0, level="2", type="Unified", size="2M", shared_cpu_list="1"),
        **cache(1, 2, level="3", type="Unified", size="8M", shared_cpu_list="0-1"),
        **cache(0, 3, size="8M"),
    }
    machine = read("core:2", changes)
    assert [cpus for cpus, _, _ in shared(machine, 2)] == ["0", "1"]
    assert shared(machine, 3) == [("0-1", "unified", 8 << 20)]


def test_some_cpus_may_lack_caches(read: Read) -> None:
    machine = read("core:2", {f"{CPU}/cpu1/cache": None})
    assert [cpus for cpus, _, _ in shared(machine, 2)] == ["0"]


def test_fourth_levels_and_instruction_caches_of_the_second_exist(read: Read) -> None:
    changes = {
        **cache(0, 4, level="4", type="Unified", size="480M", shared_cpu_list="0"),
        **cache(0, 5, level="2", type="Instruction", size="2048K", shared_cpu_list="0"),
    }
    machine = read("core:1", changes)
    assert shared(machine, 4) == [("0", "unified", 480 << 20)]
    assert ("0", "instruction", 2 << 20) in shared(machine, 2)


def test_a_cache_without_level_or_type_is_left_out_and_noted(read: Read) -> None:
    machine = read("core:2", {**cache(0, 0, type="Warm"), **cache(1, 0, level="one")})
    assert [type_ for _, type_, _ in shared(machine, 1)] == ["instruction"] * 2
    assert "caches without a level or type are left out (CPUs 0-1)" in machine.notes


def test_frequencies_are_grouped_by_equal_limits(read: Read) -> None:
    machine = read("core:4 base=2.1GHz base@0-1=2.7GHz min=800MHz max=3.5GHz epp@3=power")
    assert [
        (str(f.cpus), f.base, f.minimum, f.maximum, f.preference) for f in machine.frequencies
    ] == [
        ("0-1", 2_700_000, 800_000, 3_500_000, None),
        ("2", 2_100_000, 800_000, 3_500_000, None),
        ("3", 2_100_000, 800_000, 3_500_000, "power"),
    ]


def test_frequencies_may_be_behind_links_to_policies(read: Read) -> None:
    machine = read(
        "core:2",
        {
            f"{CPU}/cpufreq/policy0/cpuinfo_max_freq": "2000000\n",
            f"{CPU}/cpu0/cpufreq": Link("../cpufreq/policy0"),
            f"{CPU}/cpu1/cpufreq": Link("../cpufreq/policy0"),
        },
    )
    [frequency] = machine.frequencies
    assert (str(frequency.cpus), frequency.maximum, frequency.base) == ("0-1", 2_000_000, None)
