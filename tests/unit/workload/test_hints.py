from __future__ import annotations

from pathlib import Path

import pytest

from nri_policy.foundation.cpuset import EMPTY, CPUSet
from nri_policy.hardware.discovery import discover
from nri_policy.hardware.locality import Locator
from nri_policy.hardware.synthetic import write
from nri_policy.workload.annotation_values import HintKind
from nri_policy.workload.hints import (
    ClaimedDevice,
    ContainerMount,
    DeviceFile,
    Hint,
    candidates,
    claim_hints,
    device_folders,
    find_used_devices,
    hints_of,
)
from nri_policy.workload.preferences import preferences

KEY = "topologyhints.resource-policy.nri.io/pod"
TABLE = """
22 1 8:0 / / rw - ext4 /dev/sda rw
23 22 8:16 / /data rw - ext4 /dev/sdb rw
24 22 0:44 / /shm rw - tmpfs tmpfs rw
25 22 8:16 / /var/lib/kubelet/pods/uid/volumes/kubernetes.io~csi/pvc/mount rw - ext4 /dev/sdb rw
26 22 8:16 / /var/lib/kubelet/pods/uid/volumes/kubernetes.io~local-volume/disk rw - ext4 /dev/sdb rw
"""
VOLUMES = "/var/lib/kubelet/pods/uid/volumes"


@pytest.fixture(scope="module")
def locator(tmp_path_factory: pytest.TempPathFactory) -> Locator:
    """A machine with sda and sdb on nodes 0 and 3, a GPU and eth0 on node 1 and 2."""
    root = tmp_path_factory.mktemp("root")
    write("package:2 numa:2 core:2", root)
    (root / "proc/1").mkdir(parents=True)
    (root / "proc/1/mountinfo").write_text(TABLE)
    places = {
        "dev/block/8:0": 0,
        "dev/block/8:16": 3,
        "dev/char/226:0": 1,
        "class/net/eth0": 2,
        "bus/pci/devices/0000:02:00.0": 2,
    }
    for path, node in places.items():
        folder = root / f"sys/devices/pci0000:0{node}/0000:0{node}:00.0"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "numa_node").write_text(str(node))
        link = root / "sys" / path
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(Path("../" * path.count("/")) / folder.relative_to(root / "sys"))
    return Locator(root, discover(root))


def mount(source: str, destination: str = "/work", *, writable: bool = True) -> ContainerMount:
    return ContainerMount(source=source, destination=destination, writable=writable)


def hint(
    source: str, kind: HintKind, cpus: str, nodes: str, device: str = "", *, path: str = ""
) -> Hint:
    near, at = CPUSet.parse(cpus), CPUSet.parse(nodes)
    return Hint(source=source, kind=kind, cpus=near, nodes=at, device=device, path=path)


def function(node: int) -> str:
    """Return the path of the PCI function on *node* in sysfs."""
    return f"/sys/devices/pci0000:0{node}/0000:0{node}:00.0"


GPU = DeviceFile(path="/dev/dri/card0", kind="char", number="226:0")
NULL = DeviceFile(path="/dev/null", kind="char", number="1:3")
ASSIGNED = {
    "example.com/gpu": {"GPU-a": CPUSet((0,)), "GPU-b": EMPTY, "GPU-c": CPUSet((3,))},
    "example.com/fuse": {"fuse": EMPTY},
}


def test_hints_come_from_mounts_devices_interfaces_and_each_assigned_device(
    locator: Locator,
) -> None:
    found = candidates([mount("/data/db")], [GPU, NULL], ["eth0", "lo"], ASSIGNED, locator)
    assert found == (
        hint("/data/db", HintKind.MOUNTS, "6-7", "3", path=function(3)),
        hint("/dev/dri/card0", HintKind.DEVICES, "2-3", "1", path=function(1)),
        hint("/sys/class/net/eth0", HintKind.DEVICES, "4-5", "2", path=function(2)),
        hint("podresourceapi:example.com/gpu", HintKind.POD_RESOURCES, "", "0", "GPU-a"),
        hint("podresourceapi:example.com/gpu", HintKind.POD_RESOURCES, "", "3", "GPU-c"),
    )


def claimed(*, node: int | None = None, address: str = "", root: str = "") -> ClaimedDevice:
    return ClaimedDevice(
        claim="gpus", driver="gpu.x", name="gpu-0", node=node, address=address, root=root
    )


@pytest.mark.parametrize(
    ("device", "cpus", "nodes"),
    [
        (claimed(node=3), "", "3"),
        (claimed(node=3, address="0000:02:00.0", root="pci0000:01"), "", "3"),
        (claimed(address="0000:02:00.0", root="pci0000:01"), "4-5", "2"),
        (claimed(node=9, address="0000:02:00.0"), "4-5", "2"),
        (claimed(node=-1, address="0000:ff:00.0", root="pci0000:01"), "2-3", "1"),
    ],
)
def test_a_claimed_device_is_where_its_driver_says(
    device: ClaimedDevice, cpus: str, nodes: str, locator: Locator
) -> None:
    """A NUMA node of this machine, else a PCI function, else a root complex."""
    (found,) = claim_hints([device], locator)
    assert found == Hint(
        source="claim:gpu.x",
        kind=HintKind.CLAIMS,
        cpus=CPUSet.parse(cpus),
        nodes=CPUSet.parse(nodes),
        device="gpu-0 (claim gpus)",
    )


def test_a_device_is_known_wherever_it_is_unless_annotations_exclude_its_hint(
    locator: Locator,
) -> None:
    resources = {"example.com/vf": ["0000:02:00.0", "0000:ff:00.0", "vf-7"]}
    found = find_used_devices(
        [mount("/data/db"), mount("/data/x", writable=False)],
        [GPU, NULL],
        ["eth0", "lo", "../eth0"],
        resources,
        [claimed(address="0000:02:00.0"), claimed(node=3)],
        locator,
    )
    folders = {each.source: each.folders for each in found}
    at = {n: f"sys/devices/pci0000:0{n}/0000:0{n}:00.0" for n in (1, 2, 3)}
    assert folders == {
        "/data/db": (at[3],),
        "/dev/dri/card0": (at[1],),
        "/sys/class/net/eth0": (at[2],),
        "podresourceapi:example.com/vf": (at[2],),
        "claim:gpu.x": (at[2],),
    }
    usual = preferences({}, "c")
    assert device_folders(found, usual) == (at[3], at[1], at[2])
    none = preferences({KEY: "devices"}, "c")
    assert device_folders(found, none) == (at[1], at[2])
    denied = preferences({f"deny.{KEY}": f"{{type: glob, paths: [/{at[3]}]}}"}, "c")
    assert device_folders(found, denied) == (at[1], at[2])


def test_a_claimed_device_of_no_known_place_gives_no_hint(locator: Locator) -> None:
    unknown = [claimed(), claimed(node=7), claimed(address="nowhere", root="pci0000:ff")]
    assert [*claim_hints(unknown, locator)] == []


@pytest.mark.parametrize(
    "ignored",
    [
        mount("/data", writable=False),
        mount("tmpfs"),
        mount("/shm/x"),
        mount("/data/hosts", "/etc/hosts"),
        mount("/data/log", "/dev/termination-log"),
        mount("/run/containerd/sandboxes/id/shm", "/dev/shm"),
        mount(f"{VOLUMES}/kubernetes.io~csi/seen-by-the-kubelet-alone/mount"),
        mount(f"{VOLUMES}/kubernetes.io~local-volume/disk-2"),
        mount("/data/own", "/.nri-resource-policy"),
        mount("/data/lib", "/usr/lib64/driver"),
    ],
    ids=lambda each: f"{each.source} at {each.destination}",
)
def test_mounts_that_say_nothing_of_the_workload(locator: Locator, ignored: ContainerMount) -> None:
    assert candidates([ignored], [], [], {}, locator) == ()


@pytest.mark.parametrize(
    "counted",
    [
        mount("/data/x", "/etcetera"),
        mount("/data/x", "/home/etc/"),
        mount(f"{VOLUMES}/kubernetes.io~csi/pvc/mount"),
        mount(f"{VOLUMES}/kubernetes.io~local-volume/disk"),
        mount("/data/volumes/kubernetes.io~empty-dir/cache"),
    ],
    ids=lambda each: f"{each.source} at {each.destination}",
)
def test_mounts_that_count(locator: Locator, counted: ContainerMount) -> None:
    found = candidates([counted], [], [], {}, locator)
    assert len(hints_of(found, preferences({}, "c0"))) == 1


@pytest.mark.parametrize("root", ["/var/lib/kubelet", "/var/snap/microk8s/common/kubelet"])
@pytest.mark.parametrize(
    "volume", ["empty-dir/cache", "configmap/a", "secret/key", "projected/token", "downward-api/me"]
)
@pytest.mark.parametrize(
    ("annotation", "counts"),
    [(None, 0), ("true", 0), ("all", 0), ("devices", 0), ("mounts", 1), ("all,mounts", 1)],
)
def test_volumes_of_the_kubelets_own_count_only_where_mounts_are_named(
    locator: Locator, root: str, volume: str, annotation: str | None, counts: int
) -> None:
    source = f"{root}/pods/uid/volumes/kubernetes.io~{volume}"
    found = candidates([mount(source)], [], [], {}, locator)
    said = preferences({} if annotation is None else {KEY: annotation}, "c0")
    assert len(hints_of(found, said)) == counts


def test_a_source_that_is_mounted_twice_counts_once(locator: Locator) -> None:
    assert (
        len(candidates([mount("/data/x", "/a"), mount("/data/x", "/b")], [], [], {}, locator)) == 1
    )


MANY = (
    hint("/data/db", HintKind.MOUNTS, "0", "0", path="/sys/devices/pci0000:40/ata1/block/sda"),
    hint("/dev/dri/card0", HintKind.DEVICES, "1", "0", path="/sys/devices/pci0000:d7/drm/card0"),
    hint("podresourceapi:example.com/gpu", HintKind.POD_RESOURCES, "", "3", "GPU-c"),
    hint("podresourceapi:example.com/nic", HintKind.POD_RESOURCES, "", "2"),
    hint("claim:gpu.example.com", HintKind.CLAIMS, "", "1"),
)
DB, CARD, GPUS, NIC, CLAIMED = EVERY = [each.source for each in MANY]
NOT_CARD = [DB, GPUS, NIC, CLAIMED]


@pytest.mark.parametrize(
    ("annotations", "left"),
    [
        ({}, [DB, CARD, GPUS, NIC, CLAIMED]),
        ({"topologyhints": "true"}, [DB, CARD, GPUS, NIC, CLAIMED]),
        ({"topologyhints": "claims"}, [CLAIMED]),
        ({"topologyhints": "false"}, []),
        ({"topologyhints": "none"}, []),
        ({"topologyhints": "devices,pod-resources"}, [CARD, GPUS, NIC]),
        ({"deny.topologyhints": "{type: prefix, paths: [/dev/]}"}, [DB, GPUS, NIC, CLAIMED]),
        ({"deny.topologyhints": "{type: glob, paths: ['/dev/*']}"}, [DB, CARD, GPUS, NIC, CLAIMED]),
        ({"deny.topologyhints": "{type: glob, paths: ['/dev/*/card?']}"}, [DB, GPUS, NIC, CLAIMED]),
        (
            {"deny.topologyhints": "{type: prefix, paths: ['podresapi:example.com/', 'claim:']}"},
            [DB, CARD],
        ),
        (
            {"deny.topologyhints": "{type: prefix, paths: ['claim:gpu.example.com']}"},
            [DB, CARD, GPUS, NIC],
        ),
        (
            {
                "deny.topologyhints": "{type: prefix, paths: [/, 'podresourceapi:', 'claim:']}",
                "allow.topologyhints": "{type: prefix, paths: ['podresourceapi:example.com/gpu']}",
            },
            [GPUS],
        ),
        # nri-plugins matches the paths of devices in sysfs, and both paths of mounts
        ({"deny.topologyhints": "{type: prefix, paths: [/sys/]}"}, [GPUS, NIC, CLAIMED]),
        ({"deny.topologyhints": "{type: glob, paths: ['/sys/devices/pci*']}"}, EVERY),
        ({"deny.topologyhints": "{type: glob, paths: ['/sys/devices/pci*/drm/card?']}"}, NOT_CARD),
        (
            {
                "deny.topologyhints": "{type: prefix, paths: [/]}",
                "allow.topologyhints": "{type: prefix, paths: ['/sys/devices/pci0000:d7/']}",
            },
            [CARD, GPUS, NIC, CLAIMED],
        ),
        (
            {
                "deny.topologyhints": "{type: prefix, paths: [/]}",
                "allow.topologyhints": "{type: prefix, paths: [/data]}",
            },
            [DB, GPUS, NIC, CLAIMED],
        ),
        ({"deny.topologyhints": "{type: prefix, paths: ['']}"}, []),
        ({"allow.topologyhints": "{type: prefix, paths: [/data]}"}, [DB, CARD, GPUS, NIC, CLAIMED]),
        (
            {
                "topologyhints": "mounts",
                "allow.topologyhints": "{type: prefix, paths: [/dev/]}",
            },
            [DB],
        ),
    ],
)
def test_annotations_choose_among_hints(annotations: dict[str, str], left: list[str]) -> None:
    keys = {f"{key}.resource-policy.nri.io/pod": value for key, value in annotations.items()}
    found = hints_of(MANY, preferences(keys, "c0"))
    assert [each.source for each in found] == left
