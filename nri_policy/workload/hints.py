"""Hints: CPUs and NUMA nodes near a container's devices and volumes; spec placement.md §8.

Owns which of a container's mounts, devices and assigned resources count. The Locator knows where
hardware is, and the engine weighs the hints.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import chain

from msgspec import Struct

from nri_policy.foundation.cpuset import EMPTY, CPUSet
from nri_policy.hardware.locality import Locality, Locator
from nri_policy.workload.annotation_table import Preferences
from nri_policy.workload.annotation_values import CLAIM, POD_RESOURCE, HintKind

# Mount points of files from the runtime and the kubelet: their sources say nothing about the
# workload. The peer ignores the same.
_OWN_FILES = (
    "/.nri-resource-policy",
    "/dev/shm",  # noqa: S108 - the container's
    "/dev/termination-log",
    "/etc/",
    "/lib/",
    "/lib64/",
    "/usr/lib/",
    "/usr/lib32/",
    "/usr/lib64/",
)
# Volumes that the kubelet makes in its own folder: scratch space, and objects of the cluster.
_KUBELETS = re.compile(
    r"/pods/[^/]+/volumes/kubernetes\.io~(?:configmap|downward-api|empty-dir|projected|secret)/"
)
# Mount points of persistent volumes. If the kubelet has its own mount namespace, the host's table
# lacks them, and the disk of the folder says nothing.
_PERSISTENT = re.compile(r"/.*/pods/[^/]+/volumes/[^/]+/[^/]+")


class ContainerMount(Struct, frozen=True, kw_only=True):
    """A mount of a container."""

    destination: str  # in the container
    source: str  # on the host; not a path for file systems without one
    writable: bool


class DeviceFile(Struct, frozen=True, kw_only=True):
    """A device file that a container was given, and may write to."""

    path: str
    kind: str  # "block" or "char"
    number: str  # as in 259:1


class ClaimedDevice(Struct, frozen=True, kw_only=True):
    """A device that a resource claim gave to a container, with its place by its driver.

    Fields that the driver does not publish are None or empty.
    """

    claim: str  # name of the claim
    driver: str
    name: str  # in the driver's pool
    node: int | None  # NUMA node
    address: str  # PCI function
    root: str  # PCIe root complex, as in pci0000:c0


class UsedDevice(Struct, frozen=True, kw_only=True):
    """Hardware behind something that a container uses, whether or not it is near to some CPUs."""

    source: str  # as a hint's
    kind: HintKind
    path: str  # as a hint's
    folders: tuple[str, ...]  # of sysfs, without links


class Hint(Struct, frozen=True, kw_only=True):
    """A place near a device or volume. At least one set is not empty; an empty one is unknown."""

    # path on the host, `podresourceapi:RESOURCE` or `claim:DRIVER`; devices of one share it
    source: str
    kind: HintKind
    cpus: CPUSet
    nodes: CPUSet  # ids
    device: str = ""  # which device, if the source does not show that
    # of a device file or a mount's disk in sysfs, without links: filters may name it as well
    path: str = ""

    @property
    def place(self) -> str:
        """What it is, which one, and where."""
        where = f"NUMA node {self.nodes}" if self.nodes else f"CPUs {self.cpus}"
        return f"{' '.join(filter(None, (self.source, self.device)))} on {where}"


def candidates(
    mounts: Iterable[ContainerMount],
    devices: Iterable[DeviceFile],
    interfaces: Iterable[str],
    resources: Mapping[str, Mapping[str, CPUSet]],
    locator: Locator,
) -> tuple[Hint, ...]:
    """Return the hints that a container gives before its annotations have been asked.

    *interfaces* are the host's names of network interfaces that become the container's; *resources*
    the NUMA nodes, by resource and id, of the devices that the kubelet assigned: empty if unknown.
    """
    return (
        *_mount_hints(mounts, locator),
        *_device_hints(devices, interfaces, locator),
        *(
            Hint(
                source=POD_RESOURCE + resource,
                kind=HintKind.POD_RESOURCES,
                cpus=EMPTY,
                nodes=nodes,
                device=device,
            )
            for resource, places in resources.items()
            for device, nodes in places.items()
            if nodes
        ),
    )


def claim_hints(claimed: Iterable[ClaimedDevice], locator: Locator) -> Iterator[Hint]:
    """Yield a hint for each claimed device with a known place: the NUMA node from its driver.

    Without a valid node, the place of its PCI function, or of its PCIe root complex.
    """
    for device in claimed:
        cpus, nodes = EMPTY, EMPTY
        if device.node is not None and locator.has_node(device.node):
            nodes = CPUSet((device.node,))
        elif place := locator.function(device.address) or locator.root_complex(device.root):
            cpus, nodes = place.cpus, place.nodes
        if cpus or nodes:
            yield Hint(
                source=CLAIM + device.driver,
                kind=HintKind.CLAIMS,
                cpus=cpus,
                nodes=nodes,
                device=f"{device.name} (claim {device.claim})",
            )


def find_used_devices(  # noqa: PLR0913, PLR0917 - what a container uses
    mounts: Iterable[ContainerMount],
    devices: Iterable[DeviceFile],
    interfaces: Iterable[str],
    resources: Mapping[str, Iterable[str]],
    claimed: Iterable[ClaimedDevice],
    locator: Locator,
) -> tuple[UsedDevice, ...]:
    """Return the hardware that a container uses, as `candidates` and `claim_hints` take it.

    The ids in *resources* name a device where they are PCI addresses, as of SR-IOV plugins.
    """
    own, volume = HintKind.DEVICES, locator.mount_hardware(_sources(mounts))
    found = [(source, _mount_kind(source), hardware) for source, hardware in volume.items()]
    found += [(each.path, own, locator.device_hardware(each.kind, each.number)) for each in devices]
    found += [(_interface(name), own, locator.interface_hardware(name)) for name in interfaces]
    found += [
        (POD_RESOURCE + resource, HintKind.POD_RESOURCES, locator.function_hardware(id_))
        for resource, ids in resources.items()
        for id_ in ids
    ]
    found += [
        (CLAIM + each.driver, HintKind.CLAIMS, locator.function_hardware(each.address))
        for each in claimed
    ]
    return tuple(
        UsedDevice(source=source, kind=kind, path=hardware.path, folders=hardware.folders)
        for source, kind, hardware in found
        if hardware.folders
    )


def hints_of(candidates: Collection[Hint], preferences: Preferences) -> tuple[Hint, ...]:
    """Return those of *candidates* that a container's annotations let count."""
    return tuple(hint for hint in candidates if _counts(hint, preferences))


def device_folders(devices: Iterable[UsedDevice], preferences: Preferences) -> tuple[str, ...]:
    """Return the sysfs folders of those *devices* whose hints a container's annotations let count.

    Each folder once.
    """
    counting = (each.folders for each in devices if _counts(each, preferences))
    return tuple(dict.fromkeys(chain.from_iterable(counting)))


def _counts(found: Hint | UsedDevice, preferences: Preferences) -> bool:
    deny, allow = preferences.deny_hints, preferences.allow_hints
    return found.kind in preferences.hint_kinds and (
        deny is None
        or not deny.matches(found.source, found.path)
        or (allow is not None and allow.matches(found.source, found.path))
    )


def _mount_hints(mounts: Iterable[ContainerMount], locator: Locator) -> Iterator[Hint]:
    sources = _sources(mounts)
    if not sources:
        return
    for source, place in locator.mounts(sources).items():
        yield _hint_at(source, _mount_kind(source), place)


def _sources(mounts: Iterable[ContainerMount]) -> dict[str, str]:
    """Return the sources of *mounts* that count, each once, with the folder of its mount point."""
    return {
        mount.source: _mount_point(mount.source)
        for mount in mounts
        if mount.writable
        and mount.source.startswith("/")
        and not mount.destination.startswith(_OWN_FILES)
    }


def _mount_kind(source: str) -> HintKind:
    return HintKind.KUBELET_VOLUMES if _KUBELETS.search(source) else HintKind.MOUNTS


def _mount_point(source: str) -> str:
    """Return the folder that a volume's mount point has to be in, "/" where it may be anywhere."""
    volume = None if _KUBELETS.search(source) else _PERSISTENT.match(source)
    return volume[0] if volume else "/"


def _device_hints(
    devices: Iterable[DeviceFile], interfaces: Iterable[str], locator: Locator
) -> Iterator[Hint]:
    found = [(device.path, locator.device(device.kind, device.number)) for device in devices]
    found += [(_interface(name), locator.interface(name)) for name in interfaces]
    for source, place in found:
        if place is not None:
            yield _hint_at(source, HintKind.DEVICES, place)


def _hint_at(source: str, kind: HintKind, place: Locality) -> Hint:
    return Hint(source=source, kind=kind, cpus=place.cpus, nodes=place.nodes, path=place.path)


def _interface(name: str) -> str:
    return f"/sys/class/net/{name}"
