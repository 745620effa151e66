"""Synthetic machines: a specification written out as a sysfs and procfs tree.

Owns what a kernel would show for a machine in the notation of `synthetic_spec`, so that the reader
used for real machines reads these too. Cores are x86's as the kernel describes them. A large
machine must not take long: a folder that is the same for several CPUs is written once and linked
to, and what a kernel shows of every CPU but tells only of offline ones is written for these alone.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from nri_policy.foundation.cpuset import CPUSet
from nri_policy.hardware.synthetic_devices import ACCELERATOR, address_of
from nri_policy.hardware.synthetic_layout import NodeLayout, SyntheticCore, SyntheticLayout, lay_out
from nri_policy.hardware.synthetic_spec import Spec, parse

_CPU = "sys/devices/system/cpu"
_NODE = "sys/devices/system/node"
_CACHES = (
    # index, level, type, KiB of a performance core, KiB of an efficiency core, shared by
    (0, 1, "Data", 48, 32, "core"),
    (1, 1, "Instruction", 32, 64, "core"),
    (2, 2, "Unified", 2048, 4096, "l2"),
    (3, 3, "Unified", 32768, 32768, "l3"),
)
# distance from the CPUs that a memory-only node is near to, and from all others
_FAR = {"hbm": (13, 23), "pmem": (17, 28), "cxl": (17, 28)}
_TIERS = {"dram": 4, "hbm": 1, "pmem": 22, "cxl": 22}  # as recorded on Linux 6.12
_HMAT = {"dram": (100, 102400), "hbm": (110, 409600)}  # ns, MB/s


def write(text: str, folder: Path) -> None:
    """Write the machine that *text* specifies into *folder*, which must be empty or absent.

    Raises SpecError for a bad specification and OSError if the folder cannot be written.
    """
    layout = lay_out(parse(text))
    writer = _Writer(folder)
    _write_cpus(writer, layout)
    _write_nodes(writer, layout)
    _write_proc(writer, layout)
    _write_devices(writer, layout.spec)


class _Writer:
    """Writes files below a folder, making the folders that they need."""

    def __init__(self, root: Path) -> None:
        self._root = str(root)
        self._made: set[str] = set()

    def _folder(self, path: str) -> None:
        parent = path.rpartition("/")[0]
        if parent not in self._made:
            Path(self._root, parent).mkdir(parents=True, exist_ok=True)
            self._made.add(parent)

    def put(self, path: str, text: object) -> None:
        self._folder(path)
        fd = os.open(f"{self._root}/{path}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            os.write(fd, f"{text}\n".encode())
        finally:
            os.close(fd)

    def link(self, path: str, target: str) -> None:
        self._folder(path)
        Path(self._root, path).symlink_to(target)


def _write_cpus(writer: _Writer, layout: SyntheticLayout) -> None:
    spec, online = layout.spec, layout.online
    every = online | spec.offline
    for name, cpus in (
        ("possible", every),
        ("present", every),
        ("online", online),
        ("offline", spec.offline),
        ("isolated", spec.isolated),
        ("nohz_full", spec.nohz_full),
    ):
        writer.put(f"{_CPU}/{name}", cpus)
    owners: dict[tuple[str, int], int] = {}
    for core in layout.cores:
        for cpu in core.cpus:
            _write_frequencies(writer, spec, cpu)
        for cpu in core.cpus - online:
            writer.put(f"{_CPU}/cpu{cpu}/online", 0)
            node = f"node{core.units['numa']}"
            writer.link(f"{_CPU}/cpu{cpu}/{node}", f"../../node/{node}")
        if core.cpus & online:
            lead, *others = core.cpus & online
            _write_topology(writer, layout, core, lead)
            _write_caches(writer, layout, core, owners)
            for cpu in others:
                writer.link(f"{_CPU}/cpu{cpu}/topology", f"../cpu{lead}/topology")
                writer.link(f"{_CPU}/cpu{cpu}/cache", f"../cpu{lead}/cache")
    if spec.efficiency:
        slow = CPUSet.union(core.cpus for core in layout.cores if core.efficiency)
        writer.put("sys/devices/cpu_core/cpus", online - slow)
        writer.put("sys/devices/cpu_atom/cpus", online & slow)


def _write_topology(
    writer: _Writer, layout: SyntheticLayout, core: SyntheticCore, lead: int
) -> None:
    folder = f"{_CPU}/cpu{lead}/topology"
    dies = layout.spec.units("die") // layout.spec.units("package")
    writer.put(f"{folder}/core_id", core.number)
    writer.put(f"{folder}/core_cpus_list", core.cpus & layout.online)
    for level, file, id_ in (
        ("package", "physical_package_id", core.units["package"]),
        ("die", "die_id", core.units["die"] % dies),
        ("cluster", "cluster_id", core.units.get("cluster")),
    ):
        if id_ is not None:
            cpus = layout.members[level, core.units[level]]
            writer.put(f"{folder}/{file}", id_)
            writer.put(f"{folder}/{level}_cpus_list", cpus & layout.online)


def _write_caches(
    writer: _Writer,
    layout: SyntheticLayout,
    core: SyntheticCore,
    owners: dict[tuple[str, int], int],
) -> None:
    """Write the caches of a core; *owners* are the CPUs that the shared ones are written under."""
    own = core.cpus & layout.online
    for index, level, type_, fast, slow, shared in _CACHES:
        folder = f"{_CPU}/cpu{own.lowest}/cache/index{index}"
        cpus = own
        if shared in core.units:
            unit = (shared, core.units[shared])
            owner = owners.setdefault(unit, own.lowest)
            if owner != own.lowest:
                writer.link(folder, f"../../cpu{owner}/cache/index{index}")
                continue
            cpus = layout.members[unit] & layout.online
        writer.put(f"{folder}/id", own.lowest)
        writer.put(f"{folder}/level", level)
        writer.put(f"{folder}/type", type_)
        writer.put(f"{folder}/size", f"{slow if core.efficiency else fast}K")
        writer.put(f"{folder}/shared_cpu_list", cpus)


def _write_frequencies(writer: _Writer, spec: Spec, cpu: int) -> None:
    for file, settings in spec.frequencies.items():
        for cpus, text in reversed(settings):
            if cpus is None or cpu in cpus:
                writer.put(f"{_CPU}/cpu{cpu}/cpufreq/{file}", text)
                break


def _write_nodes(writer: _Writer, layout: SyntheticLayout) -> None:
    nodes = layout.nodes
    ids = CPUSet(node.id for node in nodes)
    with_memory = CPUSet(node.id for node in nodes if node.memory)
    late = CPUSet(node.id for node in nodes if node.kind in ("pmem", "cxl"))
    for name, members in (
        ("possible", ids),
        ("online", ids),
        ("has_cpu", CPUSet(node.id for node in nodes if node.cpus & layout.online)),
        ("has_memory", with_memory),
        ("has_normal_memory", with_memory - late),  # drivers bring their memory as movable
    ):
        writer.put(f"{_NODE}/{name}", members)
    hmat = any(node.kind == "hbm" for node in nodes)
    tiers: dict[int, list[int]] = {}
    for node in nodes:
        _write_node(writer, layout, node)
        if hmat and node.kind in _HMAT:
            _write_hmat(writer, node)
        if node.id in late:
            _write_dax(writer, node)
        if node.memory:
            tiers.setdefault(_TIERS[node.kind], []).append(node.id)
    for tier, tier_ids in tiers.items():
        folder = f"sys/devices/virtual/memory_tiering/memory_tier{tier}"
        writer.put(f"{folder}/nodelist", CPUSet(tier_ids))


def _write_node(writer: _Writer, layout: SyntheticLayout, node: NodeLayout) -> None:
    folder = f"{_NODE}/node{node.id}"
    row: Iterable[int] = (_distance(node, to) for to in layout.nodes)
    if layout.spec.distances:
        row = layout.spec.distances[node.id]
    kib = node.memory >> 10
    writer.put(f"{folder}/cpulist", node.cpus & layout.online)
    writer.put(f"{folder}/distance", " ".join(map(str, row)))
    writer.put(
        f"{folder}/meminfo", f"Node {node.id} MemTotal: {kib} kB\nNode {node.id} MemFree: {kib} kB"
    )
    for size, pages in node.hugepages.items():
        writer.put(f"{folder}/hugepages/hugepages-{size >> 10}kB/nr_hugepages", pages)
    for cpu in node.cpus - layout.online:
        writer.link(f"{folder}/cpu{cpu}", f"../../cpu/cpu{cpu}")


def _distance(by: NodeLayout, to: NodeLayout) -> int:
    if by.id == to.id:
        return 10
    if by.cpus and to.cpus:
        return 11 if by.packages & to.packages else 21
    if not by.cpus and not to.cpus:
        return max(_FAR[by.kind][1], _FAR[to.kind][1])
    near, far = _FAR[to.kind if by.cpus else by.kind]
    return near if by.near & to.near else far


def _write_hmat(writer: _Writer, node: NodeLayout) -> None:
    folder = f"{_NODE}/node{node.id}/access1/initiators"
    latency, bandwidth = _HMAT[node.kind]
    for direction in ("read", "write"):
        writer.put(f"{folder}/{direction}_latency", latency)
        writer.put(f"{folder}/{direction}_bandwidth", bandwidth)
    for id_ in node.near:
        writer.link(f"{folder}/node{id_}", f"../../../node{id_}")


def _write_dax(writer: _Writer, node: NodeLayout) -> None:
    name = f"dax{node.id}.0"
    if node.kind == "pmem":
        region = f"devices/LNXSYSTM:00/LNXSYBUS:00/ACPI0012:00/ndbus0/region{node.id}"
    else:
        region = (
            f"devices/platform/ACPI0017:00/root0/decoder0.0/region{node.id}/dax_region{node.id}"
        )
    place = f"{region}/{name}"
    writer.put(f"sys/{place}/target_node", node.id)
    writer.put(f"sys/{place}/size", node.memory)
    writer.link(f"sys/bus/dax/devices/{name}", f"../../../{place}")


def _write_proc(writer: _Writer, layout: SyntheticLayout) -> None:
    options = {"isolcpus": layout.spec.isolated, "nohz_full": layout.spec.nohz_full}
    writer.put("proc/cmdline", " ".join(f"{name}={cpus}" for name, cpus in options.items() if cpus))
    kib = sum(node.memory for node in layout.nodes) >> 10
    writer.put("proc/meminfo", f"MemTotal: {kib} kB\nMemFree: {kib} kB")


def _write_devices(writer: _Writer, spec: Spec) -> None:
    """Write a PCI function for each device, and a list of PCI ids that has its resource's name."""
    count = 0
    names = []
    for vendor, (resource, nodes) in enumerate(spec.list_devices().items(), start=1):
        domain, _, name = resource.partition("/")
        names.append(f"{vendor:04x}  {domain}\n\t0000  {name}\n")
        for node in nodes:
            address = address_of(0, count)
            place = f"devices/pci{address[:7]}/{address}"
            writer.put(f"sys/{place}/class", ACCELERATOR)
            writer.put(f"sys/{place}/numa_node", node)
            writer.put(f"sys/{place}/vendor", f"{vendor:#06x}")
            writer.put(f"sys/{place}/device", "0x0000")
            writer.link(f"sys/bus/pci/devices/{address}", f"../../../{place}")
            count += 1
    if names:
        writer.put("usr/share/misc/pci.ids", "".join(names))
