"""The rules of NUMA fit (filter and score), plainly: the twin of the kernel.

Amounts are integers in billionths; sets of zones are tried one by one.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import combinations

UNIT = 10**9

Request = dict[str, int]


@dataclass
class Zone:
    id: int
    available: Request
    costs: dict[int, int] = field(default_factory=dict)


@dataclass
class Node:
    allocatable: set[str]
    policy: str = "single-numa-node"
    scope: str = "container"
    max_numa: int = 8
    zones: list[Zone] = field(default_factory=list)
    known: bool = True  # whether there is a NodeResourceTopology
    stale: bool = False


@dataclass
class Pod:
    """In `steps` what each container is called and asks; in `pod` what all ask together."""

    qos: str
    steps: list[tuple[str, Request]]
    pod: Request
    sidecars_stay: bool = False

    @property
    def native_only(self) -> bool:
        return not any(foreign(name) for _, asked in self.steps for name in asked)


def foreign(name: str) -> bool:
    return "/" in name and "kubernetes.io/" not in name


def shared(name: str) -> bool:
    return name in ("cpu", "memory") or name.startswith("hugepages-")


def zone_for(node: Node, zones: list[Zone], qos: str, asked: Request) -> int | None:
    """The lowest zone that fits; -1 if nothing ties it to one, None if none fits."""
    left, tied = list(zones), False
    for name, amount in asked.items():
        if not amount:
            continue
        if name not in node.allocatable:
            return None
        listed = [zone for zone in zones if name in zone.available]
        if not listed and (foreign(name) or name in ("ephemeral-storage", "storage")):
            continue
        loose = shared(name) and qos != "Guaranteed"
        left = [
            zone for zone in left if zone in listed and (loose or zone.available[name] >= amount)
        ]
        tied = True
    if not tied:
        return -1
    return left[0].id if left else None


def take(zones: list[Zone], at: int, qos: str, asked: Request) -> list[Zone]:
    def rest(zone: Zone) -> Zone:
        if zone.id != at:
            return zone
        available = {
            name: amount - (asked.get(name, 0) if qos == "Guaranteed" or not shared(name) else 0)
            for name, amount in zone.available.items()
        }
        return Zone(zone.id, available, zone.costs)

    return [rest(zone) for zone in zones]


def fit(node: Node, pod: Pod) -> str:
    """The reason why it does not fit, empty where it does."""
    if pod.qos == "BestEffort" and pod.native_only:
        return ""
    if node.stale:
        return "invalid node topology data"
    if not node.known or node.policy != "single-numa-node":
        return ""
    if node.scope == "pod":
        return (
            "" if zone_for(node, node.zones, pod.qos, pod.pod) is not None else "cannot align pod"
        )
    zones = node.zones
    for kind, asked in pod.steps:
        at = zone_for(node, zones, pod.qos, asked)
        if at is None:
            return f"cannot align {kind}"
        if kind == "container" or (kind == "sidecar container" and pod.sidecars_stay):
            zones = take(zones, at, pod.qos, asked)
    return ""


def whole(amount: int) -> int:
    """Rounded away from zero."""
    return -(-amount // UNIT) if amount >= 0 else amount // UNIT


def least_allocated(asked: Request, available: Request, weights: dict[str, int]) -> int:
    def one(amount: int, free: int) -> int:
        if free == 0 or amount > free:
            return 0
        return (whole(free) - whole(amount)) * 100 // whole(free)

    return weighted(one, asked, available, weights)


def most_allocated(asked: Request, available: Request, weights: dict[str, int]) -> int:
    def one(amount: int, free: int) -> int:
        if free == 0 or amount > free:
            return 0
        return whole(amount) * 100 // whole(free)

    return weighted(one, asked, available, weights)


def weighted(
    one: Callable[[int, int], int], asked: Request, available: Request, weights: dict[str, int]
) -> int:
    score = total = 0
    for name, amount in asked.items():
        weight = max(weights.get(name, 1), 1)
        score += one(amount, available.get(name, 0)) * weight
        total += weight
    return score // total if total else 0


def balanced(asked: Request, available: Request, _weights: dict[str, int]) -> int:
    fractions = []
    for name, amount in sorted(asked.items()):
        free = whole(available.get(name, 0))
        fraction = whole(amount) / free if free else 1.0
        if fraction > 1:
            return 0
        fractions.append(fraction)
    n = len(fractions)
    if n < 2:
        return 100 if n else 0
    mean = added(fractions) / n
    off = [fraction - mean for fraction in fractions]
    variance = (added([each * each for each in off]) - added(off) ** 2 / n) / (n - 1)
    return max(int((1 - variance) * 100), 0)


def added(values: Sequence[float]) -> float:
    """One after the other: `sum` of later Pythons is more exact than upstream is."""
    total = 0.0
    for value in values:
        total += value
    return total


STRATEGIES = {
    "LeastAllocated": least_allocated,
    "MostAllocated": most_allocated,
    "BalancedAllocation": balanced,
}


def score(node: Node, pod: Pod, strategy: str, weights: dict[str, int]) -> int:
    if pod.qos != "Guaranteed":
        return 100
    if not node.known or node.stale:
        return 0
    if strategy == "LeastNUMANodes":
        return least_numa(node, pod)
    if node.policy != "single-numa-node":
        return 0
    rule = STRATEGIES[strategy]

    def of(asked: Request) -> int:
        scores = [rule(asked, zone.available, weights) for zone in node.zones]
        return min((one for one in scores if one), default=0)

    if node.scope == "pod":
        return of(pod.pod)
    scores = [of(asked) for _, asked in pod.steps]
    return sum(scores) // len(scores) if scores else 0


def distance(zones: Sequence[Zone]) -> float:
    """In float32, as upstream has it."""

    def f32(value: float) -> float:
        result: float = struct.unpack("f", struct.pack("f", value))[0]
        return result

    total = 0
    for one in zones:
        for other in zones:
            total += one.costs.get(other.id, 255)
    return f32(f32(total) / f32(len(zones) ** 2))


def cover(zones: list[Zone], asked: Request) -> tuple[list[Zone], bool] | None:
    """The nearest of the smallest sets that hold *asked*; whether no set of that size is nearer."""
    for count in range(1, len(zones) + 1):
        sets = list(combinations(zones, count))
        fitting = [
            each
            for each in sets
            if all(name in zone.available for zone in each for name in asked)
            and all(
                sum(zone.available[name] for zone in each) >= amount
                for name, amount in asked.items()
            )
        ]
        if fitting:
            best = min(fitting, key=distance)
            return list(best), distance(best) == min(map(distance, sets))
    return None


def least_numa(node: Node, pod: Pod) -> int:
    unit = 100 // node.max_numa
    steps = [("", pod.pod)] if node.scope == "pod" else pod.steps
    zones, most, nearest, any_asked = node.zones, 0, True, False
    for _, asked in steps:
        listed = {name for zone in zones for name in zone.available}
        if not listed & asked.keys():
            continue
        if asked.keys() - listed:
            return 0
        any_asked = True
        found = cover(zones, asked)
        if found is None:
            return 0
        chosen, best = found
        most, nearest = max(most, len(chosen)), nearest and best
        left = dict(asked)
        for zone in chosen:
            part = {name: min(left[name], max(zone.available[name], 0)) for name in left}
            zones = take(zones, zone.id, "Guaranteed", part)
            left = {name: left[name] - part[name] for name in left}
    if not any_asked:
        return 100
    return max(100 - most * unit + (unit // 2 if nearest else 0), 0)
