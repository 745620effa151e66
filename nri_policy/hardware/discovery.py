"""Discovery: from a root folder to the Machine that it describes.

Owns the order in which the parts are read, and nothing else. The root may be a real host's, a
container's mount of it, an unpacked capture or a synthetic tree: nothing outside of it is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from nri_policy.foundation.cpuset import CPUSet
from nri_policy.hardware.caches import read_caches, read_frequencies
from nri_policy.hardware.core_kinds import core_kinds
from nri_policy.hardware.cpus import read_cpus, read_sets
from nri_policy.hardware.devices import read_devices
from nri_policy.hardware.machine import Machine, MemoryKind, MemoryNode
from nri_policy.hardware.memory_kinds import Evidence, judge
from nri_policy.hardware.notes import Notes
from nri_policy.hardware.numa import nearest, read_nodes
from nri_policy.hardware.packages import nest
from nri_policy.hardware.sysfs import FileTree

_NONE: Mapping[int, MemoryKind] = MappingProxyType({})


def discover(root: Path, *, memory_kinds: Mapping[int, MemoryKind] = _NONE) -> Machine:
    """Return the machine described by sysfs and procfs below *root*.

    *memory_kinds*, by node id, come before what the files say. What is missing or odd is in the
    machine's notes.

    Raises TopologyError if no usable CPU is described.
    """
    with FileTree(root, Notes()) as tree:
        return read_machine(tree, memory_kinds)


def read_machine(tree: FileTree, memory_kinds: Mapping[int, MemoryKind] = _NONE) -> Machine:
    """Return the machine described by *tree*; as `discover` does."""
    sets = read_sets(tree)
    caches = read_caches(tree, sets.online)
    frequencies = read_frequencies(tree, sets.online)
    kinds = core_kinds(tree, sets.online, caches, frequencies)
    nesting = nest(read_cpus(tree, sets.online), kinds, tree.notes)
    nodes, distances = read_nodes(tree, sets)
    near = {node.id: nearest(node, nodes, distances) for node in nodes}
    own = {node.id: node.cpus for node in nodes}
    near_cpus = {id_: CPUSet.union(own[each] for each in ids) for id_, ids in near.items()}
    devices = read_devices(tree, sets.online, near_cpus)
    verdicts = judge(
        Evidence(
            tree=tree,
            settings=memory_kinds,
            nodes=nodes,
            nearest=near,
            distances=distances,
            packages=nesting.packages,
            devices=devices,
        )
    )
    return Machine(
        online=sets.online,
        offline=sets.offline,
        possible=sets.possible,
        isolated=sets.isolated,
        nohz_full=sets.nohz_full,
        groups=nesting.groups,
        packages=nesting.packages,
        dies=nesting.dies,
        clusters=nesting.clusters,
        cores=nesting.cores,
        caches=caches,
        nodes=tuple(
            MemoryNode(
                id=node.id,
                cpus=node.cpus,
                memory=node.memory,
                hugepages=node.hugepages,
                kind=verdicts[node.id][0],
                kind_reason=verdicts[node.id][1],
                normal=node.normal,
                nearest=near[node.id],
                tier=node.tier,
                access=node.access,
                side_cache=node.side_cache,
            )
            for node in nodes
        ),
        distances=distances,
        frequencies=frequencies,
        devices=devices,
        notes=tree.notes.texts(),
    )
