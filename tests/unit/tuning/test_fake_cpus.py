"""The fake CPUs refuse what the kernel refuses, and read back as there (spec classes.md §2)."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from tests.support.fake_cpus import FakeCPUs, two_kinds

LOW, HIGH = "cpufreq/policy0/scaling_min_freq", "cpufreq/policy0/scaling_max_freq"
GOVERNOR = "cpufreq/policy0/scaling_governor"
EPP = "cpufreq/policy0/energy_performance_preference"
DISABLE = "cpu0/cpuidle/state3/disable"
LATENCY = "cpu0/power/pm_qos_resume_latency_us"
UNCORE = "intel_uncore_frequency/package_00_die_00/max_freq_khz"


@pytest.fixture(name="cpus")
def _cpus(tmp_path: Path) -> FakeCPUs:
    return two_kinds(tmp_path)


def refusal(cpus: FakeCPUs, path: str, data: bytes) -> int | None:
    """Return the error of a write that must leave the file as it was."""
    before = cpus.texts()
    with pytest.raises(OSError) as caught:  # noqa: PT011 - its number is compared
        cpus.write(path, data)
    assert cpus.texts() == before
    return caught.value.errno


@pytest.mark.parametrize(
    ("path", "data"),
    [
        (LOW, b"fast"),
        (LOW, b"-1"),
        (LOW, b"2.4"),
        (LOW, b"\n"),
        (GOVERNOR, b"ondemand"),
        (EPP, b"fastest"),
        (EPP, b"256"),
        (DISABLE, b"x"),
        (DISABLE, b"-1"),
        (DISABLE, b"2"),
        (LATENCY, b"none"),
        (LATENCY, b"-1"),
        (LATENCY, b"2147483647"),
        (UNCORE, b"99999"),
        (UNCORE, b"12800000"),
        (UNCORE, b"x"),
    ],
)
def test_what_no_driver_knows_is_invalid(cpus: FakeCPUs, path: str, data: bytes) -> None:
    assert refusal(cpus, path, data) == errno.EINVAL


def test_an_empty_write_changes_nothing(cpus: FakeCPUs) -> None:
    before = cpus.texts()
    assert cpus.write(DISABLE, b"") == 0
    assert cpus.texts() == before


def test_any_frequency_is_taken_and_limited_when_read(cpus: FakeCPUs) -> None:
    cpus.write(HIGH, b"9000000\n")
    cpus.write(LOW, b"1")
    assert (cpus.read(LOW), cpus.read(HIGH)) == ("800000", "3600000")
    cpus.write(HIGH, b"2000000")
    cpus.write(LOW, b"3000000")
    assert (cpus.read(LOW), cpus.read(HIGH)) == ("2000000", "2000000"), "the maximum counts"
    cpus.write(HIGH, b"3500000")
    assert cpus.read(LOW) == "3000000", "the request was kept"


def test_a_preference_is_busy_under_the_governor_performance(cpus: FakeCPUs) -> None:
    cpus.write(EPP, b"64")
    cpus.write(GOVERNOR, b"performance\n")
    assert cpus.read(EPP) == "performance"
    assert refusal(cpus, EPP, b"64") == errno.EBUSY
    assert cpus.write(EPP, b"0") == 1
    cpus.write(GOVERNOR, b"powersave")
    cpus.write(EPP, b"192")
    assert cpus.read(EPP) == "balance_power", "numbers that are words are read as these"


def test_other_drivers_take_words_only(tmp_path: Path) -> None:
    cpus = FakeCPUs(tmp_path)
    cpus.add_policy(0, [0], driver="amd-pstate-epp")
    assert refusal(cpus, EPP, b"128") == errno.EINVAL
    assert cpus.write(EPP, b"power") == 5


def test_a_policy_without_online_cpus_is_busy(cpus: FakeCPUs) -> None:
    cpus.offline = {2}
    assert cpus.write("cpufreq/policy2/scaling_min_freq", b"900000") == 6
    cpus.offline = {2, 3}
    assert refusal(cpus, "cpufreq/policy2/scaling_min_freq", b"900000") == errno.EBUSY


def test_idle_states_need_a_capability_and_limits_do_not(cpus: FakeCPUs) -> None:
    cpus.capable = False
    assert refusal(cpus, DISABLE, b"1") == errno.EPERM
    assert cpus.write(LATENCY, b"n/a") == 3
    assert cpus.read(LATENCY) == "n/a"


def test_an_uncore_frequency_is_rounded_down_and_may_be_locked(tmp_path: Path) -> None:
    cpus = FakeCPUs(tmp_path)
    for folder, state in (("a", "open"), ("b", "locked"), ("c", "offline")):
        cpus.add_die(folder, 800_000, 2_500_000, state)
    cpus.write("intel_uncore_frequency/a/min_freq_khz", b"1950000")
    assert cpus.read("intel_uncore_frequency/a/min_freq_khz") == "1900000"
    assert refusal(cpus, "intel_uncore_frequency/b/min_freq_khz", b"900000") == errno.EPERM
    assert refusal(cpus, "intel_uncore_frequency/c/min_freq_khz", b"900000") == errno.ENXIO


def test_what_the_kernel_tells_cannot_be_written(cpus: FakeCPUs) -> None:
    assert refusal(cpus, "cpufreq/policy0/cpuinfo_max_freq", b"1") == errno.EACCES
    assert refusal(cpus, "cpu0/cpuidle/state1/latency", b"1") == errno.EACCES
    with pytest.raises(FileNotFoundError):
        cpus.write("cpufreq/policy9/scaling_governor", b"performance")
