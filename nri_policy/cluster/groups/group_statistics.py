"""Counts of the group controller, for metrics."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import get_args

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from nri_policy.cluster.requests.group import State

_BOUNDS = (0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14400.0)  # seconds
_PREFIX = "nri_policy_cluster_"


def label_metric(
    kind: type[CounterMetricFamily | GaugeMetricFamily],
    name: str,
    text: str,
    label: str,
    numbers: Mapping[str, float],
) -> Metric:
    """Return a metric with a number for each value of its only label."""
    family = kind(name, text, labels=[label])
    for value, number in numbers.items():
        family.add_metric([value], number)
    return family


class GroupStatistics:
    """Counts from when this replica began."""

    def __init__(self) -> None:
        self.tries: Counter[str] = Counter()  # attempts to place a group, by outcome
        self.replacements = 0
        self.preemptions = 0  # groups that had to leave
        self._placed = [0] * (len(_BOUNDS) + 1)  # by time
        self._seconds = 0.0

    def count_placement(self, seconds: float) -> None:
        """Count a group that was placed *seconds* after it was complete."""
        self.tries["placed"] += 1
        self._placed[bisect_left(_BOUNDS, seconds)] += 1
        self._seconds += seconds

    def collect(  # noqa: PLR0913 - keywords: what others count
        self,
        states: Counter[str],
        oldest: float,
        waiting: int,
        *,
        reserved: int,
        holds_ended: int,
        opened: int,
    ) -> Iterator[Metric]:
        """Yield the metrics, with the groups of each state, and what the queue and the writer say.

        *oldest* is for how many seconds the first of those *waiting* has been, *reserved* how many
        hosts are set aside for some of them, *holds_ended* how often that ended without a place.
        """
        every = {state: states[state] for state in get_args(State)}
        yield label_metric(
            GaugeMetricFamily, f"{_PREFIX}groups", "Placement groups, by state.", "state", every
        )
        yield GaugeMetricFamily(f"{_PREFIX}queue_groups", "Groups that wait for places.", waiting)
        yield GaugeMetricFamily(
            f"{_PREFIX}queue_oldest_seconds", "For how long the oldest of them has waited.", oldest
        )
        yield GaugeMetricFamily(
            f"{_PREFIX}reserved_hosts",
            "Hosts set aside for groups that have waited long.",
            reserved,
        )
        text = "Tries to place a group, by what came of them."
        yield label_metric(CounterMetricFamily, f"{_PREFIX}tries", text, "outcome", self.tries)
        total, buckets = 0, []
        for bound, number in zip((*map(str, _BOUNDS), "+Inf"), self._placed, strict=True):
            total += number
            buckets.append((bound, total))
        yield HistogramMetricFamily(
            f"{_PREFIX}time_to_placement_seconds",
            "From when all pods of a group are there to its places.",
            buckets=buckets,
            sum_value=self._seconds,
        )
        for name, text, number in (
            ("gates_opened", "Pods that were let go.", opened),
            ("replacements", "Groups whose lost pods were placed anew.", self.replacements),
            (
                "holds_ended",
                "Times that hosts were set aside for a group in vain: they became no freer.",
                holds_ended,
            ),
            ("preemptions", "Groups that had to leave for others.", self.preemptions),
        ):
            yield CounterMetricFamily(f"{_PREFIX}{name}", text, number)
