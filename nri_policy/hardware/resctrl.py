"""Resctrl: the shares of caches and memory bandwidth that the kernel can set on a machine.

Owns `sys/fs/resctrl`: what can be set, and which groups there are; not what is set.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path

from msgspec import Struct

from nri_policy.hardware.notes import Notes
from nri_policy.hardware.sysfs import FileTree, Folder

RESCTRL = "sys/fs/resctrl"
# What a group may be named here: not like the root group's files and folders.
GROUP_NAME = re.compile(
    r"(?!(?:info|mon_data|mon_groups|system|cpus|cpus_list|tasks|mode|schemata|size)$)"
    r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}"
)
_OTHERS = frozenset({"info", "mon_data", "mon_groups"})  # folders that are no groups
_LINE = re.compile(r"\s*([A-Z][A-Z0-9]*):(\d+=[0-9a-f]+(?:;\d+=[0-9a-f]+)*)", re.ASCII)
_NO_LIMIT = (1 << 32) - 1  # MB/s
_MASK = re.compile(r"[0-9a-f]{1,16}")


class BandwidthUnit(StrEnum):
    """The unit of a share of memory bandwidth."""

    PERCENT = "%"
    MBPS = "MBps"  # with the mount option mba_MBps
    OTHER = "units of the processor"  # of AMD: eighths of GB/s


class CacheControl(Struct, frozen=True, kw_only=True):
    """The caches of one level; groups can get their ways."""

    resources: Mapping[str, str]  # in schemata, by kind: unified, or code and data
    ids: tuple[int, ...]
    bits: int  # ways
    least: int  # bits in a mask
    way: int  # bytes; 0 if unknown


class BandwidthControl(Struct, frozen=True, kw_only=True):
    """Memory bandwidth, by cache id."""

    ids: tuple[int, ...]
    least: int
    step: int
    most: int
    unit: BandwidthUnit


class Resctrl(Struct, frozen=True, kw_only=True):
    """What can be set."""

    l2: CacheControl | None = None
    l3: CacheControl | None = None
    mb: BandwidthControl | None = None
    groups: int = 0  # most that there can be, besides the root group
    existing: tuple[str, ...] = ()


def resctrl_of(root: Path) -> Resctrl | None:
    """Return what can be set on the machine below *root*; None if resctrl is not mounted."""
    with FileTree(root, Notes()) as tree:
        return read_resctrl(tree)


def read_resctrl(tree: FileTree) -> Resctrl | None:
    """Return what can be set on the machine that *tree* describes."""
    with tree.folder(RESCTRL) as folder:
        text = folder.text("schemata")
        if text is None:
            return None
        shares = parse_schemata(text)
        sizes = parse_schemata(folder.text("size") or "", base=10)
        with folder.folder("info") as info:
            closids = [
                number
                for resource in shares
                if (number := _number(info, resource, "num_closids")) is not None
            ]
            return Resctrl(
                l2=_read_cache(info, "L2", shares, sizes),
                l3=_read_cache(info, "L3", shares, sizes),
                mb=_read_bandwidth(info, shares.get("MB", {})),
                groups=min(closids, default=1) - 1,
                existing=tuple(_list_groups(folder)),
            )


def parse_schemata(text: str, base: int = 16) -> dict[str, dict[int, int]]:
    """Return the shares in schemata by resource and cache id; bandwidths are always decimal."""
    found = {}
    for line in text.splitlines():
        if match := _LINE.fullmatch(line.rstrip()):
            name = match[1]
            pairs = (pair.split("=") for pair in match[2].split(";"))
            values = {id_: value for id_, value in pairs if name != "MB" or value.isdecimal()}
            each = 10 if name == "MB" else base
            found[name] = {int(id_): int(value, each) for id_, value in values.items()}
    return found


def format_schemata(shares: Mapping[str, Mapping[int, int]]) -> str:
    """Return the lines of schemata, in one order whatever the kernel's is."""
    return "\n".join(
        f"{resource}:"
        + ";".join(f"{id_}={format_share(resource, each)}" for id_, each in of.items())
        for resource, of in sorted(shares.items())
    )


def format_share(resource: str, share: int) -> str:
    """Return a share in the form of a schemata file."""
    return str(share) if resource == "MB" else f"{share:x}"


def _list_groups(folder: Folder) -> list[str]:
    groups = []
    for name in folder.names():
        if name not in _OTHERS:
            with folder.folder(name) as group:
                if group.has("schemata"):
                    groups.append(name)
    return groups


def _number(info: Folder, resource: str, file: str) -> int | None:
    with info.folder(resource) as folder:
        return folder.integer(file)


def _read_cache(
    info: Folder,
    level: str,
    shares: Mapping[str, Mapping[int, int]],
    sizes: Mapping[str, Mapping[int, int]],
) -> CacheControl | None:
    split = {"code": f"{level}CODE", "data": f"{level}DATA"}
    resources = {"unified": level} if level in shares else split
    one = next(iter(resources.values()))
    if one not in shares:
        return None
    with info.folder(one) as folder:
        mask, least = folder.text("cbm_mask") or "", folder.integer("min_cbm_bits")
    if not _MASK.fullmatch(mask):
        return None
    ways = [
        size // shares[one][id_].bit_count()
        for id_, size in sizes.get(one, {}).items()
        if shares[one].get(id_)
    ]
    return CacheControl(
        resources=resources,
        ids=tuple(sorted(shares[one])),
        bits=int(mask, 16).bit_length(),
        least=least or 1,
        way=max(ways, default=0),
    )


def _read_bandwidth(info: Folder, shares: Mapping[int, int]) -> BandwidthControl | None:
    if not shares:
        return None
    most = max(shares.values())
    unit = (
        BandwidthUnit.PERCENT
        if most <= 100
        else BandwidthUnit.MBPS
        if most == _NO_LIMIT
        else BandwidthUnit.OTHER
    )
    return BandwidthControl(
        ids=tuple(sorted(shares)),
        least=_number(info, "MB", "min_bandwidth") or 0,
        step=_number(info, "MB", "bandwidth_gran") or 1,
        most=100 if unit is BandwidthUnit.PERCENT else most,
        unit=unit,
    )
