"""The lines of a cgroup's `io.*` files for a block I/O class on the disks of this node.

A line of `io.max` always has all four limits, so that writing it also removes limits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from nri_policy.classes.equipment import Equipment
from nri_policy.foundation.wording import some
from nri_policy.hardware.disks import Disk
from nri_policy.settings import DeviceLimits

RATES = ("rbps", "wbps", "riops", "wiops")
MAX, WEIGHT, BFQ_WEIGHT = "io.max", "io.weight", "io.bfq.weight"
DEFAULT = "default"  # stands for all disks
_USUAL_WEIGHT = "100"  # of both files


def compute_limits(
    entries: Iterable[DeviceLimits], equipment: Equipment
) -> tuple[dict[str, str], list[str]]:
    """Return the contents of cgroup files by name, and the parts of *entries* without effect here.

    For each disk and limit the last entry counts.
    """
    rates, weights, lacking = _merge(entries, equipment)
    files = {MAX: {number: _line(rates[number]) for number in _sort(rates)}}
    for name in equipment.weights:
        files[name] = {number: str(_weight(name, weights[number])) for number in _sort(weights)}
    if equipment.one_disk:
        for name, lines in files.items():
            if len(lines) > 1:
                first, *others = lines
                lacking.append(f"{name} of {', '.join(others)}: {equipment.one_disk}")
                files[name] = {first: lines[first]}
    return {name: _text(lines) for name, lines in files.items() if lines}, lacking


def _merge(
    entries: Iterable[DeviceLimits], equipment: Equipment
) -> tuple[dict[str, dict[str, int]], dict[str, int], list[str]]:
    """Return rates and weights by disk, and the parts without effect here."""
    rates: dict[str, dict[str, int]] = {}
    weights: dict[str, int] = {}
    lacking = []
    for entry in entries:
        disks = match_disks(entry, equipment.disks)
        if entry.devices and not disks:
            lacking.append(f"no disk is {', '.join(glob.pattern for glob in entry.devices)}")
        if entry.rates:
            for disk in disks:
                rates.setdefault(disk.number, {}).update(entry.rates)
        if entry.weight is not None:
            numbers = [disk.number for disk in disks] if entry.devices else [DEFAULT]
            weights.update(dict.fromkeys(numbers, entry.weight))
    if weights and not equipment.weights:
        lacking.append("no weights: this kernel has neither io.weight nor io.bfq.weight")
    elif weights and (idle := list_unweighted(equipment.disks)):
        lacking.append(f"no weights on {some(idle)}: the disk needs the scheduler bfq, or io.cost")
    return rates, weights, lacking


def list_unweighted(disks: Iterable[Disk]) -> list[str]:
    """Return the names of disks on which weights have no effect."""
    return [disk.name for disk in disks if not (disk.costed or disk.scheduler == "bfq")]


def match_disks(entry: DeviceLimits, disks: Iterable[Disk]) -> list[Disk]:
    """Return the disks that an entry selects."""
    return [
        disk
        for disk in disks
        if any(glob.matches(path) for glob in entry.devices for path in disk.paths)
    ]


def parse_limits(text: str) -> dict[str, str]:
    """Return the lines of a cgroup file by their disk, without lines that limit nothing."""
    unlimited = _line({})
    return {number: value for number, value in _lines(text).items() if value != unlimited}


def limits_to_write(
    before: Mapping[str, str], after: Mapping[str, str], equipment: Equipment
) -> dict[str, str]:
    """Return what to write to cgroup files to change their content from *before* to *after*."""
    there, changes = {disk.number for disk in equipment.disks} | {DEFAULT}, {}
    for name in before.keys() | after.keys():
        old, new = parse_limits(before.get(name, "")), parse_limits(after.get(name, ""))
        lines = {number: value for number, value in new.items() if old.get(number) != value}
        if not (lines and equipment.one_disk):
            lifted = _line({}) if name == MAX else DEFAULT
            for number in old.keys() - new.keys() & there:
                lines[number] = _USUAL_WEIGHT if number == DEFAULT else lifted
        if lines:
            changes[name] = _text(lines)
    return changes


def join_changes(first: Mapping[str, str], then: Mapping[str, str]) -> dict[str, str]:
    """Return what to write for two changes in a row."""
    files = {}
    for name in [*dict.fromkeys([*first, *then])]:
        lines = _lines(first.get(name, "")) | _lines(then.get(name, ""))
        files[name] = _text({number: lines[number] for number in _sort(lines)})
    return files


def _lines(text: str) -> dict[str, str]:
    parts = (line.partition(" ") for line in text.splitlines())
    return {number: value for number, _, value in parts if value}


def _line(rates: Mapping[str, int]) -> str:
    return " ".join(f"{key}={rates.get(key, 'max')}" for key in RATES)


def _text(lines: Mapping[str, str]) -> str:
    return "\n".join(f"{number} {value}" for number, value in lines.items())


def _sort(numbers: Iterable[str]) -> list[str]:
    """Return disks by number, `default` first."""
    return sorted(numbers, key=lambda each: [*map(int, each.split(":"))] if ":" in each else [])


def _weight(name: str, weight: int) -> int:
    """Return a weight of 10 to 1000 in a file's own range."""
    return weight if name == BFQ_WEIGHT else 1 + (weight - 10) * 9999 // 990
