"""The interrupts of a host: the text of /proc/interrupts, and the affinities."""

from __future__ import annotations

from pathlib import Path

from nri_policy.foundation.cpuset import CPUSet
from nri_policy.hardware.interrupts import parse_names, read_interrupts
from tests.support.tunables import make_host

TEXT = """\
            CPU0       CPU1
   4:          0         15  IO-APIC   4-edge      ttyS0
  24:       1244          0 PCI-MSIX-0000:00:02.0   1-edge      virtio1-req.0
  30:          0          0
 NMI:          0          0   Non-maskable interrupts
 ERR:          0
"""


def test_a_name_is_what_follows_the_counters_joined_by_single_blanks() -> None:
    assert parse_names(TEXT) == {
        4: "IO-APIC 4-edge ttyS0",
        24: "PCI-MSIX-0000:00:02.0 1-edge virtio1-req.0",
        30: "",
    }
    assert parse_names("") == {}


def test_each_interrupt_has_its_affinity(tmp_path: Path) -> None:
    root = make_host(tmp_path, {4: "0-1", 24: "1"}, cpus=2)
    (root / "proc/interrupts").write_text(TEXT)
    found = read_interrupts(root)
    assert [(each.number, str(each.affinity)) for each in found.each] == [(4, "0-1"), (24, "1")]
    assert found.default == CPUSet.parse("0-1")


def test_the_interrupts_of_a_device_are_its_vectors_and_its_line(tmp_path: Path) -> None:
    vectors, line = tmp_path / "sys/devices/a/msi_irqs", tmp_path / "sys/devices/b"
    vectors.mkdir(parents=True)
    for name in ("24", "25", "x"):
        (vectors / name).touch()
    (vectors.parent / "irq").write_text("24\n")  # of the first vector, where there are any
    line.mkdir()
    (line / "irq").write_text("17\n")
    found = read_interrupts(tmp_path, ["sys/devices/a", "sys/devices/b", "sys/devices/gone"])
    assert found.of_devices == {
        "sys/devices/a": {24, 25},
        "sys/devices/b": {17},
        "sys/devices/gone": set(),
    }


def test_a_host_without_interrupts_has_none(tmp_path: Path) -> None:
    assert read_interrupts(tmp_path).each == ()
