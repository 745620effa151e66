"""A simulated week of jobs on 128 hosts with 8 GPUs each: how long who waits, by the queue's rule.

Small jobs of one GPU, gangs that need one rack, and gangs that would like one. Beside it the rule
that the queue had first, of which this is to be better: a group that had waited `groups.timeout`
let nobody behind it be tried.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from statistics import mean

from nri_policy.cluster.engine.engine import Engine
from nri_policy.cluster.groups.queue import Queue
from nri_policy.cluster.groups.table import GroupTable
from nri_policy.cluster.objects.metadata import Key
from nri_policy.cluster.objects.priority import PriorityClasses
from nri_policy.cluster.objects.settings import read_settings
from nri_policy.cluster.offline import cluster_of, engine_of
from nri_policy.cluster.simulation import synthetic
from nri_policy.cluster.simulation.figures import Figures, KindFigures
from nri_policy.cluster.simulation.playback import Simulation
from nri_policy.cluster.simulation.synthetic_jobs import make_jobs
from nri_policy.cluster.snapshot import read_snapshot
from nri_policy.cluster.view import Cluster

SEEDS = 8
CLUSTER = "block:2 rack:4 host:16 cpu:128 memory:1Ti gpu:8"
WEEK = (
    "load:0.8 for:7d; small share:80 pods:1 gpu:1 cpu:8 runs:1h;"
    " gang share:15 pods:2-8 gpu:8 cpu:64 required:rack runs:2h;"
    " wide share:5 pods:4-24 gpu:8 cpu:64 preferred:rack runs:2h"
)
MANY = "jobs:1500 for:4d" + WEEK[WEEK.index(";") :]


class _FirstQueue(Queue):
    """No group is tried behind one that has waited for `groups.timeout`."""

    now = timeout = 0.0

    def due(self) -> Iterator[Key]:
        for key, place in self._in_order():
            if place.tried != self._change:
                yield key
            waits = place.refused and not place.hopeless
            if key in self and waits and self.now >= place.since + self.timeout:
                return


class _FirstEdition(Simulation):
    """The same cluster with the first rule: nothing is set aside."""

    def __init__(self, engine: Engine, cluster: Cluster, classes: PriorityClasses) -> None:
        super().__init__(engine, cluster, classes)
        queue = _FirstQueue(GroupTable())
        queue.timeout = engine.state.settings.groups.timeout

        def hold(now: float, _: object) -> None:
            queue.now = now

        waiting = self.groups.waiting
        waiting.queue, waiting.hold = queue, hold  # type: ignore[method-assign, assignment]


def played(kind: type[Simulation], jobs: str, seed: int) -> tuple[Figures, float]:
    """Figures of the jobs, and the seconds of CPU time that it took."""
    made = synthetic.make_cluster(CLUSTER)
    settings = read_settings(made.settings)
    snapshot = read_snapshot(made.cluster)
    cluster = cluster_of(snapshot)
    engine = engine_of(snapshot, settings, cluster)
    levels = settings.topologies[0].levels
    coming = make_jobs(jobs, seed, engine.state.nodes.values(), levels)
    began = time.process_time()
    simulation = kind(engine, cluster, snapshot.classes)
    simulation.run(coming)
    figures = simulation.figures()
    return figures, time.process_time() - began


def _row(name: str, weeks: list[Figures]) -> None:
    for number, kind in enumerate(each.kind for each in weeks[0].kinds):
        of_kind = [each.kinds[number] for each in weeks]

        def minutes(field: str, of: list[KindFigures] = of_kind) -> float:
            return float(mean(getattr(each, field) or 0.0 for each in of)) / 60

        racks = mean(each.racks or 0.0 for each in of_kind)
        jobs = round(mean(each.jobs for each in of_kind))
        print(
            f"{name:14} {kind:8} {jobs:6} {minutes('mean_wait'):9.1f} {minutes('p99_wait'):9.1f}"
            f" {minutes('longest_wait'):9.1f} {racks:6.2f}"
        )
    used = mean(each.utilisation["gpu"] for each in weeks)
    print(f"{name:14} {'GPUs used':8} {used:.3f}")


def main() -> None:
    """Print both rules' waits in minutes, means over all seeds, and how fast it is played."""
    heads = f"{'jobs':>6} {'mean':>9} {'p99':>9} {'longest':>9} {'racks':>6}"
    print(f"{'minutes':14} {'kind':8} {heads}")
    for name, kind in (("hosts aside", Simulation), ("first edition", _FirstEdition)):
        _row(name, [played(kind, WEEK, seed)[0] for seed in range(SEEDS)])
    taken = [played(Simulation, MANY, seed)[1] for seed in range(3)]
    print(f"1,500 jobs take {min(taken):.2f} s")
