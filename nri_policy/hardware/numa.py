"""NUMA nodes: their CPUs, memory, distances, and speeds by HMAT.

Owns `sys/devices/system/node`, and the one node made up where a kernel has none. `memory_kinds`
decides on the kind of memory, from the facts of this module.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from nri_policy.foundation.cpuset import EMPTY, CPUSet
from nri_policy.hardware.cpus import CPU_FOLDER, HIGHEST, CPUSets
from nri_policy.hardware.machine import AccessClass, Distances
from nri_policy.hardware.notes import Notes, quote
from nri_policy.hardware.sysfs import FileTree, Folder

NODE_FOLDER = "sys/devices/system/node"
_HIGHEST_NODE = 1023  # the kernel's MAX_NUMNODES has never been above 1024
_LOCAL, _REMOTE = 10, 20  # the kernel's defaults (include/linux/topology.h)
_UNREACHABLE = 255  # ACPI, SLIT
_LEAST = 10  # ACPI reserves the distances below
_DISTANCE = re.compile(r"[0-9]{1,3}")
_MEM_TOTAL = re.compile(r"MemTotal:\s*(\d{1,15}) *kB")
_MEM_FREE = re.compile(r"MemFree:\s*(\d{1,15}) *kB")
_TIERS = "sys/devices/virtual/memory_tiering"


class NUMANode(Struct, frozen=True, kw_only=True):
    """The kernel's facts on one NUMA node."""

    id: int
    cpus: CPUSet  # online
    has_cpus: bool  # also true where all its CPUs are offline
    memory: int  # bytes
    hugepages: tuple[tuple[int, int], ...]  # (page size in bytes, pages), sizes ascending
    normal: bool
    tier: int | None
    access: AccessClass | None
    side_cache: int  # bytes


def read_nodes(tree: FileTree, sets: CPUSets) -> tuple[tuple[NUMANode, ...], Distances]:
    """Return the online NUMA nodes, at least one, and the distances between them."""
    with tree.folder(NODE_FOLDER) as folder:
        folders = CPUSet(id_ for id_ in folder.numbered("node") if id_ <= _HIGHEST_NODE)
        online = folder.set("online") or folders
        if online - folders:
            tree.notes.add(f"NUMA nodes {online - folders} are online, but have no folder")
        if folders - online:
            tree.notes.add(f"NUMA nodes {folders - online} have folders, but are not online")
        if not folders & online:
            tree.notes.add("no NUMA node is described: all CPUs and memory are taken as node 0")
            return (_whole_machine(tree, sets),), _default_distances((0,))
        normal = _normal_nodes(folder, online)
        tiers = _read_tiers(tree)
        left = _nodes_of_offline_cpus(tree, sets.offline)
        nodes: list[NUMANode] = []
        rows: dict[int, str] = {}
        for id_ in folders & online:
            with folder.folder(f"node{id_}") as own:
                node = _read_node(own, id_, sets.online, normal, tiers.get(id_))
                nodes.append(replace(node, has_cpus=node.has_cpus or id_ in left))
                rows[id_] = own.text("distance") or ""
    if len(nodes) == 1 and not nodes[0].memory:
        whole = _whole_machine(tree, sets)
        nodes = [replace(nodes[0], memory=whole.memory, hugepages=whole.hugepages)]
    _note_odd_cpus(tree, sets.online, nodes)
    distances = _read_distances(tree, tuple(online), rows)
    return tuple(nodes), distances


def nearest(node: NUMANode, nodes: Sequence[NUMANode], distances: Distances) -> CPUSet:
    """Return the ids of the CPU-bearing nodes nearest to *node*: all of them on a tie."""
    if node.cpus:
        return CPUSet((node.id,))
    bearing = CPUSet(other.id for other in nodes if other.cpus)
    if node.access is not None and node.access.initiators & bearing:
        return node.access.initiators & bearing
    # the initiator's row counts: it is the CPU that reaches out
    column = distances.nodes.index(node.id)
    rows = zip(distances.nodes, distances.matrix, strict=True)
    far = {id_: row[column] for id_, row in rows if id_ in bearing}
    least = min(far.values(), default=0)
    return CPUSet(id_ for id_, distance in far.items() if distance == least)


def _whole_machine(tree: FileTree, sets: CPUSets) -> NUMANode:
    with tree.folder("proc") as proc:
        memory = _mem_total(proc)
    with tree.folder("sys/kernel/mm/hugepages") as folder:
        hugepages = _read_hugepages(folder)
    return NUMANode(
        id=0,
        cpus=sets.online,
        has_cpus=True,
        memory=memory,
        hugepages=hugepages,
        normal=True,
        tier=None,
        access=None,
        side_cache=0,
    )


def _normal_nodes(folder: Folder, online: CPUSet) -> CPUSet | None:
    """Return the nodes with memory for the kernel's own use; None where the kernel does not say."""
    normal = folder.set("has_normal_memory")
    if normal is not None and not normal <= online:
        folder.tree.notes.add(
            f"has_normal_memory names nodes {normal - online} that are not online: ignored"
        )
        return None
    return normal


def _read_tiers(tree: FileTree) -> dict[int, int]:
    tiers: dict[int, int] = {}
    with tree.folder(_TIERS) as folder:
        for tier in folder.numbered("memory_tier"):
            with folder.folder(f"memory_tier{tier}") as own:
                for node in own.set("nodelist") or EMPTY:
                    tiers[node] = tier
    return tiers


def _read_node(
    folder: Folder, id_: int, online: CPUSet, normal: CPUSet | None, tier: int | None
) -> NUMANode:
    listed = folder.set("cpulist", "cpumap")
    linked = CPUSet(cpu for cpu in folder.numbered("cpu") if cpu <= HIGHEST)
    if listed is None:
        listed = linked
    memory = _mem_total(folder)
    with folder.folder("hugepages") as pages:
        hugepages = _read_hugepages(pages)
    return NUMANode(
        id=id_,
        cpus=listed & online,
        has_cpus=bool(listed | linked),
        memory=memory,
        hugepages=hugepages,
        normal=bool(memory or listed) if normal is None else id_ in normal,
        tier=tier,
        access=_read_access(folder),
        side_cache=_read_side_cache(folder),
    )


def _nodes_of_offline_cpus(tree: FileTree, offline: CPUSet) -> set[int]:
    # `cpulist` leaves offline CPUs out, but they keep their link to the node
    nodes: set[int] = set()
    with tree.folder(CPU_FOLDER) as cpus:
        for cpu in offline:
            with cpus.folder(f"cpu{cpu}") as own:
                nodes.update(own.numbered("node"))
    return nodes


def free_memory(root: Path, nodes: Iterable[int]) -> dict[int, int]:
    """Return the free bytes on each of *nodes*, if the kernel shows them.

    They are no part of a Machine, which stays equal while programs allocate and free memory.
    """
    free = {}
    with FileTree(root, Notes()) as tree:
        for node in nodes:
            with tree.folder(f"{NODE_FOLDER}/node{node}") as folder:
                match = _MEM_FREE.search(folder.text("meminfo") or "")
            if match is not None:
                free[node] = int(match.group(1)) << 10
    return free


def _mem_total(folder: Folder) -> int:
    text = folder.text("meminfo")
    match = _MEM_TOTAL.search(text or "")
    if match is None:
        folder.tree.notes.add(f"{folder.path}/meminfo: no MemTotal: its memory is not counted")
        return 0
    return int(match.group(1)) << 10


def _read_hugepages(folder: Folder) -> tuple[tuple[int, int], ...]:
    pools: list[tuple[int, int]] = []
    for name in folder.names():
        match = re.fullmatch(r"hugepages-(\d{1,12})kB", name)
        if match:
            with folder.folder(name) as pool:
                pools.append((int(match.group(1)) << 10, max(pool.integer("nr_hugepages") or 0, 0)))
    return tuple(sorted(pools))


def _read_access(folder: Folder) -> AccessClass | None:
    """Return the HMAT figures: for CPUs (class 1), else for any initiator (class 0)."""
    for class_ in ("access1", "access0"):
        with folder.folder(class_) as access, access.folder("initiators") as initiators:
            nodes = CPUSet(id_ for id_ in initiators.numbered("node") if id_ <= _HIGHEST_NODE)
            if nodes:
                return AccessClass(
                    initiators=nodes,
                    read_latency=_figure(initiators, "read_latency"),
                    write_latency=_figure(initiators, "write_latency"),
                    read_bandwidth=_figure(initiators, "read_bandwidth"),
                    write_bandwidth=_figure(initiators, "write_bandwidth"),
                )
    return None


def _read_side_cache(folder: Folder) -> int:
    size = 0
    with folder.folder("memory_side_cache") as caches:
        for level in caches.numbered("index"):
            with caches.folder(f"index{level}") as cache:
                size += max(cache.integer("size") or 0, 0)
    return size


def _figure(folder: Folder, name: str) -> int | None:
    figure = folder.integer(name)
    return figure if figure is not None and figure > 0 else None  # 0 is the kernel's "unknown"


def _note_odd_cpus(tree: FileTree, online: CPUSet, nodes: Sequence[NUMANode]) -> None:
    seen: CPUSet = EMPTY
    for node in nodes:
        for cpu in node.cpus & seen:
            tree.notes.add("in more than one NUMA node", cpu)
        seen |= node.cpus
    for cpu in online - seen:
        tree.notes.add("in no NUMA node", cpu)


def _default_distances(nodes: tuple[int, ...]) -> Distances:
    matrix = tuple(tuple(_LOCAL if to == by else _REMOTE for to in nodes) for by in nodes)
    return Distances(nodes=nodes, matrix=matrix)


def _read_distances(tree: FileTree, online: tuple[int, ...], rows: Mapping[int, str]) -> Distances:
    """Return the distances from the *rows* of nodes; their columns are the *online* nodes."""
    nodes = tuple(rows)
    matrix = []
    for id_, text in rows.items():
        row = {to: _LOCAL if to == id_ else _REMOTE for to in nodes}
        words = text.split()
        columns = nodes if len(words) == len(nodes) else online
        for to, word in zip(columns, words, strict=False):
            distance = int(word) if _DISTANCE.fullmatch(word) else 0
            if _LEAST <= distance <= _UNREACHABLE:
                row[to] = distance
            else:
                tree.notes.add(f"node{id_}/distance: {quote(word)} is not a distance (10 to 255)")
        if words and len(words) != len(columns):
            tree.notes.add(
                f"node{id_}/distance: {len(words)} columns for {len(online)} online nodes"
            )
        if not words and len(online) > 1:
            tree.notes.add(f"node{id_}/distance: missing: {_REMOTE} to every other node is assumed")
        matrix.append(tuple(row[to] for to in nodes))
    return Distances(nodes=nodes, matrix=tuple(matrix))
