"""The values that settings hold, and how each is read from plain YAML values and written as such.

A reader takes what YAML gave and returns the typed value, or raises ValueError with a text that
quotes it and says what is accepted. Readers know neither names nor paths of fields.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

from nri_policy.cpuset import CPUSet
from nri_policy.glob import Glob
from nri_policy.hardware.machine import MEMORY_USES, MemoryKind
from nri_policy.units import format_cpu, parse_bytes, parse_cpu, parse_duration
from nri_policy.wording import did_you_mean, quoted


class Level(StrEnum):
    """A level of the pool tree, coarsest first."""

    SYSTEM = "system"
    PACKAGE = "package"
    DIE = "die"
    NUMA = "numa"
    L3CACHE = "l3cache"


class Priority(StrEnum):
    """Which class of CPUs an exclusive grant prefers; NONE ignores classes."""

    HIGH = "high"
    NORMAL = "normal"
    LOW = "low"
    NONE = "none"


class Rebalance(StrEnum):
    """Whether moves of running containers are proposed or made."""

    OFF = "off"
    ADVISE = "advise"
    AUTO = "auto"


class Alignment(StrEnum):
    """NUMA refuses a Guaranteed container with exclusive CPUs that fits in no NUMA pool."""

    NONE = "none"
    NUMA = "numa"


class Packing(StrEnum):
    """Which of equal pools exclusive CPUs are taken from: that with most left, or with fewest."""

    SPREAD = "spread"
    TIGHT = "tight"


class FullCores(StrEnum):
    """Whether the exclusive CPUs of two containers may lie on one core."""

    OFF = "off"
    PREFER = "prefer"
    REQUIRE = "require"


class Audit(StrEnum):
    """What is done about a running container whose cgroup is not as decided."""

    OFF = "off"
    REPORT = "report"
    REPAIR = "repair"


class PodEvents(StrEnum):
    """Which decisions about a pod's containers become events of the pod."""

    OFF = "off"
    REFUSALS = "refusals"
    ALL = "all"


class OnExit(StrEnum):
    """What running containers are left with when the daemon is stopped for good."""

    KEEP = "keep"
    WIDEN = "widen"


@dataclass(frozen=True, slots=True)
class Listed:
    """The CPUs of a list (`cpuset:LIST`), or all but these (`exclude-cpuset:LIST`)."""

    cpus: CPUSet
    excluded: bool = False


@dataclass(frozen=True, slots=True)
class Quantity:
    """An amount of CPU; which CPUs is up to the policy."""

    milli_cpu: int


CPUAmount = Listed | Quantity


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a server listens; an empty host is every address."""

    host: str
    port: int


_Option = TypeVar("_Option", bound=StrEnum)

_LISTED = "cpuset:LIST or exclude-cpuset:LIST, as in cpuset:0-3,8"
_ENDPOINT = re.compile(r"(?P<host>[A-Za-z0-9._-]*|\[[0-9A-Fa-f:.]+\]):(?P<port>[0-9]{1,5})")
_NODE_ID = re.compile(r"[0-9]{1,4}")
_MAX_NODE_ID = 1023  # the kernel's MAX_NUMNODES is 1 << 10 at most
_SHORTEST_PERIOD = 1.0  # seconds; polling more often costs more than it tells
_MAX_ENTRIES = 1000  # of a list
NODE_KINDS = [kind for kind, use in MEMORY_USES.items() if use.settable]


def flag(value: object) -> bool:
    """Read true or false."""
    if value is True or value is False:
        return value
    raise ValueError(f"{quoted(value)} is not true or false")


def choice(options: Iterable[_Option]) -> Callable[[object], _Option]:
    """Return the reader of one of *options*, by its value."""
    by_name = {str(option): option for option in options}

    def read(value: object) -> _Option:
        # YAML 1.1 takes a bare `off` for false, and so do kubectl and the API server.
        name = "off" if value is False else value
        if isinstance(name, str) and name in by_name:
            return by_name[name]
        hint = did_you_mean(name, by_name) if isinstance(name, str) else ""
        raise ValueError(f"{quoted(value)} is not one of {', '.join(by_name)}{hint}")

    return read


def available_cpus(value: object) -> Listed:
    """Read a list of CPUs."""
    listed = _listed(value)
    if listed is None:
        raise ValueError(f"{quoted(value)} is not {_LISTED}")
    return listed


def reserved_cpus(value: object) -> CPUAmount:
    """Read a list of CPUs or an amount, either of at least something."""
    if value is None:
        raise ValueError(f"a reservation is required: a quantity, as in 750m or 2, or {_LISTED}")
    listed = _listed(value)
    if listed is not None:
        return listed
    try:
        milli_cpu = parse_cpu(value)  # type: ignore[arg-type]  # refuses other types itself
    except ValueError as error:
        raise ValueError(f"{error}; or {_LISTED}") from None
    if milli_cpu == 0:
        raise ValueError(f"{quoted(value)} reserves nothing; at least 1m is required")
    return Quantity(milli_cpu)


def memory(value: object) -> int:
    """Read a memory quantity, in bytes."""
    return parse_bytes(value)  # type: ignore[arg-type]  # refuses other types itself


def period(value: object) -> float:
    """Read a duration between two rounds of polling, in seconds."""
    seconds = parse_duration(value)  # type: ignore[arg-type]  # refuses other types itself
    if seconds < _SHORTEST_PERIOD:
        raise ValueError(f"{quoted(value)} is too short; at least 1s is required")
    return seconds


def endpoint(value: object) -> Endpoint | None:
    """Read HOST:PORT; None for the empty text."""
    if value == "":
        return None
    match = _ENDPOINT.fullmatch(value) if isinstance(value, str) else None
    if match is None or int(match["port"]) > 65535:
        raise ValueError(f"{quoted(value)} is not HOST:PORT, as in :8891 or 127.0.0.1:8891")
    return Endpoint(match["host"].strip("[]"), int(match["port"]))


def globs(value: object) -> tuple[Glob, ...]:
    """Read a list of globs."""
    return tuple(map(Glob.parse, names(value)))


def names(value: object) -> tuple[str, ...]:
    """Read a list of texts."""
    if not isinstance(value, list) or len(value) > _MAX_ENTRIES:
        raise ValueError(f"{quoted(value)} is not a list of at most {_MAX_ENTRIES} texts")
    for item in value:
        if not isinstance(item, str) or not item:
            raise ValueError(f"{quoted(item)} in the list is not a text")
    return tuple(value)


def memory_kinds(value: object) -> Mapping[int, MemoryKind]:
    """Read a map of memory node id to kind."""
    if not isinstance(value, dict) or len(value) > _MAX_ENTRIES:
        raise ValueError(f"{quoted(value)} is not a map of memory node to kind")
    kind = choice(NODE_KINDS)
    return {_node_id(key): kind(item) for key, item in value.items()}


def plain(value: object) -> Any:  # noqa: PLR0911 - one form a type
    """Return what the readers read *value* from, as plain values for YAML or JSON."""
    match value:
        case Listed():
            return f"{'exclude-' * value.excluded}cpuset:{value.cpus}"
        case Quantity():
            return format_cpu(value.milli_cpu)
        case Endpoint():
            host = f"[{value.host}]" if ":" in value.host else value.host
            return f"{host}:{value.port}"
        case Glob():
            return value.pattern
        case float():
            return f"{value:.9f}".rstrip("0").rstrip(".") + "s"
        case tuple():
            return [plain(item) for item in value]
        case Mapping():
            return {str(key): plain(item) for key, item in value.items()}
        case StrEnum():
            return value.value
    return value


def _node_id(key: object) -> int:
    text = key if isinstance(key, str) else quoted(key)  # JSON's keys are texts
    if not _NODE_ID.fullmatch(text) or int(text) > _MAX_NODE_ID:
        raise ValueError(f"{quoted(key)} is not a memory node id, as in 0 or 2")
    return int(text)


def _listed(value: object) -> Listed | None:
    """Return the CPUs that *value* lists, None if it has not that form."""
    kind, separator, text = value.partition(":") if isinstance(value, str) else ("", "", "")
    if not separator or kind not in {"cpuset", "exclude-cpuset"}:
        return None
    cpus = CPUSet.parse(text)
    if not cpus:
        raise ValueError(f"{quoted(value)} lists no CPU; expected is {_LISTED}")
    return Listed(cpus, kind == "exclude-cpuset")
