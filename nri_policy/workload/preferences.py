"""Preferences: what a pod's annotations say about one of its containers, typed.

Where nothing is annotated a field is None (or False where there is no setting to fall back to), so
"annotated" is "not None". What follows from a preference is the engine's business, as are settings.

Differences from the peer: a value that does not parse is an error for that container, never a
silent default; lists may have blanks after commas.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import TypeVar

from msgspec import Struct

from nri_policy.glob import Glob
from nri_policy.hardware.machine import MemoryKind
from nri_policy.settings import Level, Priority
from nri_policy.units import parse_duration
from nri_policy.workload.annotations import (
    LATER,
    AnnotationError,
    Found,
    find,
    is_ours,
    yaml_map,
)
from nri_policy.workload.requirements import Requirements, requirements


class HintKind(StrEnum):
    """Where a topology hint comes from."""

    MOUNTS = "mounts"
    KUBELET_VOLUMES = "kubelet-volumes"  # mounts of what the kubelet keeps beside its own files
    DEVICES = "devices"
    POD_RESOURCES = "pod-resources"


# What counts unless annotated otherwise: that a container has scratch space says nothing of where
# it works.
USUAL_HINTS = frozenset(HintKind) - {HintKind.KUBELET_VOLUMES}


POD_RESOURCE = "podresourceapi:"


class HintFilter(Struct, frozen=True):
    """Which hints are meant: by host path, or by `podresourceapi:RESOURCE`."""

    prefixes: tuple[str, ...] = ()
    globs: tuple[Glob, ...] = ()

    def matches(self, source: str) -> bool:
        """Return whether the hint from *source* is meant."""
        return source.startswith(self.prefixes) or any(glob.matches(source) for glob in self.globs)


class Preferences(Struct, frozen=True, kw_only=True):
    """What was annotated for a container; see the module for what None means."""

    prefer_isolated: bool | None = None
    require_isolated: bool = False  # implies prefer_isolated
    prefer_shared: bool | None = None
    prefer_reserved: bool | None = None
    cpu_priority: Priority | None = None
    hide_hyperthreads: bool = False
    static_cpus: bool = False
    cpu_preserve: bool = False
    memory_preserve: bool = False
    memory_kinds: frozenset[MemoryKind] | None = None
    cold_start: float | None = None  # seconds, more than 0
    unlimited_burstable: Level | None = None
    hint_kinds: frozenset[HintKind] = USUAL_HINTS
    allow_hints: HintFilter | None = None
    deny_hints: HintFilter | None = None
    strict_hints: bool = False
    pick_by_hints: bool = False
    requirements: Requirements | None = None
    notices: tuple[str, ...] = ()  # what is deprecated, or not supported yet


_Value = TypeVar("_Value")
_BOOLEANS = {  # Go's strconv.ParseBool
    **dict.fromkeys(("1", "t", "T", "TRUE", "true", "True"), True),
    **dict.fromkeys(("0", "f", "F", "FALSE", "false", "False"), False),
}
_PRIORITIES = {str(priority): priority for priority in Priority} | {"default": None}
_LEVELS = {str(level): level for level in Level}
_MEMORY = {
    "dram": {MemoryKind.DRAM},
    "pmem": {MemoryKind.PMEM},
    "hbm": {MemoryKind.HBM},
    "mixed": {MemoryKind.DRAM, MemoryKind.PMEM, MemoryKind.HBM},
}
_HINTS: dict[str, set[HintKind]] = {
    "mounts": {HintKind.MOUNTS, HintKind.KUBELET_VOLUMES},
    "devices": {HintKind.DEVICES},
    "pod-resources": {HintKind.POD_RESOURCES},
    "all": {*USUAL_HINTS},
    "none": set(),
}
_MAX_LIST = 1000  # characters
_MAX_PATHS = 256
_MAX_COLD_START = 3600.0  # seconds


def preferences(annotations: Mapping[str, str], container: str) -> Preferences:
    """Return what a pod's *annotations* say about its container of that name.

    Raises AnnotationError for the first value in force that is not accepted.
    """
    if len(annotations) <= _FEW and not any(is_ours(key) for key in annotations):
        return _NONE
    lookup = _Lookup(annotations, container)
    isolated, required = lookup.isolated()
    kinds = lookup.get("topologyhints", _hint_kinds)
    return Preferences(
        prefer_isolated=isolated,
        require_isolated=required,
        prefer_shared=lookup.get("prefer-shared-cpus", _boolean),
        prefer_reserved=lookup.get("prefer-reserved-cpus", _boolean),
        cpu_priority=lookup.get("prefer-cpu-priority", _priority),
        hide_hyperthreads=bool(lookup.get("hide-hyperthreads", _boolean)),
        static_cpus=bool(lookup.get("static-cpus", _boolean)),
        cpu_preserve=bool(lookup.get("cpu.preserve", _boolean)),
        memory_preserve=bool(lookup.get("memory.preserve", _boolean)),
        memory_kinds=lookup.get("memory-type", _memory_kinds),
        cold_start=lookup.get("cold-start", _cold_start),
        unlimited_burstable=lookup.get("unlimited-burstable", _level),
        hint_kinds=USUAL_HINTS if kinds is None else kinds,
        allow_hints=lookup.get("allow.topologyhints", _hint_filter),
        deny_hints=lookup.get("deny.topologyhints", _hint_filter),
        strict_hints=bool(lookup.get("strict.topologyhints", _boolean)),
        pick_by_hints=bool(lookup.get("pick-resources-by-hints", _boolean)),
        requirements=requirements(annotations, container),
        notices=lookup.notices(),
    )


_FEW = 64  # annotations that are gone through faster than all of our keys are looked up
_NONE = Preferences()


class _Lookup:
    """Finds and reads the annotations of one container, and notes what deserves a notice."""

    def __init__(self, annotations: Mapping[str, str], container: str) -> None:
        self._annotations = annotations
        self._container = container
        self._deprecated: list[str] = []

    def get(self, name: str, read: Callable[[Found], _Value]) -> _Value | None:
        found = self._find(name)
        return None if found is None else read(found)

    def isolated(self) -> tuple[bool | None, bool]:
        """Return whether isolated CPUs are preferred, and whether they are required.

        The tighter of the two annotations decides; at one scope it is the requirement.
        """
        prefer, require = self._find("prefer-isolated-cpus"), self._find("require-isolated-cpus")
        if require is not None and (prefer is None or require.scope <= prefer.scope):
            value = _boolean(require)
            return value, value
        return (None if prefer is None else _boolean(prefer)), False

    def notices(self) -> tuple[str, ...]:
        later = (find(self._annotations, self._container, name) for name in LATER)
        unsupported = (
            f"annotation {found.key}: not supported yet, it has no effect"
            for found in later
            if found is not None
        )
        return (*self._deprecated, *unsupported)

    def _find(self, name: str) -> Found | None:
        found = find(self._annotations, self._container, name)
        if found is not None and found.deprecated:
            self._deprecated.append(
                f"annotation {found.key}: this form is deprecated;"
                f" use {name}.{found.key.partition('/')[0]}/container.{self._container}"
            )
        return found


def _boolean(found: Found) -> bool:
    if found.value is True or found.value is False:  # YAML's, in a deprecated map
        return found.value
    return _option(found, _BOOLEANS, "true or false")


def _priority(found: Found) -> Priority | None:
    return _option(found, _PRIORITIES, "one of high, normal, low, none, default")


def _level(found: Found) -> Level:
    return _option(found, _LEVELS, f"one of {', '.join(_LEVELS)}")


def _memory_kinds(found: Found) -> frozenset[MemoryKind]:
    return _union(found, _MEMORY, "a comma-separated list of dram, pmem, hbm, mixed")


def _hint_kinds(found: Found) -> frozenset[HintKind]:
    if found.value in _BOOLEANS:
        return USUAL_HINTS if _BOOLEANS[found.value] else frozenset()
    return _union(found, _HINTS, f"true, false, or a comma-separated list of {', '.join(_HINTS)}")


def _cold_start(found: Found) -> float | None:
    """Read `duration: 60s`; zero is none."""
    allowed = "a map as in duration: 60s, from 0s to 1h"
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


def _hint_filter(found: Found) -> HintFilter:
    """Read `{type: prefix, paths: [/dev/]}`."""
    allowed = "a map as in {type: prefix, paths: [/dev/]}, of type prefix or glob, to 256 paths"
    value = yaml_map(found.key, found.value, allowed)
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


def _option(found: Found, options: Mapping[str, _Value], allowed: str) -> _Value:
    if not isinstance(found.value, str) or found.value not in options:
        raise AnnotationError(found.key, found.value, allowed)
    return options[found.value]


def _union(found: Found, options: Mapping[str, set[_Value]], allowed: str) -> frozenset[_Value]:
    """Return what the items of a comma-separated list stand for, in any case of letters."""
    if not isinstance(found.value, str) or len(found.value) > _MAX_LIST:
        raise AnnotationError(found.key, found.value, allowed)
    items = [item.strip().lower() for item in found.value.split(",")]
    if not set(items) <= options.keys():
        raise AnnotationError(found.key, found.value, allowed)
    return frozenset().union(*(options[item] for item in items))
