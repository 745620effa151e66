"""Items: the kernel tunables that the policy can set, and their wished values.

Plain data. The daemon computes wishes, and the tuner writes them. `check` holds the closed list
of items and values, which contains no path (classes.md §0.8).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct

from nri_policy.foundation.cpuset import CPUSet
from nri_policy.foundation.wording import quoted
from nri_policy.hardware.resctrl import GROUP_NAME

MAX_VALUE = 16000  # characters
NO_GROUP = ""  # the value of an absent group of resctrl


class Kind(StrEnum):
    """The kind of an item; the comments say which ids it has."""

    CPU = "cpu"  # a CPU
    CPUFREQ = "cpufreq"  # the number of a cpufreq policy, which can span CPUs
    UNCORE = "uncore"  # a folder of intel_uncore_frequency, such as package_00_die_00
    IRQ = "irq"  # an interrupt, or `default` for those that come later
    IRQBALANCE = "irqbalance"  # a process of it; only the tuner itself sets these
    RESCTRL = "resctrl"  # a group below the root group


class Item(Struct, frozen=True, order=True):
    """One tunable."""

    kind: Kind
    id: str
    attribute: str

    def __str__(self) -> str:
        return f"{self.kind}/{self.id}/{self.attribute}"


class Wish(Struct, frozen=True):
    """The value that an item must have, and the containers or settings that need it."""

    value: str
    origin: tuple[str, ...] = ()  # containers as namespace/pod/container, or settings


Desired = Mapping[Item, Wish]

_NUMBER = re.compile(r"0|[1-9][0-9]{0,8}")
_KHZ = re.compile(r"[1-9][0-9]{3,7}")
_CPUS = re.compile(r"[0-9]{1,4}(-[0-9]{1,4})?(,[0-9]{1,4}(-[0-9]{1,4})?)*")
_WORD = re.compile(r"[a-z][a-z0-9_]{0,31}")
# Lines as `L3:0=ff;1=ff` and `MB:0=50`; an empty schemata is a group that only has to be there.
_SCHEMA = r"[A-Z][A-Z0-9]{0,7}:[0-9]{1,4}=[0-9a-f]{1,16}(;[0-9]{1,4}=[0-9a-f]{1,16})*"
_SCHEMATA = re.compile(rf"({_SCHEMA}(\n{_SCHEMA})*)?")
_IDS = {
    Kind.CPU: re.compile(r"0|[1-9][0-9]{0,3}"),
    Kind.CPUFREQ: re.compile(r"0|[1-9][0-9]{0,3}"),
    Kind.UNCORE: re.compile(r"package_[0-9]{2}_die_[0-9]{2}|uncore[0-9]{2}"),
    Kind.IRQ: re.compile(r"default|0|[1-9][0-9]{0,8}"),
    Kind.IRQBALANCE: re.compile(r"[1-9][0-9]{0,8}"),
    Kind.RESCTRL: GROUP_NAME,
}
# The attributes of each kind, and the values of each attribute.
_ATTRIBUTES: tuple[tuple[Kind, re.Pattern[str], re.Pattern[str]], ...] = (
    (Kind.CPU, re.compile("resume_latency"), re.compile(rf"n/a|{_NUMBER.pattern}")),  # µs
    (Kind.CPU, re.compile("state(0|[1-9][0-9]?)"), re.compile("0|1")),  # 1 disables it
    (Kind.CPUFREQ, re.compile("(min|max)_freq"), _KHZ),
    (Kind.CPUFREQ, re.compile("governor"), _WORD),
    (Kind.CPUFREQ, re.compile("epp"), re.compile(rf"[0-9]{{1,3}}|{_WORD.pattern}")),
    (Kind.UNCORE, re.compile("(min|max)_freq"), _KHZ),
    (Kind.IRQ, re.compile("affinity"), _CPUS),  # a list of CPUs as the kernel writes it
    # banned interrupts, joined by commas
    (Kind.IRQBALANCE, re.compile("banned"), re.compile(r"([0-9]{1,9}(,[0-9]{1,9})*)?")),
    (Kind.RESCTRL, re.compile("schemata"), _SCHEMATA),
)


def is_looser(item: Item, value: str, than: str) -> bool:
    """Return whether *value* permits more wake-up latency of a CPU than another does."""
    return item.attribute == "resume_latency" and _latency(value) > _latency(than)


def _latency(text: str) -> float:
    """Return a limit in µs; a text that the kernel does not use is no limit."""
    if text == "n/a":
        return 0.0
    return float(text) if _NUMBER.fullmatch(text) and text != "0" else math.inf


def check(item: Item, value: str) -> None:
    """Raise ValueError if *item* cannot be set to *value* on any machine."""
    if not _IDS[item.kind].fullmatch(item.id):
        raise ValueError(f"{quoted(item.id)} is not the id of a {item.kind}")
    for kind, attribute, values in _ATTRIBUTES:
        if kind is item.kind and attribute.fullmatch(item.attribute):
            fits = len(value) <= MAX_VALUE and values.fullmatch(value)
            if not fits or (kind is Kind.IRQ and str(CPUSet.parse(value)) != value):
                raise ValueError(f"{quoted(value)} is not a value of {item}")
            return
    raise ValueError(f"{quoted(item.attribute)} is not an attribute of a {item.kind}")
