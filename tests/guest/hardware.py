"""The emulated machines, and the hardware that is special to each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations

from tests.guest.emulator import Hardware

NEAR, FAR = 11, 21  # distances within a socket, and between two


def nodes(cpus: Sequence[str], megabytes: Sequence[int]) -> Iterator[str]:
    """Yield the options for NUMA nodes: the CPUs and the memory of each; none of either is ""."""
    for node, (its_cpus, its_memory) in enumerate(zip(cpus, megabytes, strict=True)):
        if its_memory:
            yield f"-object memory-backend-ram,id=m{node},size={its_memory}M"
        memory = f",memdev=m{node}" if its_memory else ""
        yield f"-numa node,nodeid={node}{memory}{',cpus=' if its_cpus else ''}{its_cpus}"


def distances(sockets: Mapping[int, int]) -> Iterator[str]:
    """Yield the options for distances between nodes by the socket of each."""
    for one, other in combinations(sockets, 2):
        value = NEAR if sockets[one] == sockets[other] else FAR
        yield f"-numa dist,src={one},dst={other},val={value}"


FOUR_NODES = [
    *nodes(["0-3", "4-7", "8-11", "12-15"], [384] * 4),
    *distances({0: 0, 1: 0, 2: 1, 3: 1}),
]
SIXTEEN = "16,sockets=2,cores=4,threads=2"

EIGHT = "8,sockets=2,cores=4,threads=1"

# a disk of nothing, below what is written to it
KEPT_WHILE_IT_RUNS = "format=raw,file.driver=null-co,file.size=64M,file.read-zeroes=on,snapshot=on"


def performance(initiator: int, target: int, latency: int, bandwidth: int) -> Iterator[str]:
    """Yield the firmware's figures (HMAT) for a node's memory: nanoseconds and GB/s."""
    pair = f"initiator={initiator},target={target},hierarchy=memory"
    yield f"-numa hmat-lb,{pair},data-type=access-latency,latency={latency}"
    yield f"-numa hmat-lb,{pair},data-type=access-bandwidth,bandwidth={bandwidth}G"


def tiered() -> Iterator[str]:
    """Yield two sockets with dram, each with a slower and a faster memory-only node near to it."""
    for node, its_cpus in enumerate(["cpus=0-3,", "cpus=4-7,", "", "", "", ""]):
        megabytes = 512 if its_cpus else 384  # the system itself starts on nodes with CPUs
        yield f"-object memory-backend-ram,id=m{node},size={megabytes}M"
        yield f"-numa node,nodeid={node},{its_cpus}memdev=m{node},initiator={node % 2}"
    sockets = {node: node % 2 for node in range(6)}
    for one, other in combinations(sockets, 2):
        value = (17, 28)[sockets[one] != sockets[other]] if other in {2, 3} else FAR
        yield f"-numa dist,src={one},dst={other},val={value}"
    for target in range(6):
        latency, bandwidth = [(100, 20), (350, 5), (60, 90)][target // 2]
        for initiator in range(2):
            farther = 0 if initiator == sockets[target] else 50
            yield from performance(initiator, target, latency + farther, bandwidth)


def added(node: int, megabytes: int) -> Iterator[str]:
    """Yield the options for memory that the kernel meets after boot, on a node without other.

    The firmware's tables know such a node only by the persistent memory on it, which is a whole
    block of memory, lest what comes behind it begins within one.
    """
    yield f"-object memory-backend-ram,id=known{node},size=128M"
    yield f"-device nvdimm,id=nvdimm{node},memdev=known{node},node={node}"
    yield f"-object memory-backend-ram,id=added{node},size={megabytes}M"
    yield f"-device pc-dimm,id=dimm{node},memdev=added{node},node={node}"


# QEMU's own monitor as a port of the machine, which so can plug a disk into itself
MONITOR = [
    "-chardev socket,id=monitor,path=monitor,server=on,wait=off",
    "-mon chardev=monitor,mode=readline",
    "-chardev socket,id=to-monitor,path=monitor",
    "-device virtserialport,chardev=to-monitor,name=monitor",
]

GUESTS = {  # shared out in this order: the longest first, and two at a time end together
    "plain": Hardware(smp=SIXTEEN, memory=1536, numa=FOUR_NODES),
    "systemd": Hardware(
        smp=EIGHT,
        memory=1024,
        numa=[*nodes(["0-3", "4-7"], [512] * 2), *distances({0: 0, 1: 1})],
        systemd=True,
    ),
    "devices": Hardware(
        smp=EIGHT,
        memory=1024,
        numa=[*nodes(["0-3", "4-7"], [512] * 2), *distances({0: 0, 1: 1})],
        devices=[
            option
            for node, number in enumerate([32, 64])
            for option in (
                f"-device pxb-pcie,bus=pcie.0,id=bus{node},numa_node={node},bus_nr={number}",
                f"-device pcie-root-port,id=port{node},bus=bus{node},chassis={node + 1}",
                f"-drive if=none,id=disk{node},{KEPT_WHILE_IT_RUNS}",
                f"-device nvme,drive=disk{node},bus=port{node},serial=disk{node}",
            )
        ]
        + [
            # nothing is in this slot until a test plugs the drive into it
            "-device pcie-root-port,id=free,bus=pcie.0,chassis=3",
            f"-drive if=none,id=late,{KEPT_WHILE_IT_RUNS}",
            *MONITOR,
        ],
        modules=("loop", "virtio_blk"),
    ),
    "isolated": Hardware(
        smp=SIXTEEN, memory=1536, numa=FOUR_NODES, cmdline="isolcpus=4-7 nohz_full=4-7"
    ),
    "large": Hardware(
        smp="96,sockets=4,cores=12,threads=2",
        memory=2048,
        numa=[
            *nodes([f"{cpu}-{cpu + 23}" for cpu in range(0, 96, 24)], [512] * 4),
            *distances({node: node for node in range(4)}),
        ],
    ),
    # dram 0 and 1, pmem 2 and 3, hbm 4 and 5
    "tiers": Hardware(smp=EIGHT, memory=2560, machine="q35,hmat=on", numa=[*tiered()]),
    # CPUs 6 and 7 stay offline; the memory of node 2, near to 0, and 3, near to 1, is movable only
    "added": Hardware(
        smp=EIGHT,
        memory=1024,
        machine="q35,nvdimm=on",
        numa=[
            *nodes(["0-3", "4-7", "", ""], [512, 512, 0, 0]),
            *distances({0: 0, 1: 1, 2: 0, 3: 1}),
        ],
        devices=[*added(2, 512), *added(3, 512)],
        cmdline="maxcpus=6 memhp_default_state=online_movable",
    ),
    # node 1 has no memory, node 2 no CPUs
    "asymmetric": Hardware(
        smp=EIGHT,
        memory=1024,
        numa=[*nodes(["0-3", "4-7", ""], [512, 0, 512]), *distances({0: 0, 1: 1, 2: 1})],
    ),
    # a virtual machine with a socket for each CPU; huge pages are on node 1 only
    "sockets": Hardware(
        smp="8,sockets=8,cores=1,threads=1",
        memory=1024,
        numa=[*nodes(["0-3", "4-7"], [512] * 2), *distances({0: 0, 1: 1})],
        cmdline="hugepagesz=2M hugepages=1:16",
    ),
}
