"""Whatever the files hold, reading gives a sound machine or a TopologyError, and nothing else."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nri_policy.foundation.cpuset import CPUSet
from nri_policy.hardware.discovery import discover
from nri_policy.hardware.machine import Machine
from nri_policy.hardware.synthetic import write
from nri_policy.hardware.synthetic_spec import SpecError, parse
from nri_policy.hardware.sysfs import TopologyError
from nri_policy.report import machine_report, plain

SPEC = "package:2(pmem=1GiB hbm=1GiB) numa:1 core:2(efficiency=1) pu:2 max=3GHz offline=1"
EXTRA = {
    "proc/cpuinfo": "processor : 0\nphysical id : 0\ncore id : 0\n",
    "sys/bus/pci/devices/0000:00:02.0/numa_node": "1",
    "sys/bus/pci/devices/0000:00:02.0/local_cpulist": "3-5",
    "sys/bus/pci/devices/0000:00:02.0/class": "0x030000",
    "sys/bus/pci/devices/0000:00:02.0/vendor": "0x8086",
    "sys/bus/pci/devices/0000:00:02.0/device": "0x1",
    "sys/bus/cxl/devices/region0/resource": "0x180000000",
    "sys/bus/nd/devices/region0/target_node": "7",
    "sys/devices/system/memory/block_size_bytes": "8000000",
    "sys/devices/system/cpu/cpu0/topology/cluster_id": "1",
    "sys/devices/system/cpu/cpu0/topology/cluster_cpus_list": "0-2",
    "sys/devices/system/cpu/cpu0/topology/book_id": "1",
    "sys/devices/system/cpu/cpu0/cpu_capacity": "100",
    "sys/devices/system/cpu/cpu0/acpi_cppc/highest_perf": "100",
    "sys/devices/system/node/has_generic_initiator": "2",
    "sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages": "1",
    "sys/devices/system/node/node0/memory_side_cache/index1/size": "1",
    "usr/share/misc/pci.ids": "8086  Intel\n\t0001  Thing\n",
}


def plant(root: Path) -> None:
    write(SPEC, root)
    for path, text in EXTRA.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)


def paths() -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "root"
        plant(root)
        return sorted(str(path.relative_to(root)) for path in root.rglob("*"))


PATHS = paths()
TEXTS = st.one_of(
    st.binary(max_size=40),
    st.from_regex(r"\A[0-9]{0,4}([,-][0-9]{1,5}){0,4}\n?\0?\Z").map(str.encode),
    st.from_regex(r"\A[0-9a-f]{0,9}(,[0-9a-f]{1,8}){0,3}\Z").map(str.encode),
    st.integers(-(2**70), 2**70).map(lambda number: str(number).encode()),
    st.sampled_from([b"-1", b"65535", b"4294967295", b"(null)", b"", b"0x", b"0", b"9" * 5000]),
    st.integers(0, 2**70).map(lambda kib: b"Node 0 MemTotal: %d kB" % kib),
)
LINKS = st.one_of(
    st.sampled_from(["/", "..", ".", "/etc/passwd", "../../../../../../../..", "x"]),
    st.sampled_from(PATHS).map(lambda path: f"/{path}"),
)


WORDS = [
    *("package:2", "numa:2(memory=1GiB)", "core:4", "pu:2", "core:3(efficiency=2)", "l3:x"),
    *("die:0", "offline=0-1", "isolated=9", "base@0=1GHz", "distances=10/20", "siblings=apart"),
    *("(", ")", ":", "=", "@"),
]


def check_is_sound(machine: Machine) -> None:
    assert machine.online
    assert not machine.online & machine.offline
    assert machine.online | machine.offline <= machine.possible
    for units in (machine.packages, machine.dies, machine.cores):
        assert sum(len(unit.cpus) for unit in units) == len(machine.online)
        assert CPUSet.union(unit.cpus for unit in units) == machine.online
    assert len({package.id for package in machine.packages}) == len(machine.packages)
    packages = {package.id: package.cpus for package in machine.packages}
    dies = {(die.package, die.id): die.cpus for die in machine.dies}
    assert len(dies) == len(machine.dies)
    assert all(cpus <= packages[package] for (package, _), cpus in dies.items())
    assert all(core.cpus <= dies[core.package, core.die] for core in machine.cores)
    assert all(cluster.cpus <= packages[cluster.package] for cluster in machine.clusters)
    ids = tuple(node.id for node in machine.nodes)
    assert ids
    assert ids == machine.distances.nodes == tuple(sorted(set(ids)))
    assert all(len(row) == len(ids) for row in machine.distances.matrix)
    assert len(machine.distances.matrix) == len(ids)
    assert all(10 <= cell <= 255 for row in machine.distances.matrix for cell in row)
    bearing = CPUSet(node.id for node in machine.nodes if node.cpus)
    for node in machine.nodes:
        assert node.cpus <= machine.online
        assert node.memory >= 0
        assert node.nearest <= bearing
        assert node.nearest or not bearing
    assert all(cache.cpus and cache.cpus <= machine.online for cache in machine.caches)
    assert all(device.cpus <= machine.online for device in machine.devices)
    assert all(len(note) < 400 for note in machine.notes)
    plain(machine_report(machine))


@settings(max_examples=150, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(PATHS), st.one_of(TEXTS, LINKS, st.none()), min_size=1, max_size=6
    )
)
@example({"sys/devices/system/cpu": None})
@example({"sys/devices/system/cpu/online": b"0-8191"})
@example(
    {"sys/devices/system/cpu/cpu2/topology": b"", "sys/devices/system/cpu/cpu3/topology": None}
)
def test_no_content_of_any_file_is_a_crash(changes: dict[str, bytes | str | None]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "root"
        plant(root)
        for number, (path, content) in enumerate(changes.items()):
            target = root / path
            if not target.parent.is_dir() or target.parent.resolve() != target.parent:
                continue  # gone or linked elsewhere by an earlier change
            if target.exists() or target.is_symlink():
                target.rename(Path(folder) / f"old{number}")
            if isinstance(content, bytes):
                target.write_bytes(content)
            elif content is not None:
                target.symlink_to(content)
        refusal = ""
        try:
            check_is_sound(discover(root))
        except TopologyError as error:
            refusal = str(error)
        assert refusal == "" or str(root) in refusal


@settings(max_examples=40, deadline=None)
@given(
    packages=st.integers(1, 3),
    dies=st.integers(1, 2),
    nodes=st.integers(1, 2),
    l3=st.integers(1, 2),
    cores=st.integers(1, 3),
    threads=st.integers(1, 4),
    pmem=st.booleans(),
    apart=st.booleans(),
)
def test_a_synthetic_machine_is_what_was_asked_for(
    *,
    packages: int,
    dies: int,
    nodes: int,
    l3: int,
    cores: int,
    threads: int,
    pmem: bool,
    apart: bool,
) -> None:
    spec = (
        f"package:{packages}{'(pmem=1GiB)' if pmem else ''} die:{dies} numa:{nodes} l3:{l3} "
        f"core:{cores} pu:{threads} siblings={'apart' if apart else 'adjacent'}"
    )
    with tempfile.TemporaryDirectory() as folder:
        write(spec, Path(folder) / "root")
        machine = discover(Path(folder) / "root")
    check_is_sound(machine)
    total = packages * dies * nodes * l3 * cores
    assert len(machine.packages) == packages
    assert len(machine.dies) == packages * dies
    assert len(machine.nodes) == packages * dies * nodes + packages * pmem
    assert len([cache for cache in machine.caches if cache.level == 3]) == total // cores
    assert len(machine.cores) == total
    assert {len(core.cpus) for core in machine.cores} == {threads}
    assert str(machine.online) == (f"0-{total * threads - 1}" if total * threads > 1 else "0")
    assert machine.notes == ()


@settings(max_examples=300)
@given(
    st.one_of(
        st.text(max_size=40),
        st.lists(
            st.sampled_from(WORDS),
            max_size=6,
        ).map(" ".join),
    )
)
def test_any_text_is_a_machine_or_an_error_that_points_into_it(text: str) -> None:
    cpus, position = 1, 0
    try:
        cpus = parse(text).cpu_count()
    except SpecError as error:
        position = error.position
    assert 1 <= cpus <= 8192
    assert 0 <= position <= len(text)


def test_the_tree_under_test_is_sound(tmp_path: Path) -> None:
    plant(tmp_path / "root")
    machine = discover(tmp_path / "root")
    check_is_sound(machine)
    with pytest.raises(TopologyError):
        discover(tmp_path / "empty")
