"""Values of annotations: what each kind accepts, and what it means.

Differences from the peer: a value that does not parse is an error for that container, never a
silent default; lists may have blanks after commas.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TypeVar

from msgspec import Struct

from nri_policy.foundation.glob import Glob
from nri_policy.foundation.units import parse_duration
from nri_policy.hardware.machine import REQUESTABLE, MemoryKind
from nri_policy.settings import (
    LEVEL_NAMES,
    ExclusivePartitions,
    ExclusiveQuota,
    FullCores,
    Level,
    Priority,
    class_name,
)
from nri_policy.workload.annotations import AnnotationError, FoundAnnotation, Scope, yaml_map


class HintKind(StrEnum):
    """The source of a topology hint."""

    MOUNTS = "mounts"
    KUBELET_VOLUMES = "kubelet-volumes"  # mounts from the kubelet's folder of volumes
    DEVICES = "devices"
    POD_RESOURCES = "pod-resources"
    CLAIMS = "claims"  # devices of resource claims (DRA)
    ZONE = "zone"  # where the scheduler counted on it; not for owners to choose


# The sources that count unless annotated otherwise. A container's scratch space does not show where
# it should run.
USUAL_HINTS = frozenset(
    {HintKind.MOUNTS, HintKind.DEVICES, HintKind.POD_RESOURCES, HintKind.CLAIMS}
)
# Sources of devices assigned to the container; one device may have several device files.
ASSIGNED_HINTS = frozenset({HintKind.POD_RESOURCES, HintKind.CLAIMS})
DEVICE_HINTS = ASSIGNED_HINTS | {HintKind.DEVICES}

ROOT_GROUP = "system/default"  # the RDT class of processes without another class
POD_RESOURCE = "podresourceapi:"
CLAIM = "claim:"


class Asked(Struct, frozen=True):
    """A class that an annotation names."""

    key: str  # of the annotation, in full
    name: str
    scope: Scope = Scope.POD


class InterruptChoice(Struct, frozen=True, kw_only=True):
    """The interrupts that a container claims and masks: numbers, or globs on their names."""

    key: str  # of the annotation, in full
    scope: Scope
    claim: tuple[int | str, ...] = ()
    mask: tuple[int | str, ...] = ()
    devices: tuple[int | str, ...] = ()  # claims, among the interrupts of its own devices
    claim_first: bool = False  # masks also count where a container claims the interrupt


class HintFilter(Struct, frozen=True):
    """Which hints are meant: by path, of the host or of sysfs, or `podresourceapi:…`, `claim:…`."""

    prefixes: tuple[str, ...] = ()
    globs: tuple[Glob, ...] = ()

    def matches(self, *names: str) -> bool:
        """Return whether the hint with these *names* is meant; empty ones do not count."""
        return any(
            name.startswith(self.prefixes) or any(glob.matches(name) for glob in self.globs)
            for name in filter(None, names)
        )


_Value = TypeVar("_Value")
_BOOLEANS = {  # Go's strconv.ParseBool
    **dict.fromkeys(("1", "t", "T", "TRUE", "true", "True"), True),
    **dict.fromkeys(("0", "f", "F", "FALSE", "false", "False"), False),
}
_PRIORITIES = {str(priority): priority for priority in Priority} | {"default": None}
_FULL_CORES = {str(each): each for each in FullCores}
_PARTITIONS = {str(each): each for each in ExclusivePartitions}
_QUOTAS = {str(each): each for each in ExclusiveQuota}
_MEMORY = {**{str(kind): {kind} for kind in REQUESTABLE}, "mixed": {*REQUESTABLE}}
_HINTS: dict[str, set[HintKind]] = {
    "mounts": {HintKind.MOUNTS, HintKind.KUBELET_VOLUMES},
    "devices": {HintKind.DEVICES},
    "pod-resources": {HintKind.POD_RESOURCES},
    "claims": {HintKind.CLAIMS},
    "all": {*USUAL_HINTS},
    "none": set(),
}
_MAX_LIST = 1000  # characters
_MAX_PATHS = 256
_IRQ_WORDS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "isolate": ((), ("*",)),
    "sink": (("*",), ()),
}  # claim, mask
_MAX_COLD_START = 3600.0  # seconds


def read_boolean(found: FoundAnnotation) -> bool:
    """Return the truth of a text, or of YAML's own in a deprecated map; AnnotationError."""
    if found.value is True or found.value is False:  # YAML's, in a deprecated map
        return found.value
    return _option(found, _BOOLEANS, "true or false")


def read_priority(found: FoundAnnotation) -> Priority | None:
    """Return the priority of CPUs, None for that of the settings; AnnotationError."""
    return _option(found, _PRIORITIES, "one of high, normal, low, none, default")


def read_full_cores(found: FoundAnnotation) -> FullCores:
    """Return whether cores are shared with others; AnnotationError."""
    return _option(found, _FULL_CORES, f"one of {', '.join(_FULL_CORES)}")


def read_exclusive_quota(found: FoundAnnotation) -> ExclusiveQuota:
    """Read whether a container with exclusive CPUs has a quota; raises AnnotationError."""
    return _option(found, _QUOTAS, f"one of {', '.join(_QUOTAS)}")


def read_exclusive_partition(found: FoundAnnotation) -> ExclusivePartitions:
    """Read whether exclusive CPUs are a kernel partition; raises AnnotationError."""
    return _option(found, _PARTITIONS, f"one of {', '.join(_PARTITIONS)}")


def read_of_pod(found: FoundAnnotation) -> bool:
    """Return a boolean that is about a pod as a whole; AnnotationError."""
    if found.scope is Scope.CONTAINER:
        raise AnnotationError(found.key, found.value, "accepted here: only for the whole pod")
    return read_boolean(found)


def read_level(found: FoundAnnotation) -> Level:
    """Return a level of the tree; AnnotationError."""
    return _option(found, LEVEL_NAMES, f"one of {', '.join(Level)}")


def read_memory_kinds(found: FoundAnnotation) -> frozenset[MemoryKind]:
    """Return the kinds of memory in a list; AnnotationError."""
    return _union(found, _MEMORY, f"a comma-separated list of {', '.join(_MEMORY)}")


def read_hint_kinds(found: FoundAnnotation) -> frozenset[HintKind]:
    """Return the kinds of hints in a list, or that true and false mean; AnnotationError."""
    if found.value in _BOOLEANS:
        return USUAL_HINTS if _BOOLEANS[found.value] else frozenset()
    return _union(found, _HINTS, f"true, false, or a comma-separated list of {', '.join(_HINTS)}")


def read_class(found: FoundAnnotation) -> Asked:
    """Read the name of a class; whether the class exists is not known here."""
    try:
        return Asked(found.key, class_name(found.value), found.scope)
    except ValueError:
        allowed = "the name of a class: 1 to 64 of letters, digits, '.', '_' and '-'"
        raise AnnotationError(found.key, found.value, allowed) from None


def read_rdt_class(found: FoundAnnotation) -> Asked:
    """Read the name of an RDT class; whether it exists is not known here."""
    if found.value in ("", ROOT_GROUP):
        return Asked(found.key, ROOT_GROUP)
    if found.value in (".", ".."):  # folders that no group can be; else a class of the runtime's
        allowed = "the name of a class, which is a folder in resctrl"
        raise AnnotationError(found.key, found.value, allowed)
    return read_class(found)


def read_irq_affinity(found: FoundAnnotation) -> InterruptChoice:
    """Read which interrupts a container claims and masks; raises AnnotationError."""
    allowed = "isolate, sink, or a map such as {claim: [24], devices: ['*'], mask: ['*']}"
    if found.value in _IRQ_WORDS:
        claims, masks = _IRQ_WORDS[found.value]
        return InterruptChoice(key=found.key, scope=found.scope, claim=claims, mask=masks)
    value = yaml_map(found.key, found.value, allowed)
    given = [value.get(name) for name in ("claim", "mask", "devices")]
    lists = [[] if each is None else each for each in given]
    mode = value.get("mode", "mask-first")
    if (
        not value.keys() <= {"claim", "mask", "devices", "mode"}
        or mode not in ("mask-first", "claim-first")
        or not all(isinstance(each, list) and len(each) <= _MAX_PATHS for each in lists)
    ):
        raise AnnotationError(found.key, found.value, allowed)
    try:
        claim, mask, devices = (
            tuple(entry if type(entry) is int else Glob.parse(entry).pattern for entry in each)
            for each in lists
        )
    except ValueError as error:
        raise AnnotationError(found.key, found.value, f"{allowed} ({error})") from None
    return InterruptChoice(
        key=found.key,
        scope=found.scope,
        claim=claim,
        mask=mask,
        devices=devices,
        claim_first=mode == "claim-first",
    )


def read_cold_start(found: FoundAnnotation) -> float | None:
    """Return the seconds in `duration: 60s`, None for zero; AnnotationError."""
    allowed = "a map such as duration: 60s, from 0s to 1h"
    value = found.value
    if isinstance(value, str):
        value = yaml_map(found.key, value, allowed)
    if not isinstance(value, dict) or value.keys() != {"duration"}:
        raise AnnotationError(found.key, found.value, allowed)
    try:
        seconds = parse_duration(str(value["duration"]))  # a bare 0 is an integer
    except ValueError as error:
        raise AnnotationError(found.key, found.value, f"{allowed} ({error})") from None
    if seconds > _MAX_COLD_START:
        raise AnnotationError(found.key, found.value, allowed)
    return seconds or None


def read_hint_filter(found: FoundAnnotation) -> HintFilter:
    """Return the filter in `{type: prefix, paths: [/dev/]}`; AnnotationError."""
    allowed = "a map such as {type: prefix, paths: [/dev/]}, of type prefix or glob, to 256 paths"
    value = {"type": "prefix", **yaml_map(found.key, found.value, allowed)}  # as in nri-plugins
    paths = value.get("paths")
    if (
        value.keys() != {"type", "paths"}
        or value["type"] not in ("prefix", "glob")
        or not isinstance(paths, list)
        or len(paths) > _MAX_PATHS
        or not all(isinstance(path, str) for path in paths)
    ):
        raise AnnotationError(found.key, found.value, allowed)
    named = tuple(_full(path) for path in paths)
    if value["type"] == "prefix":
        return HintFilter(prefixes=named)
    try:
        return HintFilter(globs=tuple(map(Glob.parse, named)))
    except ValueError as error:
        raise AnnotationError(found.key, found.value, f"{allowed} ({error})") from None


def _full(path: str) -> str:
    """Return *path*, with the short form of the PodResources prefix written out."""
    short = "podresapi:"
    return POD_RESOURCE + path.removeprefix(short) if path.startswith(short) else path


def _option(found: FoundAnnotation, options: Mapping[str, _Value], allowed: str) -> _Value:
    if not isinstance(found.value, str) or found.value not in options:
        raise AnnotationError(found.key, found.value, allowed)
    return options[found.value]


def _union(
    found: FoundAnnotation, options: Mapping[str, set[_Value]], allowed: str
) -> frozenset[_Value]:
    """Return what the items of a comma-separated list stand for, in any case of letters."""
    if not isinstance(found.value, str) or len(found.value) > _MAX_LIST:
        raise AnnotationError(found.key, found.value, allowed)
    items = [item.strip().lower() for item in found.value.split(",")]
    if not set(items) <= options.keys():
        raise AnnotationError(found.key, found.value, allowed)
    return frozenset().union(*(options[item] for item in items))
