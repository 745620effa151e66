"""Readers of settings: each turns a plain YAML value into the type that its setting has.

A reader takes a YAML value and returns the typed value, or raises ValueError with a text that
quotes the value and says what is accepted. Readers know no names or paths of fields.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Any, TypeVar

from msgspec import Struct

from nri_policy.foundation.cpuset import CPUSet
from nri_policy.foundation.glob import Glob
from nri_policy.foundation.units import (
    MAX_AMOUNT,
    format_cpu,
    parse_bytes,
    parse_cpu,
    parse_duration,
)
from nri_policy.foundation.wording import did_you_mean, quoted
from nri_policy.hardware.machine import MEMORY_USES, MemoryKind
from nri_policy.settings.value_types import (
    LEVEL_NAMES,
    Address,
    Alignment,
    CPUAmount,
    CPUQuantity,
    Level,
    ListedCPUs,
)

_Option = TypeVar("_Option", bound=StrEnum)

_LISTED = "a list of CPUs, such as cpuset:0-3,8 or exclude-cpuset:4-63"
_ENDPOINT = re.compile(r"(?P<host>[A-Za-z0-9._-]*|\[[0-9A-Fa-f:.]+\]):(?P<port>[0-9]{1,5})")
_NODE_ID = re.compile(r"[0-9]{1,4}")
_MAX_NODE_ID = 1023  # the kernel's MAX_NUMNODES is 1 << 10 at most
_SHORTEST_PERIOD = 1.0  # seconds; more frequent polling costs too much
MAX_ENTRIES = 1000  # of a list or map
MAX_MOVERS = 16
CLASS_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_FREQUENCY = re.compile(r"([0-9]{0,9}\.?[0-9]{1,9}) *(khz|k|mhz|m|ghz|g)?")
_KILOHERTZ = {None: 1, "k": 1, "khz": 1, "m": 1000, "mhz": 1000, "g": 10**6, "ghz": 10**6}
_FREQUENCIES = ("min", "base", "turbo")
_KLOG: Mapping[str, type] = {
    **dict.fromkeys(
        (
            *("add_dir_header", "alsologtostderr", "legacy_stderr_threshold_behavior"),
            *("logtostderr", "one_output", "skip_headers", "skip_log_headers"),
        ),
        bool,
    ),
    **dict.fromkeys(
        (
            *("alsologtostderrthreshold", "log_backtrace_at", "log_dir", "log_file"),
            *("stderrthreshold", "vmodule"),
        ),
        str,
    ),
    **dict.fromkeys(("log_file_max_size", "v"), int),
}
_KLOG_KINDS = {bool: "true or false", str: "a string", int: "a whole number"}
QOS = ("besteffort", "burstable", "guaranteed")
NODE_KINDS = [kind for kind, use in MEMORY_USES.items() if use.settable]


def flag(value: object) -> bool:
    """Read true or false."""
    if value is True or value is False:
        return value
    is_text = isinstance(value, str) and value in {"true", "false"}
    hint = ": write it without quotes" if is_text else ""
    raise ValueError(f"{quoted(value)} is not true or false{hint}")


def choice(options: Iterable[_Option]) -> Callable[[object], _Option]:
    """Return a reader that accepts the value of each of *options*."""
    by_name = {str(option): option for option in options}

    def read(value: object) -> _Option:
        # YAML 1.1 reads a bare `off` as false, and so do kubectl and the API server.
        name = "off" if value is False else value
        if isinstance(name, str) and name in by_name:
            return by_name[name]
        hint = did_you_mean(name, by_name) if isinstance(name, str) else ""
        raise ValueError(f"{quoted(value)} is not one of {', '.join(by_name)}{hint}")

    return read


_level, _alignment = choice(Level), choice(Alignment)


def level(value: object) -> Level:
    """Read a level from its name or an alias."""
    if isinstance(value, str) and value in LEVEL_NAMES:
        return LEVEL_NAMES[value]
    return _level(value)


def alignment(value: object) -> Alignment:
    """Read an alignment; the kubelet's name for it gets a hint."""
    try:
        return _alignment(value)
    except ValueError as error:
        if value == "single-numa-node":
            raise ValueError(f"{error}; did you mean '{Alignment.NUMA}'?") from None
        raise


def choices(options: Iterable[_Option]) -> Callable[[object], tuple[_Option, ...]]:
    """Return the reader of a list of *options*, by their values."""
    one = choice(options)

    def read(value: object) -> tuple[_Option, ...]:
        return tuple(map(one, names(value)))

    return read


class OneOf(Struct, frozen=True):
    """The reader of one of some words."""

    words: tuple[str, ...]

    def __call__(self, value: object) -> str:
        """Read one of the words."""
        if isinstance(value, str) and value in self.words:
            return value
        raise ValueError(f"{quoted(value)} is not one of {', '.join(self.words)}")


def text(value: object) -> str:
    """Read a text."""
    if not isinstance(value, str):
        raise ValueError(f"{quoted(value)} is not a string")
    return value


def integer(value: object) -> int:
    """Read a whole number."""
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) > MAX_AMOUNT:
        raise ValueError(f"{quoted(value)} is not a whole number")
    return value


def natural(value: object) -> int:
    """Read a whole number of at least 0."""
    if integer(value) < 0:
        raise ValueError(f"{quoted(value)} is less than 0")
    return integer(value)


def movers(value: object) -> int:
    """Read how many containers may move for one; the engine tries no more together."""
    if not 0 <= integer(value) <= MAX_MOVERS:
        raise ValueError(f"{quoted(value)} is not from 0 to {MAX_MOVERS}")
    return integer(value)


def integer_text(value: object) -> int:
    """Read a whole number, which may be a string, as in the runtimes' file."""
    digits = isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10
    return integer(int(value)) if digits else integer(value)  # type: ignore[call-overload]


def rate(value: object) -> int:
    """Read a rate, which is a quantity a second."""
    found = parse_bytes(value)
    if found == 0:
        raise ValueError(f"{quoted(value)}: the kernel does not accept a limit of 0")
    return found


def nanoseconds(value: object) -> int:
    """Read a time in nanoseconds, or a duration."""
    if isinstance(value, str):
        return round(parse_duration(value) * 10**9)
    return natural(value)


def frequency(value: object) -> str | int | None:
    """Read a frequency in kHz, or `min`, `base`, `turbo`: values of the CPU itself.

    As in nri-plugins, 0 and an empty text set no frequency.
    """
    if not isinstance(value, str):
        return natural(value) or None
    text = value.strip().lower()
    if text in _FREQUENCIES:
        return text
    found = _FREQUENCY.fullmatch(text or "0")
    if found is None:
        expected = "a frequency, such as 3.2GHz, 2900000 (kHz), min, base or turbo"
        raise ValueError(f"{quoted(value)} is not {expected}")
    return round(float(found[1]) * _KILOHERTZ[found[2]]) or None


def class_name(value: object) -> str:
    """Read the name of a class."""
    if not isinstance(value, str) or not CLASS_NAME.fullmatch(value):
        text = "the name of a class: 1 to 64 of letters, digits, '.', '_' and '-'"
        raise ValueError(f"{quoted(value)} is not {text}")
    return value


def find_wrong_names(path: str, names: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield a problem for each of *names* that is not allowed for a class."""
    for name in names:
        try:
            class_name(name)
        except ValueError as error:
            yield path, str(error)


def class_by_namespace(value: object) -> Mapping[str, str]:
    """Read a map of namespace to the name of a class."""
    if not isinstance(value, dict) or len(value) > MAX_ENTRIES:
        raise ValueError(f"{quoted(value)} is not a map of namespace to class")
    for namespace in value:
        if not isinstance(namespace, str) or not namespace:
            raise ValueError(f"{quoted(namespace)} is not a namespace")
    return {namespace: class_name(each) for namespace, each in value.items()}


def class_by_qos(value: object) -> Mapping[str, str]:
    """Read a map of QoS, in any case of letters, to the name of a class; keys in lower case."""
    if not isinstance(value, dict):
        raise ValueError(f"{quoted(value)} is not a map of QoS to class")
    found: dict[str, str] = {}
    for qos, each in value.items():
        name = qos.lower() if isinstance(qos, str) else ""
        if name not in QOS:
            raise ValueError(f"{quoted(qos)} is not one of {', '.join(QOS)}")
        if name in found:
            raise ValueError(f"{quoted(qos)} is given twice")
        found[name] = class_name(each)
    return found


def available_cpus(value: object) -> ListedCPUs:
    """Read a list of CPUs."""
    listed = _parse_listed(value)
    if listed is None:
        raise ValueError(f"{quoted(value)} is not {_LISTED}")
    return listed


def reserved_cpus(value: object) -> CPUAmount:
    """Read a list of CPUs or an amount; neither may be empty."""
    if value is None:
        raise ValueError(f"it is required: an amount, such as 750m or 2, or {_LISTED}")
    listed = _parse_listed(value)
    if listed is not None:
        return listed
    try:
        milli_cpu = parse_cpu(value)
    except ValueError as error:
        raise ValueError(f"{error}, or {_LISTED}") from None
    if milli_cpu == 0:
        raise ValueError(f"{quoted(value)} reserves nothing; at least 1m is required")
    return CPUQuantity(milli_cpu)


def memory(value: object) -> int:
    """Read a memory quantity, in bytes."""
    return parse_bytes(value)


def period(value: object) -> float:
    """Read a duration between two rounds of polling, in seconds."""
    seconds = parse_duration(value)
    if seconds < _SHORTEST_PERIOD:
        raise ValueError(f"{quoted(value)} is too short; at least 1s is required")
    return seconds


def endpoint(value: object) -> Address | None:
    """Read HOST:PORT; None for the empty text."""
    if value == "":
        return None
    match = _ENDPOINT.fullmatch(value) if isinstance(value, str) else None
    if match is None or int(match["port"]) > 65535:
        raise ValueError(f"{quoted(value)} is not HOST:PORT, such as :8891 or 127.0.0.1:8891")
    return Address(match["host"].strip("[]"), int(match["port"]))


def globs(value: object) -> tuple[Glob, ...]:
    """Read a list of globs."""
    return tuple(map(Glob.parse, names(value)))


def names(value: object) -> tuple[str, ...]:
    """Read a list of texts."""
    if not isinstance(value, list) or len(value) > MAX_ENTRIES:
        hint = f": write [{quoted(value)}]" if isinstance(value, str) else ""
        raise ValueError(f"{quoted(value)} is not a list of at most {MAX_ENTRIES} strings{hint}")
    for item in value:
        if not isinstance(item, str) or not item:
            fault = "is empty" if item == "" else "is not a string"
            raise ValueError(f"{quoted(item)} in the list {fault}")
    return tuple(value)


def loggers(value: object) -> tuple[str, ...]:
    """Read a list of names of loggers."""
    try:
        return names(value)
    except ValueError as error:
        raise ValueError(f'{error}; ["*"] means all loggers') from None


def memory_kinds(value: object) -> Mapping[int, MemoryKind]:
    """Read a map of memory node id to kind."""
    if not isinstance(value, dict) or len(value) > MAX_ENTRIES:
        raise ValueError(f"{quoted(value)} is not a map of memory node to kind")
    kind = choice(NODE_KINDS)
    return {_node_id(key): kind(item) for key, item in value.items()}


def plain(value: object) -> Any:  # noqa: PLR0911 - one form a type
    """Return a single *value* in plain YAML or JSON types, as its reader accepts it."""
    match value:
        case ListedCPUs():
            return f"{'exclude-' * value.excluded}cpuset:{value.cpus}"
        case CPUQuantity():
            return format_cpu(value.milli_cpu)
        case Address():
            host = f"[{value.host}]" if ":" in value.host else value.host
            return f"{host}:{value.port}"
        case Glob():
            return value.pattern
        case float():
            return f"{value:.9f}".rstrip("0").rstrip(".") + "s"
        case StrEnum():
            return value.value
        case _:
            return value


def _node_id(key: object) -> int:
    text = key if isinstance(key, str) else quoted(key)  # JSON's keys are texts
    if not _NODE_ID.fullmatch(text) or int(text) > _MAX_NODE_ID:
        raise ValueError(f"{quoted(key)} is not a memory node id, such as 0 or 2")
    return int(text)


def _parse_listed(value: object) -> ListedCPUs | None:
    """Return the CPUs that *value* lists; None if it has another form."""
    kind, separator, text = value.partition(":") if isinstance(value, str) else ("", "", "")
    if not separator or kind not in {"cpuset", "exclude-cpuset"}:
        return None
    cpus = CPUSet.parse(text)
    if not cpus:
        raise ValueError(f"{quoted(value)} lists no CPU; expected: {_LISTED}")
    return ListedCPUs(cpus, kind == "exclude-cpuset")


def klog(value: object) -> Mapping[str, object]:
    """Read the options of klog, which this program ignores."""
    if not isinstance(value, dict):
        raise ValueError(f"{quoted(value)} is not a map")
    for name, given in value.items():
        kind = _KLOG.get(name) if isinstance(name, str) else None
        if kind is None:
            hint = did_you_mean(name, _KLOG) if isinstance(name, str) else ""
            raise ValueError(f"{quoted(name)} is not an option of klog{hint}")
        if type(given) is not kind:
            raise ValueError(f"{name}: {quoted(given)} is not {_KLOG_KINDS[kind]}")
    return dict(value)
