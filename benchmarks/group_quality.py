"""How good placements of groups are, held against trying everything on small clusters.

Prints the table of docs/cluster-figures.md: what is refused that fits, how many racks and hosts are
touched, what replacement breaks, which plans are missed, which racks jobs share.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import combinations

from nri_policy.cluster import offline
from nri_policy.cluster.objects.settings import read_settings
from nri_policy.cluster.planning.moves import plan_moves
from nri_policy.cluster.requests.group import read_group
from nri_policy.cluster.simulation import synthetic
from nri_policy.cluster.snapshot import read_snapshot
from tests.property.test_moves import fewest_moves, small_cluster
from tests.property.test_pod_sets import hosts_in_racks, some_pods, written
from tests.support.exact_placement import Path, Pods, fit_together
from tests.unit.cluster.written import HOSTNAME, Object, group, node, placed, pod_set, settings

RACK = "example.com/rack"
USING = settings("rack", HOSTNAME)
Free = list[tuple[int, ...]]


def small(rng: random.Random) -> tuple[list[Path], Free, Object]:
    """Return racks of hosts: paths, CPUs and GPUs that are free, and the cluster."""
    paths = hosts_in_racks(rng)
    free: Free = [(rng.randint(0, 8), rng.randint(0, 8)) for _ in paths]
    nodes = [
        node(host, RACK=rack, cpu=cpu, gpu=gpu)
        for (rack, host), (cpu, gpu) in zip(paths, free, strict=True)
    ]
    return paths, free, {"nodes": nodes}


def refusals(cases: int) -> str:
    rng, feasible, refused = random.Random(3), 0, 0
    for _ in range(cases):
        paths, free, cluster = small(rng)
        sets = [some_pods(rng) for _ in range(rng.choice([2, 2, 3]))]
        if fit_together(paths, free, sets):
            feasible += 1
            asked = group(*(written(number, each) for number, each in enumerate(sets)))
            refused += offline.place(cluster, asked, USING)["state"] != "Placed"
    return f"{refused} of {feasible}"


def leaders_refused(cases: int) -> str:
    """A leader and its workers in one rack, beside a set; a resource of one rack stands for it."""
    rng, feasible, refused = random.Random(8), 0, 0
    for _ in range(cases):
        paths, free, cluster = small(rng)
        cpu, gpu = rng.randint(1, 3), rng.randint(0, 4)
        led = [Pods(1, (2, 0, 1)), Pods(rng.randint(1, 4), (cpu, gpu, 1))]
        beside = some_pods(rng)
        sets = [*led, replace(beside, pod=(*beside.pod, 0))]
        if any(
            fit_together(
                paths,
                [(*own, 9 * (rack == each)) for (each, _), own in zip(paths, free, strict=True)],
                sets,
            )
            for rack, _ in paths
        ):
            feasible += 1
            request = {"required": RACK, "leaderGroup": "led"}
            leader = pod_set(1, request, name="leader", cpu=2)
            workers = pod_set(led[1].count, request, name="workers", cpu=cpu, gpu=gpu)
            asked = group(leader, workers, written(0, beside))
            refused += offline.place(cluster, asked, USING)["state"] != "Placed"
    return f"{refused} of {feasible}"


def some_sets(rng: random.Random, more: int) -> list[Pods]:
    """Return a driver or router, and *more* sets of larger pods."""
    larger = [Pods(rng.randint(2, 4), (rng.randint(1, 3), rng.randint(1, 4))) for _ in range(more)]
    return [Pods(1, (2, 0)), *larger]


def racks_touched(cases: int, more: int) -> str:
    rng, touched, fewest = random.Random(4), 0, 0
    for _ in range(cases):
        paths, free, cluster = small(rng)
        sets = some_sets(rng, more)
        least = fewest_racks(paths, free, sets)
        if least is None:
            continue
        asked = group(*(written(number, each) for number, each in enumerate(sets)))
        asked["spec"]["together"] = {"preferred": RACK}
        status = offline.place(cluster, asked, USING)
        if status["state"] != "Placed":
            continue
        rack_of = {host: rack for rack, host in paths}
        hosts = [one["values"][-1] for each in status["assignments"] for one in each["domains"]]
        touched, fewest = touched + len({rack_of[each] for each in hosts}), fewest + least
    return f"{touched:,} / {fewest:,} = {touched / fewest:.3f}"


def fewest_racks(paths: list[Path], free: Free, sets: list[Pods]) -> int | None:
    racks = sorted({rack for rack, _ in paths})
    for number in range(1, len(racks) + 1):
        for chosen in combinations(racks, number):
            inside = [at for at, (rack, _) in enumerate(paths) if rack in chosen]
            if fit_together([paths[at] for at in inside], [free[at] for at in inside], sets):
                return number
    return None


def aligned(cases: int) -> str:
    made = synthetic.make_cluster("rack:20 host:20 cpu:32 memory:256Gi numa:4")
    rack = made.settings["spec"]["topologies"][0]["levels"][0]
    engine = offline.engine_of(read_snapshot(made.cluster), read_settings(made.settings))
    placed = 0
    for each in (10, 20, 60)[:cases]:
        sets = [
            pod_set(number, {"preferred": rack}, name=f"s{cpu}", spec=guaranteed(cpu))
            for number, cpu in ((each, 3), (each, 4))
        ]
        placed += bool(engine.place(read_group(group(*sets))).assignments)
    return f"{cases - placed} of {cases}"


def guaranteed(cpu: int) -> Object:
    amounts = {"cpu": str(cpu), "memory": "1Gi"}
    container = {"name": "c", "resources": {"requests": amounts, "limits": amounts}}
    return {"containers": [container]}


def broken_layers(cases: int) -> str:
    """Three layers of slices: hosts of four, blocks of four or eight, a datacenter of all."""
    rng, broken, replaced = random.Random(5), 0, 0
    layers = ("example.com/dc", "example.com/block", HOSTNAME)
    using = settings("dc", "block", HOSTNAME)
    for _ in range(cases):
        sizes = rng.choice([(12, 4, 4), (8, 4, 2), (8, 8, 4), (8, 4, 4)])
        slices = [{"level": level, "size": size} for level, size in zip(layers, sizes, strict=True)]
        nodes = [
            node(f"{block}h{host}", DC=block[:2], BLOCK=block, cpu=rng.choice([2, 4, 6, 8]))
            for block in (f"d{dc}b{number}" for dc in range(2) for number in range(3))
            for host in range(3)
        ]
        asked = group(pod_set(sizes[0], {"slices": slices}))
        status = offline.place({"nodes": nodes}, asked, using)
        if status["state"] != "Placed":
            continue
        (own,) = status["assignments"]
        lost = rng.choice(own["domains"])["values"][-1]
        for each in nodes:
            each["spec"]["unschedulable"] = each["metadata"]["name"] == lost
        again = {**asked, "status": {"assignments": [own], "unhealthyNodes": [lost]}}
        status = offline.place({"nodes": nodes}, again, using)
        if status["state"] == "Placed":
            replaced += 1
            broken += any(_parts(status, sizes))
    return f"{broken} of {replaced}"


def _parts(status: Object, sizes: tuple[int, ...]) -> Iterator[bool]:
    for letters, size in zip((2, 4, 6), sizes, strict=True):
        counts: Counter[str] = Counter()
        for one in status["assignments"][0]["domains"]:
            counts[one["values"][-1][:letters]] += one["count"]
        yield any(number % size for number in counts.values())


def missed_plans(cases: int) -> str:
    missed = longer = feasible = 0
    for seed in range(1000, 1000 + 10 * cases):
        snapshot, asked = small_cluster(random.Random(seed))
        least = fewest_moves(snapshot, asked)
        if not least:
            continue
        feasible += 1
        engine = offline.engine_of(snapshot, read_settings(USING))
        found = plan_moves(engine, asked, snapshot)
        missed += not found.moves
        longer += len(found.moves) > least
        if feasible == cases:
            break
    return f"{missed} of {feasible}, {longer} longer than needed"


def hosts_touched(cases: int) -> str:
    rng, touched, fewest = random.Random(6), 0, 0
    for _ in range(cases):
        gpus = [rng.randint(0, 8) for _ in range(8)]
        size = rng.randint(1, 12)
        if sum(gpus) < size:
            continue
        nodes = [node(f"h{at}", RACK="r", gpu=gpu, cpu=64) for at, gpu in enumerate(gpus)]
        request = {"slices": [{"level": RACK, "size": size}]}
        snapshot = read_snapshot({"nodes": nodes})
        engine = offline.engine_of(snapshot, read_settings(USING))
        status = engine.place(read_group(group(pod_set(size, request, gpu=1))))
        touched += len(status.assignments[0].domains)
        left = size
        for gpu in sorted(gpus, reverse=True):
            if left > 0:
                left, fewest = left - gpu, fewest + 1
    return f"{touched} / {fewest} = {touched / fewest:.3f}"


def racks_in_a_zone(cases: int) -> str:
    """A group in one required zone; equal pods, so the racks with the most room are the fewest."""
    rng, touched, fewest = random.Random(7), 0, 0
    using = settings("zone", "rack", HOSTNAME)
    for _ in range(cases):
        room = {
            f"z{zone}r{rack}": [rng.randint(0, 8) for _ in range(3)]
            for zone in range(2)
            for rack in range(4)
        }
        nodes = [
            node(f"{rack}h{host}", ZONE=rack[:2], RACK=rack, gpu=gpu, cpu=64)
            for rack, gpus in room.items()
            for host, gpu in enumerate(gpus)
        ]
        size = rng.randint(8, 48)
        asked = group(pod_set(size, {"required": "example.com/zone"}, gpu=1))
        status = offline.place({"nodes": nodes}, asked, using)
        if status["state"] != "Placed":
            continue
        (hosts,) = placed(status).values()
        touched += len({host[:4] for host in hosts})
        zone = next(iter(hosts))[:2]
        gpus = sorted(sum(own) for rack, own in room.items() if rack.startswith(zone))
        while size > 0:
            size, fewest = size - gpus.pop(), fewest + 1
    return f"{touched:,} / {fewest:,} = {touched / fewest:.3f}"


def exclusive_domains(cases: int) -> str:
    """Jobs one after the other, each with a rack to itself, as users of JobSet and LWS ask."""
    rng = random.Random(9)
    refused = feasible = shared = 0
    for _ in range(cases):
        paths, free, cluster = small(rng)
        there: list[Object] = []
        racks: set[str] = set()
        for job in range(3):
            pods = [replace(some_pods(rng), required=None) for _ in range(rng.choice([1, 2]))]
            inside = [
                [at for at, (own, _) in enumerate(paths) if own == rack]
                for rack in sorted({rack for rack, _ in paths} - racks)
            ]
            asked = group(
                *(exclusive(written(number, each)) for number, each in enumerate(pods)),
                name=f"job{job}",
            )
            status = offline.place({**cluster, "groups": there}, asked, USING)
            fits = any(
                fit_together([paths[at] for at in own], [free[at] for at in own], pods)
                for own in inside
            )
            feasible += fits
            if status["state"] != "Placed":
                refused += fits
                continue
            used = {f"r{host[1]}" for own in placed(status).values() for host in own}
            shared += len(used) > 1 or not used.isdisjoint(racks)
            racks |= used
            there.append(asked | {"status": status})
    return f"{refused} of {feasible}, and {shared} share a rack"


def exclusive(pods: Object) -> Object:
    return pods | {"request": pods["request"] | {"exclusive": RACK}}


# what is counted, the function that counts it, the number of cases
COUNTED: tuple[tuple[str, Callable[[int], str], int], ...] = (
    ("groups of 2 or 3 pod sets refused though an arrangement exists", refusals, 1500),
    ("a leader and its workers beside a pod set refused likewise", leaders_refused, 1000),
    (
        "racks touched by a driver and its workers / the fewest possible",
        partial(racks_touched, more=1),
        800,
    ),
    (
        "racks touched by router, prefill and decode / the fewest possible",
        partial(racks_touched, more=2),
        800,
    ),
    ("two pod sets refused by an empty cluster whose nodes align pods", aligned, 3),
    ("replacements that break one of three layers of slices", broken_layers, 400),
    ("no plan though one to three moves are enough", missed_plans, 60),
    ("hosts touched by a slice in a rack / the fewest possible", hosts_touched, 1993),
    ("racks touched inside a required zone / the fewest possible", racks_in_a_zone, 800),
    ("jobs with a rack to themselves refused though one has room", exclusive_domains, 500),
)


def main() -> None:
    print("| held against trying everything on small clusters | |\n|---|---|")
    for what, count, cases in COUNTED:
        print(f"| {what} | {count(cases)} |")
