"""Which NUMA node each container is on, in the form of numaplacement v001; spec nrt.md §1.6.

Owns that encoding, and the choice of containers in it. A reader knows the containers from the API
server and only needs their nodes. Containers are sorted by a hash of their names; the metadata
names the node with most containers, and each other node lists the positions of its containers. A
reader that knows another set of containers rejects the whole encoding (numaplacement's
`Decoder.Result`). So nothing is encoded if one container is not on a single NUMA node.

Schedulers count the containers of Guaranteed pods with any CPU amount, because their memory is
exclusive too (scheduler-plugins' `IsExclusive`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise

from msgspec import Struct

from nri_policy.foundation.cpuset import CPUSet
from nri_policy.manifests.quality_of_service import QoS
from nri_policy.node import NodeView
from nri_policy.nrt.fingerprint import xxh64
from nri_policy.nrt.pending_pods import PodName
from nri_policy.nrt.zones import zone_cpus

METADATA = "topology.node.k8s.io/numaplacement-metadata"  # an attribute of the object
VECTOR = "topology.node.k8s.io/numaplacement-vector"  # one of each zone but the busiest

ContainerName = tuple[str, str, str]  # namespace, pod, container

# LEB89: printable characters that JSON needs no escape for; the first 64 end a number.
_ALPHABET = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in '"&<>\\')
_LAST, _MORE = _ALPHABET[:64], _ALPHABET[64:]


class Encoded(Struct, frozen=True, kw_only=True):
    """The attributes of an object and, by NUMA node, of its zones."""

    metadata: str
    vectors: Mapping[int, str]


def numa_nodes(view: NodeView, pods: Collection[PodName]) -> dict[ContainerName, int] | None:
    """Return the NUMA node of each container of *pods*, the pods that schedulers count.

    None if a container has CPUs or memory of several nodes, or if a pod is not Guaranteed: of such
    a pod schedulers count the containers with devices, and this module does not know the devices.
    """
    tree, found = view.layout.tree, dict[ContainerName, int]()
    zones = [
        (number, cpus, CPUSet.union(tree.around(cpus).memory.values()))
        for number, cpus in enumerate(zone_cpus(view.layout.machine))
        if cpus
    ]
    for placed in view.placed.values():
        container, mems = placed.container, placed.grant.mems
        pod = container.pod
        if (pod.namespace, pod.name) not in pods:
            continue
        cpus = view.cpus(placed)
        node = next((n for n, own, near in zones if cpus <= own and mems <= near), None)
        if node is None or not cpus or pod.qos is not QoS.GUARANTEED:
            return None
        found[pod.namespace, pod.name, container.name] = node
    return found


def encode(containers: Mapping[ContainerName, int], nodes: int) -> Encoded:
    """Return *containers*, each with its NUMA node, for an object with so many *nodes*."""
    hashes = sorted((_hash(*name), node) for name, node in containers.items())
    count = Counter(containers.values())
    busiest = min(count, key=lambda node: (-count[node], node), default=0)
    offsets: dict[int, list[int]] = {}
    for offset, (_, node) in enumerate(hashes):
        offsets.setdefault(node, []).append(offset)
    return Encoded(
        metadata=f"npv0v001::ve=leb89::cc={len(hashes)}::nn={nodes}::bn={busiest}",
        vectors={node: _vector(its) for node, its in offsets.items() if node != busiest},
    )


@lru_cache(4096)
def _hash(namespace: str, pod: str, container: str) -> int:
    return xxh64(f"{namespace}\0{pod}\0{container}".encode())


def _vector(offsets: Sequence[int]) -> str:
    """Encode ascending offsets as the first one and the difference to each next one."""
    return "".join(leb89(after - before) for before, after in pairwise((0, *offsets)))


def leb89(number: int) -> str:
    """Encode a number of at least 0: the last digit in base 64, earlier digits in base 25.

    Alphabet positions from 64 on mark earlier digits, so each number has exactly one form.
    """
    if number < len(_LAST):
        return _LAST[number]
    rest, last = divmod(number - len(_LAST), len(_LAST))
    text = _LAST[last]
    while True:
        rest, digit = divmod(rest, len(_MORE))
        text = _MORE[digit] + text
        if not rest:
            return text
