"""RDT: shares of caches and memory bandwidth, by partition and class."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from operator import or_
from typing import Annotated

from msgspec import field

from nri_policy.foundation.glob import Glob
from nri_policy.foundation.wording import quoted
from nri_policy.hardware.resctrl import GROUP_NAME
from nri_policy.settings import readers
from nri_policy.settings.section import Section

_PERCENT = re.compile(r"([0-9]{1,3})%")
_PERCENTS = re.compile(r"([0-9]{1,3})-([0-9]{1,3})%")
_BITS = re.compile(r"([0-9]{1,2})(?:-([0-9]{1,2}))?")
_MASK = re.compile(r"0x[0-9a-fA-F]{1,16}")
_BANDWIDTH = re.compile(r"[0-9]{1,3}%|[0-9]{1,9}MBps")
_IDS = re.compile(r"all|[0-9]{1,4}(?:-[0-9]{1,4})?(?:,[0-9]{1,4}(?:-[0-9]{1,4})?)*")
_ANY = -1  # a cache without a list of ids: the share of `all` counts
_NAME = "1 to 64 letters, digits, '.', '_', '-', and no name of a file in resctrl"
_SHARE = "a share of a cache, such as 50%, 0-5 or 0xff0"


def share(value: object) -> str:
    """Read a share of a cache: percents, a range of them, bits, or a mask of adjacent ones."""
    if not isinstance(value, str):
        raise ValueError(f"{quoted(value)} is not {_SHARE}")
    if found := _PERCENT.fullmatch(value):
        good = 1 <= int(found[1]) <= 100
    elif found := _PERCENTS.fullmatch(value):
        good = int(found[1]) <= int(found[2]) and 1 <= int(found[2]) <= 100
    elif found := _BITS.fullmatch(value):
        good = int(found[1]) <= int(found[2] or found[1])
    elif _MASK.fullmatch(value):
        bits = f"{int(value, 16):b}".strip("0")
        good = bool(bits) and "0" not in bits
    else:
        good = False
    if not good:
        raise ValueError(f"{quoted(value)} is not {_SHARE}")
    return value


def bandwidth(value: object) -> Mapping[str, tuple[str, ...]]:
    """Read shares of memory bandwidth by cache ids."""
    if not isinstance(value, dict):
        raise ValueError(f"{quoted(value)} is not a map of cache ids to lists, such as all: [50%]")
    for ids, amounts in value.items():
        if not _IDS.fullmatch(str(ids)):
            raise ValueError(f"{quoted(ids)} is not a list of cache ids, such as all or 0-1")
        for amount in readers.names(amounts):
            percent = _PERCENT.fullmatch(amount)
            if not _BANDWIDTH.fullmatch(amount) or (percent and not 1 <= int(percent[1]) <= 100):
                raise ValueError(f"{quoted(amount)} is not a bandwidth, such as 50% or 1000MBps")
    return {str(ids): tuple(amounts) for ids, amounts in value.items()}


Share = Annotated[str | None, share]
Bandwidth = Annotated[Mapping[str, tuple[str, ...]], bandwidth]


def _bits(value: str) -> int:
    """Return the mask of a share in bits; 0 for percents."""
    if found := _BITS.fullmatch(value):
        first, last = int(found[1]), int(found[2] or found[1])
        return (1 << last + 1) - (1 << first)
    return int(value, 16) if _MASK.fullmatch(value) else 0


def _ranges(ids: str) -> list[range]:
    """Return the ranges in a list of cache ids; none for `all` and malformed lists."""
    if ids == "all" or not _IDS.fullmatch(ids):
        return []
    parts = [part.partition("-") for part in ids.split(",")]
    return [range(int(first), int(last or first) + 1) for first, _, last in parts]


class CacheShare(Section, frozen=True, kw_only=True):
    """A share of a cache, or one each for code and data."""

    unified: Share = None
    code: Share = None
    data: Share = None

    def find_faults(self) -> Iterator[tuple[str, str]]:
        """Yield what is missing."""
        if (self.code is None) != (self.data is None):
            yield "", "code and data are set together, or neither"
        if self.unified is None:
            yield "unified", "it is required: what counts where code and data are one"


class RDTAllocation(Section, frozen=True, kw_only=True):
    """Shares by cache ids."""

    l2: Mapping[str, CacheShare] = field(name="l2Allocation", default_factory=dict)
    l3: Mapping[str, CacheShare] = field(name="l3Allocation", default_factory=dict)
    mb: Bandwidth = field(name="mbAllocation", default_factory=dict)

    def share(self, level: str, id_: int, kind: str) -> str | None:
        """Return the share of a cache (`l2`, `l3`) for one kind of content; None if not given."""
        shares: Mapping[str, CacheShare] = getattr(self, level)
        given = [each for ids, each in shares.items() if any(id_ in r for r in _ranges(ids))]
        found = given[-1] if given else shares.get("all")
        return None if found is None else getattr(found, kind) or found.unified

    def bandwidth(self, id_: int) -> tuple[str, ...] | None:
        """Return the amounts of memory bandwidth for a cache; None if not given."""
        given = [each for ids, each in self.mb.items() if any(id_ in r for r in _ranges(ids))]
        return given[-1] if given else self.mb.get("all")

    def find_faults(self) -> Iterator[tuple[str, str]]:
        """Yield malformed ids."""
        for name, shares in (("l2Allocation", self.l2), ("l3Allocation", self.l3)):
            for ids in shares:
                if not _IDS.fullmatch(ids):
                    yield name, f"{quoted(ids)} is not a list of cache ids, such as all or 0-1"


class Class(RDTAllocation, frozen=True, kw_only=True):
    """A group, and its shares of its partition."""

    allowed_namespaces: Annotated[tuple[Glob, ...] | None, readers.globs] = field(
        name="allowedNamespaces", default=None
    )


class RDTPartition(RDTAllocation, frozen=True, kw_only=True):
    """A part of the caches, shared by its classes."""

    classes: Mapping[str, Class] = field(default_factory=dict)

    def find_faults(self) -> Iterator[tuple[str, str]]:
        """Yield ranges of percents: only classes may have these, partitions are side by side."""
        yield from super().find_faults()
        for name, shares in (("l2Allocation", self.l2), ("l3Allocation", self.l3)):
            for ids, each in shares.items():
                for given in (each.unified, each.code, each.data):
                    if given is not None and _PERCENTS.fullmatch(given):
                        text = f"{ids}: {quoted(given)}: only a class can have a range of percents"
                        yield name, text


class OptionalResource(Section, frozen=True, kw_only=True):
    """Whether a machine may lack this resource."""

    optional: Annotated[bool, readers.flag] = False


class RDTOptions(Section, frozen=True, kw_only=True):
    """The resources that may be missing."""

    l2: OptionalResource = OptionalResource()
    l3: OptionalResource = OptionalResource()
    mb: OptionalResource = OptionalResource()


class RDT(Section, frozen=True, kw_only=True):
    """Resource director technology."""

    enable: Annotated[bool, readers.flag] = False
    qos_is_default: Annotated[bool, readers.flag] = field(
        name="usePodQoSAsDefaultClass", default=False
    )
    options: RDTOptions = RDTOptions()
    partitions: Mapping[str, RDTPartition] = field(default_factory=dict)
    force: Annotated[bool, readers.flag] = False

    @property
    def classes(self) -> Mapping[str, Class]:
        """The classes of all partitions."""
        return {
            name: each
            for partition in self.partitions.values()
            for name, each in partition.classes.items()
        }

    def find_faults(self) -> Iterator[tuple[str, str]]:
        """Yield names that resctrl groups cannot have, and duplicates."""
        seen: set[str] = set()
        for partition, each in self.partitions.items():
            for name in each.classes:
                path = f"partitions.{partition}.classes"
                if not GROUP_NAME.fullmatch(name):
                    yield path, f"{quoted(name)} is not the name of a group: {_NAME}"
                if name in seen:
                    yield path, f"{quoted(name)} is given twice"
                seen.add(name)
        for level in ("l2", "l3"):
            yield from self._faults_together(level)

    def _faults_together(self, level: str) -> Iterator[tuple[str, str]]:
        """Yield why the partitions' shares of one level contradict each other."""
        partitions = self.partitions.values()
        lists = [ids for each in partitions for ids in getattr(each, level)]
        ranges = [each for ids in lists for each in _ranges(ids)]
        # a cache between two boundaries of ranges has the shares of the boundary before it
        for id_ in sorted(
            {_ANY, *(each.start for each in ranges), *(each.stop for each in ranges)}
        ):
            for kind in ("unified", "code", "data"):
                shares = [each.share(level, id_, kind) for each in partitions]
                if why := _contradiction([each for each in shares if each is not None]):
                    where = "" if id_ == _ANY else f" of cache id {id_}"
                    yield "partitions", f"{level}Allocation{where}: {why}"
                    return


def _contradiction(shares: Sequence[str]) -> str:
    """Return why the shares of one cache contradict each other; empty if they do not."""
    masks = [_bits(each) for each in shares]
    percents = [int(found[1]) for each in shares if (found := _PERCENT.fullmatch(each))]
    if percents and any(masks):
        return "some partitions have percents and others bits"
    if sum(percents) > 100:
        return f"the partitions have {sum(percents)}% together, which is more than 100%"
    if sum(masks) != reduce(or_, masks, 0):
        return "the bits of partitions overlap"
    return ""
