from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nri_policy.hardware.capture import open_capture
from nri_policy.hardware.discovery import discover
from nri_policy.hardware.locality import Locality, Locator
from nri_policy.hardware.synthetic import write
from tests.support.shared_data import NOT_HERE

from .conftest import Change, Link, Plant, change
from .test_captures import CAPTURES

FOUR = "package:2 numa:2 core:2"  # node k has CPUs 2k and 2k+1
ON_0, ON_1, ON_3 = (f"pci0000:{bus}/0000:{bus}:01.0" for bus in ("00", "40", "c0"))
UNPLACED = "pci0000:80/0000:80:01.0"
NODES = {ON_0: 0, ON_1: 1, ON_3: 3, UNPLACED: -1}


def functions() -> dict[str, Change]:
    """Describe a PCI function on each of nodes 0, 1 and 3, and one that is on none."""
    return {f"sys/devices/{path}/numa_node": f"{node}\n" for path, node in NODES.items()}


def device(number: str, path: str, kind: str = "block") -> dict[str, Change]:
    """Describe the device with *number* whose folder is *path*, below sys/devices."""
    return {
        f"sys/devices/{path}/dev": number,
        f"sys/dev/{kind}/{number}": Link(f"../../devices/{path}"),
    }


def link(path: str, target: str) -> dict[str, Change]:
    """Describe a link of sysfs, both below sys/devices."""
    up = "../" * path.count("/")
    return {f"sys/devices/{path}": Link(up + target)}


def disk(node_path: str, name: str) -> str:
    return f"{node_path}/ata1/host0/target0:0:0/0:0:0:0/block/{name}"


SDA, SDB, SDC, SDD = (
    disk(at, name) for at, name in ((ON_0, "sda"), (ON_1, "sdb"), (ON_3, "sdc"), (UNPLACED, "sdd"))
)
DM, MD, HEAD = "virtual/block/dm-0", "virtual/block/md0", "virtual/nvme-subsystem/nvme-subsys0"
DEVICES: dict[str, Change] = {
    **functions(),
    **device("8:0", SDA),
    **device("8:16", SDB),
    **device("8:17", f"{SDB}/sdb1"),
    **device("8:32", SDC),
    **device("8:48", SDD),
    # dm-0 on a partition of sdb; dm-1 on dm-0; md0 on sda and sdc, and a partition of it
    **device("254:0", DM),
    **link(f"{DM}/slaves/sdb1", f"{SDB}/sdb1"),
    **device("254:1", "virtual/block/dm-1"),
    **link("virtual/block/dm-1/slaves/dm-0", DM),
    **device("9:0", MD),
    **link(f"{MD}/slaves/sda", SDA),
    **link(f"{MD}/slaves/sdc", SDC),
    **device("259:5", f"{MD}/md0p1"),
    # half of this one's place is unknown
    **device("9:1", "virtual/block/md1"),
    **link("virtual/block/md1/slaves/sdb", SDB),
    **link("virtual/block/md1/slaves/sdd", SDD),
    # all four nodes are near to no CPU in particular
    **device("9:2", "virtual/block/md2"),
    **{
        key: value
        for i, at in enumerate((SDA, SDB, SDC, disk("pci0000:90/0000:90:01.0", "sde")))
        for key, value in link(f"virtual/block/md2/slaves/{i}", at).items()
    },
    "sys/devices/pci0000:90/0000:90:01.0/numa_node": "2",
    f"sys/devices/{disk('pci0000:90/0000:90:01.0', 'sde')}/dev": "8:64",
    # NVMe: a controller of its own with a namespace, and a namespace by two controllers
    **device("259:0", f"{ON_3}/nvme/nvme0/nvme0n1"),
    **device("259:1", f"{ON_3}/nvme/nvme0/nvme0n1/nvme0n1p1"),
    **device("259:2", f"{HEAD}/nvme1n1"),
    **device("259:3", f"{HEAD}/nvme1n1/nvme1n1p2"),
    f"sys/devices/{ON_0}/nvme/nvme1/transport": "pcie",
    f"sys/devices/{ON_1}/nvme/nvme2/transport": "pcie",
    **link(f"{HEAD}/nvme1", f"{ON_0}/nvme/nvme1"),
    **link(f"{HEAD}/nvme2", f"{ON_1}/nvme/nvme2"),
    # persistent memory: no PCI device
    **device("259:4", "LNXSYSTM:00/ACPI0012:00/ndbus0/region1/namespace1.0/block/pmem1"),
    "sys/devices/LNXSYSTM:00/ACPI0012:00/ndbus0/region1/numa_node": "2",
    # nothing behind it
    **device("7:0", "virtual/block/loop0"),
    **device("1:3", "virtual/mem/null", "char"),
    # character devices: GPU, InfiniBand, a function handed to user space, a macvtap
    **device("226:128", f"{ON_1}/drm/renderD128", "char"),
    **device("231:192", f"{ON_3}/infiniband_verbs/uverbs0", "char"),
    **device("243:7", "virtual/vfio/7", "char"),
    "sys/kernel/iommu_groups/7/devices/0000:40:01.0": Link(f"../../../../devices/{ON_1}"),
    **device("511:1", f"{ON_1}/vfio-dev/vfio0", "char"),
    **device("238:2", "virtual/net/macvtap0/tap5", "char"),
    **link("virtual/net/macvtap0/lower_eth3", f"{ON_3}/net/eth3"),
    # NVIDIA's driver has no devices in sysfs
    "proc/driver/nvidia/gpus/0000:40:01.0/information": "Model: X\nDevice Minor: \t 0\n",
    "proc/driver/nvidia/gpus/0000:c0:01.0/information": "Device Minor: 1\n",
    "proc/driver/nvidia/gpus/0000:ff:00.0/information": "Bus Type: PCIe\n",
    "sys/bus/pci/devices/0000:40:01.0": Link(f"../../../devices/{ON_1}"),
    "sys/bus/pci/devices/0000:c0:01.0": Link(f"../../../devices/{ON_3}"),
    # network interfaces: of a function, a VLAN of it, a bond
    f"sys/devices/{ON_3}/net/eth3/ifindex": "3",
    "sys/class/net/eth3": Link(f"../../devices/{ON_3}/net/eth3"),
    "sys/class/net/eth3.7": Link("../../devices/virtual/net/eth3.7"),
    **link("virtual/net/eth3.7/lower_eth3", f"{ON_3}/net/eth3"),
    "sys/class/net/lo": Link("../../devices/virtual/net/lo"),
    "sys/devices/virtual/net/lo/ifindex": "1",
}


TABLE = r"""
22 1 8:16 / / rw,relatime shared:1 - ext4 /dev/sdb1 rw
23 22 0:5 / /proc rw,nosuid - proc proc rw
24 22 0:6 / /dev rw,nosuid shared:2 - devtmpfs devtmpfs rw
25 22 9:0 / /var/lib/kubelet rw shared:3 - xfs /dev/md0 rw
26 25 0:40 / /var/lib/kubelet/pods/a/volumes/kubernetes.io~empty-dir/m rw - tmpfs tmpfs rw
27 25 259:0 /d /var/lib/kubelet/pods/a/volumes/kubernetes.io~csi/data\040disk rw - ext4 /dev/n rw
28 25 0:41 / /var/lib/kubelet/pods/a/volumes/kubernetes.io~nfs/share rw - nfs4 srv:/x rw
29 22 8:0 / /srv rw - ext4 /dev/gone rw
30 22 8:32 / /srv rw - ext4 /dev/sdc rw
garbage
"""


@pytest.fixture(scope="module")
def locator(tmp_path_factory: pytest.TempPathFactory) -> Locator:
    root = tmp_path_factory.mktemp("root")
    write(FOUR, root)
    change(root, {**DEVICES, "proc/1/mountinfo": TABLE})
    return Locator(root, discover(root))


def nodes(locality: Locality | None) -> str | None:
    if locality is None:
        return None
    assert locality.cpus
    return str(locality.nodes)


@pytest.mark.parametrize(
    ("kind", "number", "expected"),
    [
        ("block", "8:0", "0"),
        ("block", "8:17", "1"),
        ("block", "254:0", "1"),
        ("block", "254:1", "1"),
        ("block", "9:0", "0,3"),
        ("block", "259:5", "0,3"),
        ("block", "9:1", "1"),
        ("block", "9:2", None),
        ("block", "259:0", "3"),
        ("block", "259:1", "3"),
        ("block", "259:2", "0-1"),
        ("block", "259:3", "0-1"),
        ("block", "259:4", "2"),
        ("block", "8:48", None),
        ("block", "7:0", None),
        ("char", "1:3", None),
        ("char", "8:0", None),
        ("char", "226:128", "1"),
        ("char", "231:192", "3"),
        ("char", "243:7", "1"),
        ("char", "511:1", "1"),
        ("char", "238:2", "3"),
        ("char", "195:0", "1"),
        ("char", "195:1", "3"),
        ("char", "195:255", None),
    ],
)
def test_devices_lead_to_their_hardware(
    locator: Locator, kind: str, number: str, expected: str | None
) -> None:
    assert nodes(locator.device(kind, number)) == expected


@pytest.mark.parametrize(
    ("kind", "number", "path"),
    [
        ("block", "8:17", f"{SDB}/sdb1"),
        ("block", "254:1", "virtual/block/dm-1"),
        ("char", "226:128", f"{ON_1}/drm/renderD128"),
        ("char", "243:7", "virtual/vfio/7"),
        ("char", "195:1", ON_3),  # NVIDIA's, which sysfs does not have
    ],
)
def test_a_device_has_its_own_path_in_sysfs(
    kind: str, number: str, path: str, locator: Locator
) -> None:
    place = locator.device(kind, number)
    assert place is not None
    assert place.path == f"/sys/devices/{path}"
    assert locator.device_hardware(kind, number).path == place.path


def test_network_interfaces_lead_to_their_function(locator: Locator) -> None:
    assert nodes(locator.interface("eth3")) == "3"
    assert nodes(locator.interface("eth3.7")) == "3"
    assert nodes(locator.interface("lo")) is None
    assert nodes(locator.interface("../../../dev/block/8:0")) is None


def test_a_pci_address_leads_to_its_function(locator: Locator) -> None:
    assert nodes(locator.function("0000:c0:01.0")) == "3"
    assert nodes(locator.function("0000:C0:01.0")) == "3"
    assert nodes(locator.function("0000:c1:00.0")) is None
    assert nodes(locator.function("../devices/0000:c0:01.0")) is None
    assert nodes(locator.function("")) is None


def test_a_pcie_root_complex_is_where_its_functions_are(locator: Locator) -> None:
    assert nodes(locator.root_complex("pci0000:40")) == "1"
    assert nodes(locator.root_complex("pci0000:80")) is None, "the firmware does not say where"
    assert nodes(locator.root_complex("pci0000:77")) is None
    assert nodes(locator.root_complex("../pci0000:40")) is None
    assert nodes(locator.root_complex("")) is None


def test_only_nodes_of_this_machine_are_known(locator: Locator) -> None:
    assert [locator.has_node(each) for each in (-1, 0, 3, 4)] == [False, True, True, False]


def test_cpus_are_the_local_ones_and_those_of_the_node_where_all_are_local(plant: Plant) -> None:
    files: dict[str, Change] = {
        f"sys/devices/{ON_0}/local_cpulist": "1",
        f"sys/devices/{ON_3}/local_cpulist": "0-7",
        f"sys/devices/{UNPLACED}/local_cpulist": "4-7",
    }
    root = plant(FOUR, {**DEVICES, **files})
    locator = Locator(root, discover(root))
    places = [locator.device("block", number) for number in ("8:0", "8:32", "8:48")]
    found = [(str(place.nodes), str(place.cpus)) for place in places if place]
    assert found == [("0", "1"), ("3", "6-7"), ("2-3", "4-7")]


def test_a_device_of_a_node_without_cpus_is_near_to_that_nodes_nearest(plant: Plant) -> None:
    spec = "package:2(pmem=1GiB) numa:1 core:2"
    root = plant(spec, {f"sys/devices/{SDA}/dev": "", **device("8:0", SDA)})
    change(root, {f"sys/devices/{ON_0}/numa_node": "3"})
    place = Locator(root, discover(root)).device("block", "8:0")
    assert place is not None
    assert (str(place.nodes), str(place.cpus)) == ("3", "2-3")


def test_on_a_machine_of_one_node_nothing_is_near_to_some_cpus_only(plant: Plant) -> None:
    root = plant("package:1 core:4", {**functions(), **device("8:0", SDA)})
    assert Locator(root, discover(root)).device("block", "8:0") is None


def test_hardware_is_remembered_until_it_is_renewed_but_not_what_lies_upon_it(plant: Plant) -> None:
    root = plant(FOUR, DEVICES)
    locator = Locator(root, discover(root))
    assert nodes(locator.device("block", "254:0")) == "1"
    change(root, link(f"{DM}/slaves/sdc", SDC))
    assert nodes(locator.device("block", "254:0")) == "1,3"
    change(root, {f"sys/devices/{ON_3}/numa_node": "2"})
    assert nodes(locator.device("block", "8:32")) == "3"
    locator.renew(discover(root))
    assert nodes(locator.device("block", "8:32")) == "2"


def test_devices_upon_each_other_end(plant: Plant) -> None:
    loop: dict[str, Change] = {
        **device("254:0", DM),
        **link(f"{DM}/slaves/dm-1", "virtual/block/dm-1"),
        **link("virtual/block/dm-1/slaves/dm-0", DM),
        **device("9:0", MD),
        **{
            key: value
            for i in range(1000)
            for key, value in link(f"{MD}/slaves/{i}", f"virtual/block/b{i}").items()
        },
    }
    root = plant(FOUR, loop)
    locator = Locator(root, discover(root))
    assert locator.device("block", "254:0") is None
    assert locator.device("block", "9:0") is None


def test_links_out_of_the_root_lead_nowhere(plant: Plant, tmp_path: Path) -> None:
    outside = tmp_path / f"outside/sys/devices/{ON_3}"
    outside.mkdir(parents=True)
    (outside / "numa_node").write_text("3")
    away = "../" * 20 + str(outside).lstrip("/")
    root = plant(FOUR, {"sys/dev/block/8:0": Link(away), "sys/dev/block/8:1": Link(str(outside))})
    locator = Locator(root, discover(root))
    assert locator.device("block", "8:0") is None
    assert locator.device("block", "8:1") is None


PODS = "/var/lib/kubelet/pods/a/volumes"


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/", "1"),
        ("/opt/x", "1"),
        ("/variable", "1"),
        ("//opt//x/", "1"),
        ("/opt/../srv/y", "3"),
        ("/srv", "3"),  # what was mounted last is on top
        ("/var/lib/kubelet", "0,3"),
        (f"{PODS}/kubernetes.io~empty-dir/cache", "0,3"),
        (f"{PODS}/kubernetes.io~empty-dir/m", None),
        (f"{PODS}/kubernetes.io~csi/data disk/sub", "3"),
        (f"{PODS}/kubernetes.io~nfs/share", None),
        ("/proc/1", None),
        ("/dev/missing", None),
        ("../srv", "3"),
        ("/srv" + "/x" * 3000, None),  # no such path can be mounted
        ("", "1"),
    ],
)
def test_mounts_lead_to_the_device_that_they_are_from(
    locator: Locator, path: str, expected: str | None
) -> None:
    found = locator.mounts({path: "/"})
    assert nodes(found.get(path)) == expected


def test_the_own_table_stands_in_for_one_that_cannot_be_read(plant: Plant) -> None:
    tables: dict[str, Change] = {"proc/77/mountinfo": TABLE, "proc/self": Link("77")}
    root = plant(FOUR, {**DEVICES, **tables})
    assert nodes(Locator(root, discover(root)).mounts({"/srv": "/"})["/srv"]) == "3"


def test_without_a_table_mounts_have_no_place(plant: Plant) -> None:
    root = plant(FOUR, DEVICES)
    assert Locator(root, discover(root)).mounts({"/srv": "/"}) == {}


def test_a_mounted_device_file_is_its_device(plant: Plant) -> None:
    root = plant(FOUR, {**DEVICES, "proc/1/mountinfo": TABLE, "dev/dri/by-path": ""})
    for name, mode, number in (
        ("dri/renderD128", 0o020600, (226, 128)),
        ("sdc", 0o060600, (8, 32)),
    ):
        try:
            os.mknod(root / "dev" / name, mode, os.makedev(*number))
        except PermissionError:
            pytest.skip("making device files needs root")
    paths = ["/dev/dri/renderD128", "/dev/sdc", "/dev/dri"]
    found = Locator(root, discover(root)).mounts(dict.fromkeys(paths, "/"))
    assert {path: str(place.nodes) for path, place in found.items()} == {
        "/dev/dri/renderD128": "1",
        "/dev/sdc": "3",
    }


@contextmanager
def captured(name: str) -> Iterator[Path]:
    """Unpack a capture, and give its devices the numbered links that captures leave out."""
    if name not in CAPTURES:
        pytest.skip(NOT_HERE)
    with open_capture(CAPTURES[name]) as root:
        for file in [*root.rglob("dev")]:
            if file.is_file():
                kind = "block" if "/block/" in str(file) or "/nvme" in str(file) else "char"
                folder = root / "sys/dev" / kind
                folder.mkdir(parents=True, exist_ok=True)
                (folder / file.read_text().strip()).symlink_to(os.path.relpath(file.parent, folder))
        yield root


def number(root: Path, path: str) -> str:
    return (root / "sys" / path / "dev").read_text().strip()


def test_the_devices_of_an_emulated_machine() -> None:
    with captured("qemu-pci-locality") as root:
        locator = Locator(root, discover(root))
        nvme = locator.device("block", number(root, "class/block/nvme0n1"))
        assert nvme is not None
        assert (str(nvme.nodes), str(nvme.cpus)) == ("1", "4-7")
        assert locator.device("block", number(root, "class/block/vda")) is None
        assert [nodes(locator.interface(f"eth{i}")) for i in range(3)] == ["0", "0", "1"]


def test_the_functions_of_an_emulated_machine_of_four_nodes() -> None:
    with captured("i-pci") as root:
        change(
            root,
            {
                "sys/class/net/eth0": Link("../../devices/pci0000:20/0000:20:00.0/0000:21:00.0"),
                "sys/class/net/eth1": Link("../../devices/pci0000:40/0000:40:00.0/0000:41:00.0"),
                "sys/class/net/eth2": Link("../../devices/pci0000:60/0000:60:00.0/0000:61:00.0"),
            },
        )
        machine = discover(root)
        locator = Locator(root, machine)
        by_address = {device.address: device for device in machine.devices}
        for name, address in (("eth0", "21"), ("eth1", "41"), ("eth2", "61")):
            place, device = locator.interface(name), by_address[f"0000:{address}:00.0"]
            assert place is not None
            assert (place.cpus, place.nodes) == (device.cpus, device.numa_nodes)
        assert [nodes(locator.interface(f"eth{i}")) for i in range(3)] == ["0", "1", "3"]


def test_the_disk_and_the_host_adapter_of_a_real_machine() -> None:
    with captured("hwloc-40intel64-2g2n4c-pcilocality") as root:
        machine = discover(root)
        locator = Locator(root, machine)
        assert locator.device("block", number(root, "class/block/sda1")) is None
        verbs = "devices/pci0000:40/0000:40:03.0/0000:43:00.0/infiniband_verbs/uverbs0"
        place = locator.device("char", number(root, verbs))
        assert place is not None
        assert str(place.nodes) == "2"
        assert place.cpus == next(node.cpus for node in machine.nodes if node.id == 2)
