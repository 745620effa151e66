"""Two clusters that holds once closed, or let a group starve in, as they were found."""

from __future__ import annotations

import random
from typing import Any

from nri_policy.cluster.objects.settings import read_settings
from nri_policy.cluster.offline import cluster_of, engine_of
from nri_policy.cluster.requests.group import hosts_of
from nri_policy.cluster.simulation.playback import Simulation
from nri_policy.cluster.simulation.steps import SimulationStep
from nri_policy.cluster.snapshot import read_snapshot
from tests.unit.cluster.written import HOSTNAME, Object, group, node, pod_set, pod_spec, settings

RACK = "example.com/rack"
HOUR = 3600.0


def simulation(nodes: list[Object], pods: list[Object], **spec: Any) -> Simulation:
    snapshot = read_snapshot({"nodes": nodes, "pods": pods})
    cluster = cluster_of(snapshot)
    engine = engine_of(snapshot, read_settings(settings("rack", HOSTNAME, **spec)), cluster)
    return Simulation(engine, cluster, snapshot.classes)


def apply(at: float, runs: float, kind: str, made: Object) -> SimulationStep:
    item = made | {"apiVersion": "placement.nri/v1alpha1", "kind": "PlacementGroup"}
    return SimulationStep(at=f"{at:.0f}s", runs=f"{runs:.0f}s", kind=kind, apply=[item])


def test_a_gang_of_whole_hosts_where_a_daemonset_has_a_tenth_of_a_cpu_closes_nothing() -> None:
    nodes = [node(f"h{at:02}", RACK="r0", cpu=16) for at in range(16)]
    agents = [
        {
            "metadata": {"name": f"agent-{at}"},
            "spec": pod_spec({"cpu": "100m"}, nodeName=f"h{at:02}", restartPolicy="Always"),
            "status": {"phase": "Running"},
        }
        for at in range(16)
    ]
    play = simulation(nodes, agents)
    chance = random.Random(1)
    play.play(apply(0, HOUR, "whole", group(pod_set(2, cpu=16), name="whole")))
    for number in range(240):
        made = group(pod_set(2, cpu=chance.randint(1, 7)), name=f"job-{number}")
        play.play(apply(60 * number, chance.uniform(60, HOUR), "job", made))
    play.groups.end()
    jobs, whole = play.figures().kinds
    assert (jobs.placed, jobs.never_placed) == (240, 0)
    assert jobs.longest_wait is not None
    assert jobs.longest_wait < HOUR
    lack = "DaemonSets and services leave at most 15.9 of 16 CPUs on each host"
    assert (whole.placed, whole.why) == (
        0,
        f"default/whole: fits nowhere beside what stays: {lack}",
    )


def test_a_running_group_that_has_lost_a_host_gets_one_at_a_load_of_small_jobs() -> None:
    """Four hosts of 8 GPUs; one of two that a group has is lost, and one-GPU jobs fill the rest."""
    nodes = [node(f"h{at}", RACK="r0", cpu=64, gpu=8) for at in range(4)]
    play = simulation(nodes, [], failure={"failFast": False})
    train = group(pod_set(2, {"required": RACK}, gpu=8), name="train")
    play.play(apply(0, 1000 * HOUR, "train", train))
    chance, now, failed = random.Random(1), 0.0, False
    while now < 48 * HOUR:
        now += chance.expovariate(0.9 * 16 / HOUR)
        if now > 24 * HOUR and not failed:
            failed = True
            lost = min(hosts_of(play.groups.by_key["default", "train"]))
            play.play(SimulationStep(at=f"{24 * HOUR:.0f}s", fail=[lost]))
            assert play.groups.by_key["default", "train"].status.state == "Degraded"
        seconds = min(chance.expovariate(1 / HOUR), 5 * HOUR)
        made = group(pod_set(1, gpu=1), name=f"small-{now:.0f}")
        play.play(apply(now, max(1.0, seconds), "small", made))
        if now > 36 * HOUR:
            assert play.groups.by_key["default", "train"].status.state == "Placed"
