"""What a simulation came to: waits by kind of job, utilisation, racks, moves, attempts."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping
from math import ceil

from msgspec import Struct

from nri_policy.cluster.objects.document import PODS, Amounts
from nri_policy.cluster.objects.node import HOSTNAME, ClusterNode
from nri_policy.cluster.requests.group import PlacementGroup, hosts_of

POINTS = 200  # of a time line


class KindFigures(Struct, frozen=True, rename="camel"):
    """The jobs of one kind; waits of placed jobs in seconds, None if none was placed."""

    kind: str
    jobs: int
    placed: int
    never_placed: int
    mean_wait: float | None
    p99_wait: float | None
    longest_wait: float | None
    racks: float | None  # domains above hosts, for one job
    why: str = ""  # the last message of one that was never placed


class Point(Struct, frozen=True):
    """A moment in seconds, the used share of the scarcest resource, and how many groups waited."""

    at: float
    used: float
    waiting: int


class Figures(Struct, frozen=True, rename="camel"):
    """Figures of all jobs; utilisation until the last came, or the end if all came first."""

    seconds: float
    used_until: float  # seconds, of the utilisation
    kinds: list[KindFigures]
    utilisation: dict[str, float]  # share, by resource that the jobs ask for
    moves: int  # pods that were placed anew, because a node failed
    lost: int  # times that a group had to start again because a node failed
    preempted: int  # times that a group left for one of higher priority
    attempts_without_room: int
    timeline: list[Point]


class _Job(Struct):
    kind: str
    since: float
    wait: float | None = None
    message: str = ""  # of the last attempt
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
            host = node.host
            self._rack[host] = node.labels.get(above[0], "") if above else ""
        self.moves = self.lost = self.preempted = self.attempts_without_room = 0
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
            job.wait = now - job.since
            job.racks = len({self._rack.get(host, "") for host in hosts_of(group)})

    def note_refusal(self, name: str, message: str) -> None:
        """Take in that a job was tried and did not fit."""
        self.attempts_without_room += 1
        if name in self._jobs:
            self._jobs[name].message = message

    def examples(self) -> set[str]:
        """Return the name of the first job of each kind that has not been placed."""
        first: dict[str, str] = {}
        for name, job in self._jobs.items():
            if job.wait is None:
                first.setdefault(job.kind, name)
        return {*first.values()}

    def explain(self, name: str, message: str) -> None:
        """Take in why a job does not fit, in other words than when it was tried last."""
        self._jobs[name].message = message

    def use(self, amounts: Amounts) -> None:
        """Take in that so much more is used, or less where an amount is negative."""
        for name, amount in amounts.items():
            self._used[name] += amount

    def share(self) -> float:
        """Return how much of the resource that is used most is used by jobs now."""
        capacity = self._capacity
        return max(
            (used / capacity[name] for name, used in self._used.items() if name != PODS and used),
            default=0.0,
        )

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
            used_until=until,
            kinds=[self._of_kind(kind) for kind in sorted(kinds)],
            utilisation=shares,
            moves=self.moves,
            lost=self.lost,
            preempted=self.preempted,
            attempts_without_room=self.attempts_without_room,
            timeline=self._timeline(main, now),
        )

    def _of_kind(self, kind: str) -> KindFigures:
        jobs = {name: each for name, each in self._jobs.items() if each.kind == kind}
        waits = sorted(each.wait for each in jobs.values() if each.wait is not None)
        racks = [each.racks for each in jobs.values() if each.wait is not None]
        left = (f"{name}: {each.message}" for name, each in jobs.items() if each.wait is None)
        return KindFigures(
            kind=kind,
            jobs=len(jobs),
            placed=len(waits),
            never_placed=len(jobs) - len(waits),
            mean_wait=sum(waits) / len(waits) if waits else None,
            p99_wait=waits[ceil(0.99 * len(waits)) - 1] if waits else None,
            longest_wait=waits[-1] if waits else None,
            racks=sum(racks) / len(racks) if racks else None,
            why=next(left, ""),
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
