from __future__ import annotations

import pytest

from nri_policy.hardware.machine import Machine

from .conftest import Change, Read

CPU = "sys/devices/system/cpu"
TWO_PACKAGES = "package:2 core:2 pu:2"  # CPUs 0-3 and 4-7


def topology(name: str, values: dict[int, str | None] | str | None) -> dict[str, Change]:
    """Change a topology file of CPUs 0-7."""
    if not isinstance(values, dict):
        values = dict.fromkeys(range(8), values)
    return {f"{CPU}/cpu{cpu}/topology/{name}": text for cpu, text in values.items()}


def without(*names: str) -> dict[str, Change]:
    return {path: None for name in names for path in topology(name, None)}


def packages(machine: Machine) -> list[tuple[int, str]]:
    return [(package.id, str(package.cpus)) for package in machine.packages]


def dies(machine: Machine) -> list[tuple[int, int, str]]:
    return [(die.package, die.id, str(die.cpus)) for die in machine.dies]


def cores(machine: Machine) -> list[str]:
    return [str(core.cpus) for core in machine.cores]


@pytest.mark.parametrize("die", [None, "-1", "65535", "4294967295"])
def test_unknown_dies_are_one_a_package(read: Read, die: str | None) -> None:
    # the set of an unknown die is the CPU alone: not to be believed
    changes = {
        **topology("die_id", die),
        **topology("die_cpus_list", {cpu: str(cpu) for cpu in range(8)}),
    }
    assert dies(read(TWO_PACKAGES, changes)) == [(0, 0, "0-3"), (1, 0, "4-7")]


def test_dies_numbered_for_the_whole_system_keep_their_ids(read: Read) -> None:
    changes = topology("die_id", {cpu: str(cpu // 2) for cpu in range(8)})
    changes |= topology("die_cpus_list", {c: f"{c // 2 * 2}-{c // 2 * 2 + 1}" for c in range(8)})
    machine = read(TWO_PACKAGES, changes)
    assert dies(machine) == [(0, 0, "0-1"), (0, 1, "2-3"), (1, 2, "4-5"), (1, 3, "6-7")]


def test_dies_are_found_by_their_ids_where_there_are_no_sets(read: Read) -> None:
    machine = read("package:2 die:2 core:1 pu:2", without("die_cpus_list"))
    assert dies(machine) == [(0, 0, "0-1"), (0, 1, "2-3"), (1, 0, "4-5"), (1, 1, "6-7")]


def test_packages_without_ids_are_found_by_their_sets(read: Read) -> None:
    assert packages(read(TWO_PACKAGES, topology("physical_package_id", "-1"))) == [
        (0, "0-3"),
        (1, "4-7"),
    ]


def test_packages_without_sets_are_found_by_their_ids(read: Read) -> None:
    machine = read(TWO_PACKAGES, without("package_cpus_list"))
    assert packages(machine) == [(0, "0-3"), (1, "4-7")]


def test_cpus_without_sets_may_be_claimed_by_the_sets_of_others(read: Read) -> None:
    changes = topology("package_cpus_list", dict.fromkeys((2, 3, 6, 7)))
    changes |= topology("package_cpus_list", {0: "0-2"})
    machine = read(TWO_PACKAGES, changes)
    assert [cpus for _, cpus in packages(machine)] == ["0-2", "3", "4-7"]


def test_packages_of_which_nothing_is_known_are_one(read: Read) -> None:
    changes = {**topology("physical_package_id", "-1"), **without("package_cpus_list")}
    assert packages(read(TWO_PACKAGES, changes)) == [(0, "0-7")]


def test_package_ids_may_be_huge_and_sparse(read: Read) -> None:
    changes = topology("physical_package_id", {c: ("36", "131072")[c // 4] for c in range(8)})
    assert packages(read(TWO_PACKAGES, changes)) == [(36, "0-3"), (131072, "4-7")]


def test_sets_come_before_ids(read: Read) -> None:
    machine = read(TWO_PACKAGES, topology("physical_package_id", "5"))
    assert packages(machine) == [(5, "0-3"), (0, "4-7")]
    assert "package id 5 is used by several: CPUs 4-7 renamed" in machine.notes


def test_a_package_is_never_smaller_than_its_core(read: Read) -> None:
    # what kernels show on architectures that know threads but no packages
    changes = {
        **topology("physical_package_id", "-1"),
        **topology("package_cpus_list", {cpu: str(cpu) for cpu in range(8)}),
    }
    machine = read(TWO_PACKAGES, changes)
    assert [cpus for _, cpus in packages(machine)] == cores(machine) == ["0-1", "2-3", "4-5", "6-7"]


def test_cores_are_their_sibling_sets_whatever_their_ids(read: Read) -> None:
    machine = read(TWO_PACKAGES, topology("core_id", "0"))
    assert cores(machine) == ["0-1", "2-3", "4-5", "6-7"]
    assert {core.id for core in machine.cores} == {0}


def test_threads_of_different_core_ids_are_one_core_if_the_kernel_calls_them_siblings(
    read: Read,
) -> None:
    # AMD's Bulldozer: two integer cores share most of a module, and are scheduled like threads
    machine = read(TWO_PACKAGES, topology("core_id", {cpu: str(cpu) for cpu in range(8)}))
    assert cores(machine) == ["0-1", "2-3", "4-5", "6-7"]
    assert machine.notes == ()


def test_cores_without_sets_are_found_by_their_ids(read: Read) -> None:
    assert cores(read(TWO_PACKAGES, without("core_cpus_list"))) == ["0-1", "2-3", "4-5", "6-7"]


def test_cores_of_which_nothing_is_known_are_single_cpus(read: Read) -> None:
    machine = read(TWO_PACKAGES, without("core_cpus_list", "core_id"))
    assert cores(machine) == [str(cpu) for cpu in range(8)]


def test_names_and_masks_of_old_kernels_do(read: Read) -> None:
    changes = {
        **without("core_cpus_list", "package_cpus_list", "die_id", "die_cpus_list"),
        **topology("core_siblings", {c: ("0000000f", "000000f0")[c // 4] for c in range(8)}),
        **topology("thread_siblings", {c: f"000,{3 << c // 2 * 2:08x}" for c in range(8)}),
    }
    machine = read(TWO_PACKAGES, changes)
    assert packages(machine) == [(0, "0-3"), (1, "4-7")]
    assert cores(machine) == ["0-1", "2-3", "4-5", "6-7"]
    assert machine.notes == ()


def test_a_sibling_that_is_offline_leaves_the_core_smaller(read: Read) -> None:
    machine = read(f"{TWO_PACKAGES} offline=1", topology("core_cpus_list", {0: "0-1"}))
    assert cores(machine) == ["0", "2-3", "4-5", "6-7"]


def test_contradicting_siblings_are_noted_and_every_cpu_has_one_core(read: Read) -> None:
    machine = read(TWO_PACKAGES, topology("core_cpus_list", {0: "0-2", 1: "0-1", 2: "2-3"}))
    assert cores(machine) == ["0-2", "3", "4-5", "6-7"]
    assert any("same core contradict" in note for note in machine.notes)


def test_a_core_across_packages_is_split(read: Read) -> None:
    machine = read(TWO_PACKAGES, topology("core_cpus_list", {3: "3-4", 4: "3-4", 2: "2", 5: "5"}))
    assert packages(machine) == [(0, "0-3"), (1, "4-7")]
    assert cores(machine) == ["0-1", "2", "3", "4", "5", "6-7"]
    assert any("different larger units" in note for note in machine.notes)


@pytest.mark.parametrize(
    ("id_", "size", "kept"),
    [
        ("0", 4, ["0-3", "4-7"]),
        ("0", 2, []),  # the cores: x86 calls the sharers of an L2 a cluster
        ("0", 8, []),  # the package
        ("-1", 4, []),
        ("65535", 4, []),
    ],
)
def test_only_clusters_that_are_neither_core_nor_die_are_kept(
    read: Read, id_: str, size: int, kept: list[str]
) -> None:
    spans: dict[int, str | None] = {
        cpu: f"{cpu // size * size}-{cpu // size * size + size - 1}" for cpu in range(8)
    }
    machine = read(
        "core:4 pu:2", {**topology("cluster_cpus_list", spans), **topology("cluster_id", id_)}
    )
    assert [str(cluster.cpus) for cluster in machine.clusters] == kept


def test_cluster_ids_may_restart_in_each_package(read: Read) -> None:
    machine = read("package:2 cluster:2 core:2")
    assert [(c.package, str(c.cpus)) for c in machine.clusters] == [
        *((0, "0-1"), (0, "2-3"), (1, "4-5"), (1, "6-7"))
    ]


def test_books_and_drawers_are_groups_above_the_packages(read: Read) -> None:
    changes = {
        **topology("book_id", {cpu: str(1 + cpu // 4) for cpu in range(8)}),
        **topology("book_siblings_list", {c: ("0-3", "4-7")[c // 4] for c in range(8)}),
        **topology("drawer_id", "4"),
        **topology("drawer_siblings", "ff"),
    }
    machine = read(TWO_PACKAGES, changes)
    assert [(group.kind, group.id, str(group.cpus)) for group in machine.groups] == [
        *(("drawer", 4, "0-7"), ("book", 1, "0-3"), ("book", 2, "4-7"))
    ]


def test_equal_package_ids_in_different_books_are_two_packages(read: Read) -> None:
    assert [
        cpus for _, cpus in packages(read(TWO_PACKAGES, topology("physical_package_id", "2")))
    ] == [*("0-3", "4-7")]
