"""The notation for machines that do not exist: hwloc's synthetic one, with a few words more.

Owns the grammar; `synthetic` turns the outcome into files. A specification is words, in any number:

    package:2 numa:2 l3:1 core:2 pu:2

LEVEL:COUNT, outermost first: so many of this level in each of the level before it. Levels: package,
die, numa, l3, cluster, l2, core, pu, with hwloc's other names for them (socket, NUMANode, L3Cache,
group, thread …), any case. Package, die, cluster, l2, core and pu nest in this order; numa and l3
stand anywhere above l2 and core. Levels left out: one package; one die a package; one NUMA node for
all; one L3 for each innermost of package, die and NUMA node; an L2 a core; one thread a core.

LEVEL:COUNT(attribute=value …), the attributes of a level:

    memory=16GiB            of each NUMA node (default 4GiB, besides huge pages, which are a part of
                            it); `memory=16GiB,0` takes turns
    hugepages-1Gi=16        so many huge pages of this size on each NUMA node; `hugepages-2Mi=0,512`
                            takes turns
    example.com/gpu=2       so many devices on each NUMA node, by the name that pods ask for them;
                            `example.com/gpu=1,2` takes turns
    hbm=8GiB                on package, die or numa: each has a memory-only node of this kind near
    pmem=64GiB  cxl=64GiB   to it; repeat an attribute for several. Their ids follow the others'
    efficiency=8            on core: the last so many of each are efficiency cores of one thread

NAME=VALUE, the attributes of the machine:

    siblings=adjacent       numbers of a core's threads: adjacent (0,1; default) or apart (0,N);
                            alternating: apart, and the packages take turns
    offline=3,7             CPUs that are there but offline
    isolated=4-7            CPUs isolated at boot; nohz_full=4-7 likewise
    distances=10,21/21,10   a row a node, instead of 10 local, 11 in the package, 21 beyond
    min=800MHz max=3.5GHz base=2.1GHz epp=performance
                            frequencies and energy preference; `base@0-3=2.7GHz` for some CPUs only
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from math import prod
from typing import NoReturn

from msgspec import Struct

from nri_policy.foundation.cpuset import EMPTY, CPUSet

LEVELS = ("package", "die", "numa", "l3", "cluster", "l2", "core", "pu")
MEMORY = 4 << 30  # bytes of a NUMA node
MOST_CPUS = 8192
MOST_NODES = 1024
MOST_PAGES = 1 << 30
MOST_DEVICES = 4096
_ALIASES = {
    "pack": "package",
    "socket": "package",
    "node": "numa",
    "numanode": "numa",
    "l3cache": "l3",
    "l2cache": "l2",
    "group": "cluster",
    "thread": "pu",
}
_RANK = {"package": 1, "die": 2, "numa": 0, "l3": 0, "cluster": 3, "l2": 4, "core": 5, "pu": 6}
SIBLINGS = ("adjacent", "apart", "alternating")
MEMORY_ONLY = ("hbm", "pmem", "cxl")
_LEVEL_ATTRIBUTES = {
    "package": MEMORY_ONLY,
    "die": MEMORY_ONLY,
    "numa": ("memory", "hugepages-SIZE", "DOMAIN/DEVICE", *MEMORY_ONLY),
    "core": ("efficiency",),
}
_FREQUENCIES = ("base", "min", "max")
_MACHINE_ATTRIBUTES = (
    *("siblings", "offline", "isolated", "nohz_full", "distances"),
    *_FREQUENCIES,
    "epp",
)
_WORD = re.compile(
    r"(?P<level>[A-Za-z]\w*):(?P<count>\w*)(?:\((?P<inner>[^()]*)\))?(?=\s|$)"
    r"|(?P<name>[A-Za-z]\w*)(?:@(?P<cpus>[\d,-]+))?=(?P<value>[^\s()]*)(?=\s|$)"
)
_HUGEPAGES = re.compile(r"hugepages-([0-9]{1,4})([KMG])i")
_RESOURCE = re.compile(r"[a-z0-9][a-z0-9.-]{0,252}/[A-Za-z0-9][\w.-]{0,62}")
_INNER = re.compile(r"(?P<name>[A-Za-z0-9][\w./-]*)=(?P<value>[^\s=()]+)")
_NUMBER = re.compile(r"[0-9]{1,9}")
_SIZE = re.compile(r"(\d{1,15})\s*(?:([kmgt])i?)?b?", re.IGNORECASE)
_HERTZ = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)(khz|mhz|ghz)", re.IGNORECASE)
_KHZ = {"khz": 1, "mhz": 1000, "ghz": 1000_000}


class SpecError(Exception):
    """A specification does not describe a machine; tells where and what would be accepted."""

    def __init__(self, spec: str, position: int, problem: str) -> None:
        super().__init__(
            f"synthetic machine: {problem}, at character {position + 1}:\n"
            f"  {spec}\n  {' ' * position}^"
        )
        self.position = position
        self.problem = problem


class MemoryOnly(Struct, frozen=True, kw_only=True):
    """A CPU-less node near each unit of a level."""

    level: str
    kind: str  # one of MEMORY_ONLY
    size: int  # bytes


@dataclass(slots=True, kw_only=True)
class Spec:
    """A machine as specified; `counts` has every level, outermost first."""

    counts: dict[str, int] = field(default_factory=dict)
    memory: tuple[int, ...] = ()  # bytes, of the nodes in turn; none: MEMORY besides huge pages
    hugepages: dict[int, tuple[int, ...]] = field(default_factory=dict)  # by bytes of a page
    # devices of each node in turn, by resource
    devices: dict[str, tuple[int, ...]] = field(default_factory=dict)
    memory_only: list[MemoryOnly] = field(default_factory=list)
    efficiency: int = 0  # cores in each unit above the core
    siblings: str = "adjacent"  # one of SIBLINGS
    offline: CPUSet = EMPTY
    isolated: CPUSet = EMPTY
    nohz_full: CPUSet = EMPTY
    distances: tuple[tuple[int, ...], ...] = ()
    # file in cpufreq/ -> (CPUs or None for all, text); later entries win and come first
    frequencies: dict[str, list[tuple[CPUSet | None, str]]] = field(default_factory=dict)

    def pages_of(self, node: int) -> dict[int, int]:
        """Return how many huge pages a NUMA node has, by the bytes of a page."""
        return {size: counts[node % len(counts)] for size, counts in self.hugepages.items()}

    def list_devices(self) -> dict[str, list[int]]:
        """List the NUMA node of every device, by resource."""
        return {
            resource: [
                node
                for node in range(self.units("numa"))
                for _ in range(counts[node % len(counts)])
            ]
            for resource, counts in self.devices.items()
        }

    def memory_of(self, node: int) -> int:
        """Return the bytes of a NUMA node."""
        if self.memory:
            return self.memory[node % len(self.memory)]
        return MEMORY + sum(size * count for size, count in self.pages_of(node).items())

    def units(self, level: str) -> int:
        """Return how many units of *level* the machine has."""
        levels = list(self.counts)
        return prod(self.counts[each] for each in levels[: levels.index(level) + 1])

    def cpu_count(self) -> int:
        """Return how many CPUs the machine has, offline ones included."""
        threads = (self.counts["core"] - self.efficiency) * self.counts["pu"] + self.efficiency
        return self.units("core") // self.counts["core"] * threads


def parse(text: str) -> Spec:
    """Return what *text* specifies.

    Raises SpecError, which points at the place, for what the notation does not know or what would
    be no machine.
    """
    return _Parser(text).spec


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.spec = Spec()
        self._seen: dict[str, int] = {}  # level or attribute -> position
        position = 0
        while position < len(text):
            if text[position].isspace():
                position += 1
                continue
            word = _WORD.match(text, position)
            if word is None:
                self._fail(
                    position, "expected LEVEL:COUNT, LEVEL:COUNT(attribute=value) or NAME=VALUE"
                )
            if word["level"]:
                self._level(word)
            else:
                self._machine_attribute(word)
            position = word.end()
        self._complete()

    def _fail(self, position: int, problem: str) -> NoReturn:
        raise SpecError(self.text, position, problem)

    def _level(self, word: re.Match[str]) -> None:
        name = word["level"].lower()
        level = _ALIASES.get(name, name)
        if level not in LEVELS:
            self._fail(word.start(), f"unknown level {name!r}; levels are {', '.join(LEVELS)}")
        if level in self.spec.counts:
            self._fail(word.start(), f"level {level} is given a second time")
        for outer in self.spec.counts:
            if _RANK[outer] > (_RANK[level] or _RANK["cluster"]):
                self._fail(word.start(), f"{level} cannot be inside {outer}")
        count = word["count"]
        if not _NUMBER.fullmatch(count) or not 1 <= int(count) <= MOST_CPUS:
            self._fail(word.start("count"), f"expected a count from 1 to {MOST_CPUS}")
        self.spec.counts[level] = int(count)
        if word["inner"] is not None:
            self._level_attributes(level, word["inner"], word.start("inner"))

    def _level_attributes(self, level: str, inner: str, position: int) -> None:
        allowed = _LEVEL_ATTRIBUTES.get(level, ())
        for part in re.finditer(r"\S+", inner):
            where = position + part.start()
            match = _INNER.fullmatch(part[0])
            pages = match and level == "numa" and _HUGEPAGES.fullmatch(match["name"])
            device = match and level == "numa" and _RESOURCE.fullmatch(match["name"])
            if match is None or not (pages or device or match["name"] in allowed):
                known = ", ".join(f"{name}=…" for name in allowed) or "none"
                self._fail(where, f"attributes of {level} are: {known}")
            name, value = match["name"], match["value"]
            where += match.start("value")
            if pages:
                size = int(pages[1]) << {"K": 10, "M": 20, "G": 30}[pages[2]]
                self.spec.hugepages[size] = tuple(
                    self._number(each, where, MOST_PAGES) for each in value.split(",")
                )
            elif device:
                self.spec.devices[name] = tuple(
                    self._number(each, where, MOST_DEVICES) for each in value.split(",")
                )
            elif name == "memory":
                self.spec.memory = tuple(self._size(each, where) for each in value.split(","))
            elif name == "efficiency":
                self.spec.efficiency = self._number(value, where, self.spec.counts["core"])
            else:
                size = self._size(value, where)
                self.spec.memory_only.append(MemoryOnly(level=level, kind=name, size=size))

    def _machine_attribute(self, word: re.Match[str]) -> None:
        name, value, where = word["name"], word["value"], word.start("value")
        if name not in _MACHINE_ATTRIBUTES:
            self._fail(
                word.start(), f"attributes of the machine are: {', '.join(_MACHINE_ATTRIBUTES)}"
            )
        if word["cpus"] is not None and name not in (*_FREQUENCIES, "epp"):
            self._fail(word.start("cpus"), f"{name} is not an attribute of single CPUs")
        if name == "siblings":
            if value not in SIBLINGS:
                self._fail(where, f"siblings are {', '.join(SIBLINGS)}")
            self.spec.siblings = value
        elif name == "distances":
            rows = value.split("/")
            self.spec.distances = tuple(
                tuple(self._number(cell, where, 255) for cell in row.split(",")) for row in rows
            )
        elif name == "epp":
            self._frequency("energy_performance_preference", word, value)
        elif name in _FREQUENCIES:
            match = _HERTZ.fullmatch(value)
            if match is None:
                self._fail(where, "expected a frequency such as 2.1GHz or 800MHz")
            khz = round(float(match[1]) * _KHZ[match[2].lower()])
            file = "base_frequency" if name == "base" else f"cpuinfo_{name}_freq"
            self._frequency(file, word, str(khz))
        else:
            setattr(self.spec, name, self._cpus(value, where))

    def _frequency(self, file: str, word: re.Match[str], text: str) -> None:
        cpus = None if word["cpus"] is None else self._cpus(word["cpus"], word.start("cpus"))
        self.spec.frequencies.setdefault(file, []).append((cpus, text))

    def _cpus(self, value: str, where: int) -> CPUSet:
        try:
            return CPUSet.parse(value)
        except ValueError as error:
            self._fail(where, str(error))

    def _number(self, value: str, where: int, most: int) -> int:
        if not _NUMBER.fullmatch(value) or int(value) > most:
            self._fail(where, f"expected a number from 0 to {most}")
        return int(value)

    def _size(self, value: str, where: int) -> int:
        match = _SIZE.fullmatch(value)
        if match is None:
            self._fail(where, "expected a size such as 16GiB, 512MiB or 0")
        return int(match[1]) << 10 * " kmgt".index((match[2] or " ").lower())

    def _complete(self) -> None:
        """Add the levels left out, then check what only the whole can tell."""
        counts = self.spec.counts
        if not counts:
            self._fail(len(self.text), "expected a level, such as package:2 core:4 pu:2")
        if "core" not in counts:  # threads without cores are cores of one thread
            counts["core"] = counts.pop("pu", 1)
        counts.setdefault("pu", 1)
        order = list(counts)
        for level, outer in (
            ("package", ()),
            ("numa", ()),
            ("die", ("package",)),
            ("l3", ("package", "die", "numa")),
        ):
            if level not in counts:
                order.insert(_after(order, *outer), level)
        if "l2" not in counts:
            order.insert(_after(order, "core"), "l2")
        self.spec.counts = {level: counts.get(level, 1) for level in order}
        self._check_sizes()

    def _check_sizes(self) -> None:
        spec, end = self.spec, len(self.text)
        total = spec.cpu_count()
        if total > MOST_CPUS:
            self._fail(end, f"{total} CPUs; the most is {MOST_CPUS}")
        everything = CPUSet(range(total))
        for name in ("offline", "isolated", "nohz_full"):
            if not getattr(spec, name) <= everything:
                self._fail(end, f"{name} names CPUs beyond the last one, {total - 1}")
        if spec.offline == everything:
            self._fail(end, "no CPU is left online")
        nodes = spec.units("numa") + sum(spec.units(each.level) for each in spec.memory_only)
        if nodes > MOST_NODES:
            self._fail(end, f"{nodes} NUMA nodes; the most is {MOST_NODES}")
        devices = sum(map(len, spec.list_devices().values()))
        if devices > MOST_DEVICES:
            self._fail(end, f"{devices} devices; the most is {MOST_DEVICES}")
        for node in range(spec.units("numa")):
            pages = sum(size * count for size, count in spec.pages_of(node).items())
            if pages > spec.memory_of(node):
                self._fail(end, f"NUMA node {node} has less memory than huge pages")
        rows = spec.distances
        if rows and {len(rows), *map(len, rows)} != {nodes}:
            self._fail(end, f"distances need {nodes} rows of {nodes} numbers")


def _after(order: list[str], *levels: str) -> int:
    """Return the place in *order* behind all of *levels*."""
    return max((order.index(level) + 1 for level in levels if level in order), default=0)
