"""Interrupts: those that devices use on a host, with the CPUs that may handle each."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from msgspec import Struct

from nri_policy.foundation.cpuset import EMPTY, CPUSet
from nri_policy.hardware.notes import Notes
from nri_policy.hardware.sysfs import FileTree

_MOST = 32 << 20  # bytes of /proc/interrupts: 4 MB on 512 CPUs with 800 interrupts
_LINE = re.compile(r"\s*([0-9]{1,9}):(.*)")


class Interrupt(Struct, frozen=True, kw_only=True):
    """An interrupt that a device uses."""

    number: int
    name: str  # what follows the counters in /proc/interrupts, joined by single blanks
    affinity: CPUSet


class Interrupts(Struct, frozen=True, kw_only=True):
    """The interrupts of a host."""

    each: tuple[Interrupt, ...] = ()
    default: CPUSet = EMPTY  # the affinity of those that come later
    of_devices: Mapping[str, frozenset[int]] = {}  # numbers, by the device's folder in sysfs


def read_interrupts(root: Path, devices: Iterable[str] = ()) -> Interrupts:
    """Return the interrupts of the host below *root*, and those of *devices*: folders in sysfs."""
    with FileTree(root, Notes()) as tree:
        names = read_names(tree)
        with tree.folder("proc/irq") as folder:
            found = []
            for number, name in names.items():
                with folder.folder(str(number)) as irq:
                    affinity = irq.set("smp_affinity_list")
                if affinity is not None:
                    found.append(Interrupt(number=number, name=name, affinity=affinity))
            text = folder.text("default_smp_affinity") or ""
            default = tree.parse(text, "proc/irq/default_smp_affinity", mask=True) if text else None
        of_devices = {path: frozenset(_list_numbers(tree, path)) for path in devices}
    return Interrupts(each=tuple(found), default=default or EMPTY, of_devices=of_devices)


def _list_numbers(tree: FileTree, path: str) -> Iterator[int]:
    """Yield the interrupts of a device: its vectors, and the one of its line or first vector."""
    with tree.folder(path) as device:
        if line := device.integer("irq"):  # 0: it has none
            yield line
        with device.folder("msi_irqs") as vectors:
            yield from vectors.numbered("")


def read_names(tree: FileTree) -> dict[int, str]:
    """Return the names of the interrupts of a host, by number."""
    with tree.folder("proc") as proc:
        return parse_names(proc.text("interrupts", _MOST) or "")


def parse_names(text: str) -> dict[int, str]:
    """Return the names of the interrupts in the text of /proc/interrupts, by number."""
    header, *lines = text.splitlines() or [""]
    counters, names = len(header.split()), {}
    for line in lines:
        found = _LINE.fullmatch(line)
        if found:
            names[int(found[1])] = " ".join(found[2].split()[counters:])
    return names
