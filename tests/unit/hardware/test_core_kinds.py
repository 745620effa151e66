from __future__ import annotations

import pytest

from nri_policy.foundation.cpuset import CPUSet
from nri_policy.hardware.machine import Machine

from .conftest import Change, Read

CPU = "sys/devices/system/cpu"
HYBRID = "core:4(efficiency=2) pu:2"  # performance 0-3, efficiency 4-5


def kinds(machine: Machine) -> dict[str, str]:
    found: dict[str, list[CPUSet]] = {}
    for core in machine.cores:
        found.setdefault(core.kind.value, []).append(core.cpus)
    return {kind: str(CPUSet.union(sets)) for kind, sets in found.items()}


def figures(path: str, *values: int) -> dict[str, Change]:
    return {f"{CPU}/cpu{cpu}/{path}": f"{value}\n" for cpu, value in enumerate(values)}


NO_PMUS: dict[str, Change] = {"sys/devices/cpu_core": None, "sys/devices/cpu_atom": None}


def test_hybrid_x86_tells_by_its_pmus(read: Read) -> None:
    assert kinds(read(HYBRID)) == {"performance": "0-3", "efficiency": "4-5"}


def test_the_low_power_island_makes_a_third_kind(read: Read) -> None:
    machine = read(
        "core:6",
        {
            "sys/devices/cpu_core/cpus": "0-1",
            "sys/devices/cpu_atom/cpus": "2-3",
            "sys/devices/cpu_lowpower/cpus": "4-5",
        },
    )
    assert kinds(machine) == {"performance": "0-1", "standard": "2-3", "efficiency": "4-5"}


@pytest.mark.parametrize("atom", ["", "\n\0", None])
def test_an_empty_pmu_is_no_kind(read: Read, atom: str | None) -> None:
    changes: dict[str, Change] = {
        "sys/devices/cpu_core/cpus": "0-3",
        "sys/devices/cpu_atom/cpus": atom,
    }
    assert kinds(read("core:4", changes)) == {"standard": "0-3"}


def test_pmus_that_leave_cpus_out_are_not_believed(read: Read) -> None:
    assert kinds(read(HYBRID, {"sys/devices/cpu_core/cpus": "0-1"})) == {"standard": "0-5"}


@pytest.mark.parametrize(
    ("capacities", "expected"),
    [
        ((446, 446, 1024, 1024), {"efficiency": "0-1", "performance": "2-3"}),
        ((280, 855, 855, 1024), {"efficiency": "0", "standard": "1-2", "performance": "3"}),
        ((1024, 1024, 1024, 1024), {"standard": "0-3"}),
        # cores of one design, binned
        ((1024, 1010, 997, 984), {"standard": "0-3"}),
        ((1017, 1024, 718, 706), {"performance": "0-1", "efficiency": "2-3"}),
        # four kinds: the ones between are one
        ((100, 300, 600, 1024), {"efficiency": "0", "standard": "1-2", "performance": "3"}),
    ],
)
def test_arm_tells_by_capacity(
    read: Read, capacities: tuple[int, ...], expected: dict[str, str]
) -> None:
    assert kinds(read("core:4", figures("cpu_capacity", *capacities))) == expected


def test_capacities_of_some_cpus_only_say_nothing(read: Read) -> None:
    assert kinds(read("core:4", figures("cpu_capacity", 446, 446, 1024))) == {"standard": "0-3"}


@pytest.mark.parametrize("figure", ["acpi_cppc/highest_perf", "cpufreq/cpuinfo_max_freq"])
def test_without_pmus_speed_and_caches_tell_together(read: Read, figure: str) -> None:
    changes = {**NO_PMUS, **figures(figure, 64, 64, 64, 64, 39, 39)}
    assert kinds(read(HYBRID, changes)) == {"performance": "0-3", "efficiency": "4-5"}


def test_arm_without_capacities_tells_by_speed_and_part(read: Read) -> None:
    parts = ["0xd46", "0xd46", "0xd4d", "0xd47"]
    cpuinfo = "\n".join(
        f"processor\t: {cpu}\nCPU implementer\t: 0x41\nCPU part\t: {part}\nCPU revision\t: 1\n"
        for cpu, part in enumerate(parts)
    )
    changes: dict[str, Change] = {
        **figures("cpufreq/cpuinfo_max_freq", 2016000, 2016000, 2803200, 2803200),
        "proc/cpuinfo": cpuinfo,
    }
    assert kinds(read("core:4", changes)) == {"efficiency": "0-1", "performance": "2-3"}


@pytest.mark.parametrize(
    "speeds",
    [
        (5000, 5000, 3900, 3900),  # bins of one design
        (236, 231, 196, 166),  # AMD's ranking of preferred cores
    ],
)
def test_cores_of_one_design_are_one_kind_whatever_their_speeds(
    read: Read, speeds: tuple[int, ...]
) -> None:
    assert kinds(read("core:4", figures("acpi_cppc/highest_perf", *speeds))) == {"standard": "0-3"}


def test_designs_that_differ_at_equal_speed_are_one_kind(read: Read) -> None:
    changes = {**NO_PMUS, **figures("acpi_cppc/highest_perf", 64, 64, 64, 64, 60, 60)}
    assert kinds(read(HYBRID, changes)) == {"standard": "0-5"}


def test_base_frequency_bins_are_no_kinds(read: Read) -> None:
    # Speed Select gives some cores of a Xeon a higher base frequency
    assert kinds(read("core:4 base=2.1GHz base@0=2.9GHz max=3.9GHz")) == {"standard": "0-3"}
