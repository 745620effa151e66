from __future__ import annotations

import pytest

from nri_policy.foundation.cpuset import EMPTY, CPUSet
from nri_policy.hardware.discovery import discover
from nri_policy.hardware.sysfs import TopologyError

from .conftest import Change, Plant, Read

CPU = "sys/devices/system/cpu"
FOUR = "core:2 pu:2"


def test_online_cpus_are_the_switches_where_there_is_no_list(read: Read) -> None:
    gone: dict[str, Change] = {f"{CPU}/{name}": None for name in ("online", "offline", "present")}
    machine = read(FOUR, {**gone, f"{CPU}/possible": None, f"{CPU}/cpu3/online": "0\n"})
    assert (str(machine.online), str(machine.offline), str(machine.possible)) == ("0-2", "3", "0-3")


def test_a_cpu_without_topology_is_offline_where_nothing_else_tells(read: Read) -> None:
    machine = read(
        FOUR, {f"{CPU}/online": None, f"{CPU}/cpu2/online": None, f"{CPU}/cpu2/topology": None}
    )
    assert str(machine.online) == "0-1,3"


def test_a_listed_cpu_without_topology_is_a_core_of_its_own(read: Read) -> None:
    machine = read("core:3", {f"{CPU}/cpu2/topology": None})
    assert [str(core.cpus) for core in machine.cores] == ["0", "1", "2"]
    assert machine.notes == ("online, but without a topology folder (CPUs 2)",)


def test_lists_may_end_in_nul_bytes(read: Read) -> None:
    machine = read(
        FOUR, {f"{CPU}/online": b"0-3\n\0", f"{CPU}/cpu0/topology/core_cpus_list": b"0-1\n\0"}
    )
    assert str(machine.online) == "0-3"
    assert str(machine.cores[0].cpus) == "0-1"
    assert machine.notes == ()


@pytest.mark.parametrize("text", ["(null)\n", "\0\n", "   (null)\n", "\n", None])
def test_unset_boot_options_isolate_nothing(read: Read, text: str | None) -> None:
    machine = read(FOUR, {f"{CPU}/isolated": text, f"{CPU}/nohz_full": text})
    assert (machine.isolated, machine.nohz_full) == (EMPTY, EMPTY)
    assert machine.notes == ()


def test_isolated_and_nohz_full_differ_and_may_cut_cores(read: Read) -> None:
    machine = read("core:4 pu:2 isolated=1-3 nohz_full=2-5 offline=3")
    assert (str(machine.isolated), str(machine.nohz_full)) == ("1-2", "2,4-5")


def test_the_offline_file_may_name_cpus_that_cannot_be(read: Read) -> None:
    machine = read(f"{FOUR} offline=1", {f"{CPU}/offline": "1,4-511\n", f"{CPU}/possible": "0-3\n"})
    assert str(machine.offline) == "1"


def test_present_cpus_without_a_folder_are_offline(read: Read) -> None:
    machine = read(FOUR, {f"{CPU}/present": "0-5\n"})
    assert str(machine.offline) == "4-5"


def test_online_cpus_without_a_folder_are_left_out_and_noted(read: Read) -> None:
    machine = read(FOUR, {f"{CPU}/online": "0-223\n"})
    assert str(machine.online) == "0-3"
    assert "online, but has no folder: left out (CPUs 4-223)" in machine.notes


def test_a_switch_that_is_off_beats_the_list(read: Read) -> None:
    assert str(read(FOUR, {f"{CPU}/cpu2/online": "0"}).online) == "0-1,3"


def test_cpu0_can_be_offline(read: Read) -> None:
    machine = read(f"{FOUR} offline=0", {f"{CPU}/cpu0/online": "0"})
    assert (str(machine.online), str(machine.offline)) == ("1-3", "0")
    assert [str(core.cpus) for core in machine.cores] == ["1", "2-3"]


def test_cpu_ids_may_have_gaps_and_be_few_of_many(read: Read) -> None:
    folders: dict[str, Change] = {
        f"{CPU}/cpu{cpu}/topology/thread_siblings_list": f"{cpu}\n" for cpu in (7, 1024, 4095)
    }
    machine = read(None, {**folders, f"{CPU}/possible": "0-4095", f"{CPU}/online": "7,1024,4095"})
    assert str(machine.online) == "7,1024,4095"
    assert len(machine.cores) == 3
    assert len(machine.packages) == 1


def test_cpus_above_the_kernels_limit_are_left_out(read: Read) -> None:
    machine = read(FOUR, {f"{CPU}/cpu8192/online": "1", f"{CPU}/cpu99999999999/online": "1"})
    assert str(machine.online) == "0-3"
    assert any("above 8191" in note for note in machine.notes)


def test_a_list_that_is_none_is_noted_and_the_folders_count(read: Read) -> None:
    machine = read(FOUR, {f"{CPU}/online": "all of them"})
    assert str(machine.online) == "0-3"
    assert any("online" in note and "all of them" in note for note in machine.notes)


def test_cpuinfo_stands_in_where_there_are_no_cpu_folders(read: Read) -> None:
    blocks = [
        f"processor\t: {cpu}\nphysical id\t: {cpu % 2}\ncore id\t\t: {cpu // 4}\n"
        for cpu in range(8)
    ]
    machine = read(None, {"proc/cpuinfo": "\n".join(blocks)})
    assert [str(package.cpus) for package in machine.packages] == ["0,2,4,6", "1,3,5,7"]
    assert [str(core.cpus) for core in machine.cores] == ["0,2", "1,3", "4,6", "5,7"]


def test_a_root_without_cpus_is_an_error_that_names_the_path(plant: Plant) -> None:
    root = plant(None, {"proc/version": "Linux"})
    with pytest.raises(TopologyError, match="expected folders cpu0") as caught:
        discover(root)
    assert caught.value.path == root / CPU


def test_a_root_that_is_absent_is_an_error(plant: Plant) -> None:
    with pytest.raises(TopologyError, match="cannot be opened as a folder: No such file"):
        discover(plant(None) / "absent")


def test_no_online_cpu_is_an_error_that_tells_what_was_found(plant: Plant) -> None:
    root = plant(FOUR, {f"{CPU}/online": "64-67"})
    with pytest.raises(TopologyError, match="list is 64-67, the folders are of CPUs 0-3"):
        discover(root)


def test_unparsable_ids_are_noted_and_unknown(read: Read) -> None:
    machine = read("package:2 core:2", {f"{CPU}/cpu0/topology/core_id": "zero" * 100})
    assert machine.cores[0].id == 0
    [note] = machine.notes
    assert "core_id" in note
    assert len(note) < 200


@pytest.mark.parametrize("number", ["-1", "65535", "4294967295"])
def test_ids_that_stand_for_none_are_unknown(read: Read, number: str) -> None:
    """Kernels print -1 as unsigned numbers of 16 or 32 bits."""
    changes = {f"{CPU}/cpu{cpu}/topology/physical_package_id": number for cpu in range(4)}
    machine = read(FOUR, changes)
    assert [each.id for each in machine.packages if each.id == int(number)] == []
    assert [str(each.cpus) for each in machine.packages] == ["0-3"]


def test_sets_hold_no_cpu_twice(read: Read) -> None:
    machine = read("package:2 die:2 core:2 pu:2 siblings=apart offline=1,9")
    assert CPUSet.union(core.cpus for core in machine.cores) == machine.online
    assert sum(len(core.cpus) for core in machine.cores) == len(machine.online)
