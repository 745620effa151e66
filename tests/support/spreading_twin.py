"""Spreading, plainly: pod by pod at every branch. The twin of the kernel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction


@dataclass
class Host:
    name: str
    values: tuple[str, ...]  # of the preferences
    room: int  # pods that still fit, `max-per-host` aside
    own: int = 0  # running pods of those who are spread
    every: int = 0  # all running pods
    failures: int = 0


@dataclass
class Preference:
    packed: bool = False
    weights: dict[str, int] = field(default_factory=dict)


def spread(
    hosts: list[Host], pods: int, preferences: list[Preference], most: int | None = None
) -> tuple[dict[str, int], int]:
    """Pods by host, and those without a place."""
    for host in hosts:
        if most is not None:
            host.room = max(min(host.room, most - host.own), 0)
    placed = min(pods, sum(host.room for host in hosts))
    given = dict.fromkeys((host.name for host in hosts), 0)
    below(hosts, placed, preferences, 0, given)
    return {name: number for name, number in given.items() if number}, pods - placed


def below(
    hosts: list[Host], pods: int, preferences: list[Preference], level: int, given: dict[str, int]
) -> None:
    """Split *pods* among the branches of *hosts*, and on down."""
    if level == len(preferences):
        for _ in range(pods):
            best = min(
                (host for host in hosts if host.room > given[host.name]),
                key=lambda host: (
                    host.failures if host.failures >= 5 else 0,
                    host.own + given[host.name],
                    host.every + given[host.name],
                    host.name,
                ),
            )
            given[best.name] += 1
        return
    branches: dict[str, list[Host]] = {}
    for host in sorted(hosts, key=lambda host: host.values[level]):
        branches.setdefault(host.values[level], []).append(host)
    inner = preferences[level + 1] if level + 1 < len(preferences) else Preference()

    def inside(value: str, pods: int) -> int:
        """Pods per weight, rounded down, of the branch in *value* that would take the next one."""
        own: dict[str, list[Host]] = {}
        for host in branches[value]:
            finer = host.values[level + 1] if level + 1 < len(preferences) else host.name
            own.setdefault(finer, []).append(host)
        return lowest(own, pods, inner)

    parts = split(branches, pods, preferences[level], inside)
    for value, branch in branches.items():
        below(branch, parts[value], preferences, level + 1, given)


def lowest(branches: dict[str, list[Host]], pods: int, preference: Preference) -> int:
    """The fewest per weight of those with room, once *pods* went to the fewest; packed: 0."""
    if preference.packed:
        return 0
    room = {value: sum(host.room for host in branch) for value, branch in branches.items()}
    have = {value: sum(host.own for host in branch) for value, branch in branches.items()}

    def fill(value: str) -> Fraction:
        return Fraction(have[value], preference.weights.get(value, 1))

    for _ in range(pods):
        value = min((each for each in branches if room[each]), key=fill)
        room[value] -= 1
        have[value] += 1
    return int(min((fill(each) for each in branches if room[each]), default=Fraction(0)))


def split(
    branches: dict[str, list[Host]],
    pods: int,
    preference: Preference,
    inside: Callable[[str, int], int],
) -> dict[str, int]:
    """Pods by value; of equal ones to the labelled, *inside* which the fewest meet the next."""
    room = {value: sum(host.room for host in branch) for value, branch in branches.items()}
    have = {value: sum(host.own for host in branch) for value, branch in branches.items()}
    parts = dict.fromkeys(branches, 0)
    while pods:
        left = [value for value in branches if room[value] > parts[value]]
        if preference.packed:
            enough = [value for value in left if room[value] >= pods]
            if enough:
                value = min(enough, key=lambda value: (room[value], not value, value))
            else:
                value = min(left, key=lambda value: (-room[value], not value, value))
            parts[value] = min(pods, room[value])
            pods -= parts[value]
        else:
            weights = preference.weights

            def order(value: str) -> tuple[Fraction, int, bool, int, str]:
                weight = weights.get(value, 1)  # noqa: B023 - called at once
                fill = Fraction(have[value] + parts[value], weight)
                return fill, -weight, not value, inside(value, parts[value]), value

            parts[min(left, key=order)] += 1
            pods -= 1
    return parts
