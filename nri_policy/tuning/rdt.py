"""RDT: the schemata of the classes in the settings, on the caches of a machine.

Pure (classes.md §4). Partitions are disjoint: their percents are given out smallest first, in
whole ways, and the last one takes the rest. The share of a class is relative to its partition's.
Each class gets a share of every resource of the machine, so that schemata can be compared.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from msgspec import Struct

from nri_policy.hardware.resctrl import (
    BandwidthControl,
    BandwidthUnit,
    CacheControl,
    Resctrl,
    format_schemata,
)
from nri_policy.settings import RDT, RDTAllocation, RDTPartition
from nri_policy.tuning.faults import Fault

_PERCENTS = re.compile(r"(?:([0-9]+)-)?([0-9]+)%")
_LIST = re.compile(r"([0-9]+)(?:-([0-9]+))?")
_PATH = "control.rdt.partitions"


class RDTClass(Struct, frozen=True, kw_only=True):
    """A class on a machine."""

    name: str
    shares: Mapping[str, Mapping[int, int]]  # by resource and cache id: masks, bandwidths

    @property
    def schemata(self) -> str:
        """The lines to write to the group's file."""
        return format_schemata(self.shares)


class _ImpossibleError(Exception):
    """A share that is impossible on this machine; the path is below `partitions`."""

    def __init__(self, path: str, text: str) -> None:
        super().__init__(text)
        self.fault = Fault(path=f"{_PATH}{path}", text=text, fatal=True)


def resolve(given: RDT, resctrl: Resctrl | None) -> tuple[tuple[RDTClass, ...], tuple[Fault, ...]]:
    """Return the classes on a machine, and its faults; a fatal fault leaves no classes."""
    if not given.enable or not given.partitions:
        return (), ()
    if resctrl is None:
        text = "no effect here: resctrl is not mounted on this machine"
        return (), (Fault(path="control.rdt.enable", text=text, fatal=False),)
    faults = [*_lacking(given, resctrl)]
    shares: dict[str, dict[str, dict[int, int]]] = {name: {} for name in given.classes}
    if len(shares) > resctrl.groups:
        text = f"{len(shares)} classes: this machine can have {resctrl.groups} groups"
        faults.append(Fault(path=_PATH, text=text, fatal=True))
    try:
        for level, cache in (("l2", resctrl.l2), ("l3", resctrl.l3)):
            if cache is not None:
                _share_cache(given.partitions, level, cache, shares)
        if resctrl.mb is not None:
            _share_bandwidth(given.partitions, resctrl.mb, shares)
    except _ImpossibleError as error:
        faults.append(error.fault)
    if any(each.fatal for each in faults):
        return (), tuple(faults)
    classes = (RDTClass(name=name, shares=shares[name]) for name in sorted(shares))
    return tuple(classes), tuple(faults)


def _lacking(given: RDT, resctrl: Resctrl) -> Iterator[Fault]:
    """Yield resources that partitions share but the machine lacks."""
    for name, title in (("l2", "L2"), ("l3", "L3"), ("mb", "memory bandwidth")):
        if getattr(resctrl, name) is not None:
            continue
        optional = getattr(given.options, name).optional
        for partition, each in given.partitions.items():
            if any(getattr(one, name) for one in (each, *each.classes.values())):
                text = f"this machine cannot share {title} ({name}Allocation)"
                yield Fault(path=f"{_PATH}.{partition}", text=text, fatal=not optional)
                break


def _share_cache(
    partitions: Mapping[str, RDTPartition],
    level: str,
    cache: CacheControl,
    shares: Mapping[str, dict[str, dict[int, int]]],
) -> None:
    """Add the masks of all classes for the caches of a level."""
    for kind, resource in cache.resources.items():
        for id_ in cache.ids:
            for name, mask in _divide(partitions, level, kind, id_, cache).items():
                for class_, given in partitions[name].classes.items():
                    where = f".{name}.classes.{class_}.{level}Allocation"
                    own = given.share(level, id_, kind) or "100%"
                    own_mask = _within(own, mask, cache.least, where)
                    shares[class_].setdefault(resource, {})[id_] = own_mask


def _divide(
    partitions: Mapping[str, RDTPartition], level: str, kind: str, id_: int, cache: CacheControl
) -> dict[str, int]:
    """Return the masks of the partitions for one cache."""
    full = (1 << cache.bits) - 1
    with_shares = {name for name, each in partitions.items() if getattr(each, level)}
    if not with_shares:
        return dict.fromkeys(partitions, full)
    if missing := partitions.keys() - with_shares:
        text = f"it has no {level}Allocation, and other partitions have one"
        raise _ImpossibleError(f".{min(missing)}", text)
    given = {name: each.share(level, id_, kind) or "100%" for name, each in partitions.items()}
    relative = [name for name, each in given.items() if each.endswith("%")]
    if relative and len(relative) < len(given):
        text = f"it has a percent of cache {id_}, and other partitions have bits"
        raise _ImpossibleError(f".{min(relative)}.{level}Allocation", text)
    if not relative:
        masks = {name: _bits(each) for name, each in given.items()}
        for name, mask in masks.items():
            where = f".{name}.{level}Allocation"
            _check_mask(mask, full, cache.least, f"the {cache.bits} ways of cache {id_}", where)
        return masks
    percents = {name: int(each.removesuffix("%")) for name, each in given.items()}
    if (total := sum(percents.values())) > 100:
        raise _ImpossibleError("", f"{level}Allocation of cache {id_}: {total}% together")
    masks, used = {}, 0
    *others, last = sorted(percents, key=lambda name: (percents[name], name))
    for name in (*others, last):
        free = cache.bits - used
        if free < cache.least:
            text = f"no way of cache {id_} is left for it"
            raise _ImpossibleError(f".{name}.{level}Allocation", text)
        width = free
        if name != last:
            part = percents[name] * free // max(1, free * 100 // cache.bits)
            width = min(free, max(cache.least, part))
        masks[name] = ((1 << width) - 1) << used
        used += width
    return masks


def _within(given: str, base: int, least: int, where: str) -> int:
    """Return the mask of a class's share of its partition's mask *base*."""
    lowest = (base & -base).bit_length() - 1
    ways = base.bit_count()
    if (found := _PERCENTS.fullmatch(given)) is None:
        mask = _bits(given) << lowest
        _check_mask(mask, base, least, f"the {ways} ways of its partition", where)
        return mask
    first = (max(1, int(found[1] or 1)) - 1) * ways // 100
    last = (int(found[2]) - 1) * ways // 100
    first = max(0, min(first, last + 1 - least))
    last = max(last, first + least - 1)
    return ((1 << last + 1 - first) - 1) << first + lowest


def _check_mask(mask: int, base: int, least: int, of: str, where: str) -> None:
    if mask & ~base:
        raise _ImpossibleError(where, f"the mask {mask:#x} is not within {of} ({base:#x})")
    if mask.bit_count() < least:
        raise _ImpossibleError(where, f"the mask {mask:#x} has fewer than {least} bits")


def _bits(given: str) -> int:
    """Return the mask of a hexadecimal number, or of a range of bits."""
    if found := _LIST.fullmatch(given):
        first, last = int(found[1]), int(found[2] or found[1])
        return (1 << last + 1) - (1 << first)
    return int(given, 16)


def _share_bandwidth(
    partitions: Mapping[str, RDTPartition],
    bandwidth: BandwidthControl,
    shares: Mapping[str, dict[str, dict[int, int]]],
) -> None:
    """Add the memory bandwidths of all classes."""
    for name, partition in partitions.items():
        for id_ in bandwidth.ids:
            top = _limit(_amount(partition, id_, bandwidth, f".{name}"), bandwidth.most, bandwidth)
            for class_, given in partition.classes.items():
                own = _amount(given, id_, bandwidth, f".{name}.classes.{class_}")
                shares[class_].setdefault("MB", {})[id_] = _limit(own, top, bandwidth)


def _limit(own: int, top: int, bandwidth: BandwidthControl) -> int:
    """Return the value for the kernel of an amount within another."""
    if bandwidth.unit is not BandwidthUnit.PERCENT:
        return min(own, top)
    value = max(own * top // 100, bandwidth.least)
    return min(100, -(-value // bandwidth.step) * bandwidth.step)  # as the kernel rounds


def _amount(given: RDTAllocation, id_: int, bandwidth: BandwidthControl, where: str) -> int:
    """Return an amount in the unit that the machine uses; without one, all of it."""
    amounts = given.bandwidth(id_)
    if amounts is None:
        return bandwidth.most
    unit = bandwidth.unit
    found = [each.removesuffix(unit) for each in amounts if each.endswith(unit)]
    if not found:
        text = f"{', '.join(amounts)}: bandwidth is in {unit} on this machine"
        raise _ImpossibleError(f"{where}.mbAllocation", text)
    return int(found[0])
