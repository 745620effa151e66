"""What a simulation came to: waits by kind of job, utilisation, racks, moves, refusals."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping
from math import ceil

from msgspec import Struct

from nri_policy.cluster.objects.document import PODS, Amounts
from nri_policy.cluster.objects.group import PlacementGroup, hosts_of
from nri_policy.cluster.objects.node import HOSTNAME, ClusterNode

POINTS = 200  # of a time line


class KindFigures(Struct, frozen=True, rename="camel"):
    """The jobs of one kind; waits in seconds, of those that were placed."""

    kind: str
    jobs: int
    placed: int
    refused: int  # they would not fit an empty cluster
    mean_wait: float
    p99_wait: float
    longest_wait: float
    racks: float  # domains above hosts, for one job


class Point(Struct, frozen=True):
    """A moment, in seconds: the share of what is used most that was used, and who waited."""

    at: float
    used: float
    waiting: int


class Figures(Struct, frozen=True, rename="camel"):
    """What came of all jobs; utilisation until the last one came."""

    seconds: float
    kinds: list[KindFigures]
    utilisation: dict[str, float]  # share, by resource that the jobs ask for
    moves: int  # pods that were placed anew, because a node failed
    refusals: int  # tries that did not place a group
    timeline: list[Point]


class _Job(Struct):
    kind: str
    since: float
    wait: float | None = None
    refused: bool = False
    racks: int = 0


class Recorder:
    """Takes in what becomes of jobs as time goes on, and makes figures of it."""

    def __init__(self, nodes: Iterable[ClusterNode], levels: list[str]) -> None:
        """Racks are domains of the last of the *levels* above hosts."""
        self._capacity: Counter[str] = Counter()
        self._rack: dict[str, str] = {}
        above = levels[-2:-1] if levels[-1] == HOSTNAME else levels[-1:]
        for node in nodes:
            self._capacity.update(node.allocatable)
            host = node.labels.get(HOSTNAME, node.name)
            self._rack[host] = node.labels.get(above[0], "") if above else ""
        self.moves = self.refusals = 0
        self._jobs: dict[str, _Job] = {}
        self._used: Counter[str] = Counter()
        self._history: list[tuple[float, dict[str, int], int]] = []  # from then on
        self._last_came = 0.0

    def came(self, name: str, kind: str, now: float) -> None:
        """Take in that a job came."""
        self._jobs[name] = _Job(kind, now)
        self._last_came = now

    def note_placement(self, name: str, group: PlacementGroup, now: float) -> None:
        """Take in that a job got its places; one that had places before waits no longer."""
        job = self._jobs.get(name)
        if job is not None and job.wait is None:
            job.wait, job.refused = now - job.since, False
            job.racks = len({self._rack.get(host, "") for host in hosts_of(group)})

    def note_refusal(self, name: str, *, hopeless: bool) -> None:
        """Take in that a job was tried and did not fit; *hopeless*: not even an empty cluster."""
        self.refusals += 1
        if name in self._jobs:
            self._jobs[name].refused = hopeless

    def use(self, amounts: Amounts) -> None:
        """Take in that so much more is used, or less where an amount is negative."""
        for name, amount in amounts.items():
            self._used[name] += amount

    def note(self, now: float, waiting: int) -> None:
        """Take in how things are from now on."""
        self._history.append((now, dict(self._used), waiting))

    def figures(self, now: float) -> Figures:
        """Return what came of everything until now."""
        until = self._last_came or now
        kinds = {each.kind: None for each in self._jobs.values()}
        shares = {
            name: self._mean(name, until) / capacity
            for name, capacity in sorted(self._capacity.items())
            if capacity and name != PODS and any(used.get(name) for _, used, _ in self._history)
        }
        main = max(shares, key=lambda name: shares[name], default=None)
        return Figures(
            seconds=now,
            kinds=[self._of_kind(kind) for kind in sorted(kinds)],
            utilisation=shares,
            moves=self.moves,
            refusals=self.refusals,
            timeline=self._timeline(main, now),
        )

    def _of_kind(self, kind: str) -> KindFigures:
        jobs = [each for each in self._jobs.values() if each.kind == kind]
        waits = sorted(each.wait for each in jobs if each.wait is not None)
        racks = [each.racks for each in jobs if each.wait is not None]
        return KindFigures(
            kind=kind,
            jobs=len(jobs),
            placed=len(waits),
            refused=sum(each.refused for each in jobs),
            mean_wait=sum(waits) / max(len(waits), 1),
            p99_wait=waits[ceil(0.99 * len(waits)) - 1] if waits else 0.0,
            longest_wait=waits[-1] if waits else 0.0,
            racks=sum(racks) / max(len(racks), 1),
        )

    def _mean(self, name: str, until: float) -> float:
        """Return how much of a resource was used, on average until then."""
        total = 0.0
        for (at, used, _), (after, *_) in zip(
            self._history, [*self._history[1:], (until, {}, 0)], strict=True
        ):
            total += used.get(name, 0) * max(0.0, min(after, until) - at)
        return total / until if until else 0.0

    def _timeline(self, name: str | None, now: float) -> list[Point]:
        times = [at for at, *_ in self._history]
        points = []
        for number in range(POINTS + 1 if now and times else 0):
            at = now * number / POINTS
            _, used, waiting = self._history[max(0, bisect_right(times, at) - 1)]
            share = used.get(name, 0) / self._capacity[name] if name else 0.0
            points.append(Point(at, round(share, 4), waiting))
        return points


def amounts_of(group: PlacementGroup, kinds: Mapping[str, Amounts], times: int) -> Amounts:
    """Return what the places of a group use in all, *times* times; *kinds* are by pod set."""
    total: Counter[str] = Counter()
    for each in group.status.assignments:
        pods = sum(one.count for one in each.domains)
        for name, amount in kinds[each.pod_set].items():
            total[name] += amount * pods * times
    return dict(total)
