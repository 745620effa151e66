"""Groups beside exclusive ones, pods apart in a level or balanced over it, and lost slices.

What fits is found out by trying everything, on trees of a few hosts.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import combinations_with_replacement, groupby

import pytest

from nri_policy.cluster import offline
from tests.property.test_pod_sets import hosts_in_racks, some_pods, written
from tests.support.exact_placement import Amounts, Path, fit_together
from tests.unit.cluster.written import HOSTNAME, Object, group, node, placed, pod_set, settings

RACK, ZONE = "example.com/rack", "example.com/zone"
USING = settings("rack", HOSTNAME)
ZONES = settings("zone", "rack", HOSTNAME)
SELECTOR = {"labelSelector": {"matchLabels": {"app": "web"}}}
LAYERS = ("example.com/dc", "example.com/block", HOSTNAME)


def alone(level: str, *pod_sets: Object, name: str) -> Object:
    """A group with a domain of *level* to itself."""
    first, *others = pod_sets
    own = first["request"] | {"exclusive": level}
    return group(first | {"request": own}, *others, name=name)


@pytest.mark.parametrize("seed", [1, 2])
def test_an_exclusive_group_finds_a_domain_without_another(seed: int) -> None:
    """Groups came before it, exclusive ones of either level and others."""
    rng = random.Random(seed)
    found: Counter[str] = Counter()
    for _ in range(400):
        paths = hosts_in_racks(rng)
        free: list[Amounts] = [(rng.randint(2, 8), rng.randint(2, 8)) for _ in paths]
        nodes = [
            node(host, RACK=rack, cpu=cpu, gpu=gpu)
            for (rack, host), (cpu, gpu) in zip(paths, free, strict=True)
        ]
        hosts = [host for _, host in paths]
        there: list[Object] = []
        taken: list[tuple[int, Path]] = []  # level and path of each host of exclusive groups
        for number in range(rng.randint(1, 3)):
            depth, pods = rng.choice([0, 0, 1, None]), some_pods(rng)
            name = f"there{number}"
            own = group(written(0, pods), name=name)
            if depth is not None:
                own = alone((RACK, HOSTNAME)[depth], written(0, pods), name=name)
            status = offline.place({"nodes": nodes, "groups": there}, own, USING)
            if status["state"] != "Placed":
                continue
            there.append(own | {"status": status})
            for host, count in placed(status)["s0"].items():
                at = hosts.index(host)
                free[at] = tuple(
                    has - count * one for has, one in zip(free[at], pods.pod, strict=True)
                )
                taken += [] if depth is None else [(depth, paths[at])]
        level = rng.choice([0, 0, 1])
        sets = [some_pods(rng) for _ in range(rng.choice([1, 1, 2]))]
        asked = alone(
            (RACK, HOSTNAME)[level],
            *(written(number, each) for number, each in enumerate(sets)),
            name="asked",
        )
        cluster = {"nodes": nodes, "groups": there}
        status = offline.place(cluster, asked, USING)
        open_ones = [
            path[: level + 1]
            for path in paths
            if not any(
                path[: min(level, other) + 1] == held[: min(level, other) + 1]
                for other, held in taken
            )
        ]
        fits = any(
            fit_together([paths[at] for at in inside], [free[at] for at in inside], sets)
            for domain in {*open_ones}
            if (inside := [at for at, path in enumerate(paths) if path[: level + 1] == domain])
        )
        if status["state"] == "Placed":
            used = {paths[hosts.index(host)] for own in placed(status).values() for host in own}
            (domain,) = {path[: level + 1] for path in used}
            assert domain in open_ones
            assert fits
            found["placed beside others" if taken else "placed"] += 1
        else:
            assert not fits
            found["refused beside others" if taken else "refused"] += 1
    assert min(found["placed beside others"], found["refused beside others"]) > 60


def demanding(kind: str, key: str, skew: int) -> Object:
    """A pod spec whose pods are apart in a level, or balanced over it."""
    if kind == "apart":
        terms = [{**SELECTOR, "topologyKey": key}]
        required = {"requiredDuringSchedulingIgnoredDuringExecution": terms}
        return {"affinity": {"podAntiAffinity": required}}
    constraint = {**SELECTOR, "topologyKey": key, "maxSkew": skew}
    constraint["whenUnsatisfiable"] = "DoNotSchedule"
    return {"topologySpreadConstraints": [constraint]}


def is_kept(
    kind: str, skew: int, paths: Sequence[Path], depth: int, pods: Sequence[int], *, required: bool
) -> bool:
    """Whether pods on hosts at *paths* keep the demand, in one zone if that is required."""
    counts = Counter({path[: depth + 1]: 0 for path in paths})
    for path, own in zip(paths, pods, strict=True):
        counts[path[: depth + 1]] += own
    most, least = max(counts.values()), min(counts.values())
    zones = {path[0] for path, own in zip(paths, pods, strict=True) if own}
    kept = most <= 1 if kind == "apart" else most - least <= skew
    return kept and (not required or len(zones) == 1)


def ways(room: Sequence[int], count: int) -> Iterator[list[int]]:
    """Yield all ways to place pods on hosts with so much room."""
    if not room:
        if not count:
            yield []
        return
    for own in range(min(count, room[0]) + 1):
        for rest in ways(room[1:], count - own):
            yield [own, *rest]


@pytest.mark.parametrize("kind", ["apart", "balanced"])
def test_pods_keep_their_demand_over_a_level_if_they_can(kind: str) -> None:
    """Pods that are apart in racks need one zone in half of the examples."""
    rng = random.Random(3)
    found: Counter[str] = Counter()
    for _ in range(400):
        paths = [
            (f"z{zone}", f"r{zone}{rack}", f"h{zone}{rack}{host}")
            for zone in range(rng.randint(1, 2))
            for rack in range(rng.randint(1, 3))
            for host in range(rng.randint(1, 2))
        ]
        room = [rng.randint(0, 3) for _ in paths]
        depth, skew, count = rng.choice([0, 1, 1]), rng.randint(1, 2), rng.randint(2, 5)
        required = kind == "apart" and depth == 1 and rng.random() < 0.5
        nodes = [
            node(host, ZONE=zone, RACK=rack, cpu=cpu)
            for (zone, rack, host), cpu in zip(paths, room, strict=True)
        ]
        made = pod_set(
            count,
            {"required": ZONE} if required else None,
            spec=demanding(kind, (ZONE, RACK)[depth], skew),
        )
        made["template"]["metadata"] = {"labels": {"app": "web"}}
        status = offline.place({"nodes": nodes}, group(made), ZONES)
        keeps = partial(is_kept, kind, skew, paths, depth, required=required)
        fits = any(keeps(pods) for pods in ways(room, count))
        if status["state"] == "Placed":
            own = placed(status)["main"]
            assert keeps([own.get(host, 0) for *_, host in paths])
        assert (status["state"] == "Placed") == fits, (paths, room, count, status["message"])
        found[status["state"]] += 1
    assert found["Placed"] > 60 < found["Unplaceable"]


def whole(paths: Sequence[Path], pods: Mapping[int, int], sizes: Sequence[int]) -> bool:
    """Whether the pods of each domain of each level are whole slices."""
    for depth, size in enumerate(sizes):
        for _, leaves in groupby(range(len(paths)), key=lambda leaf: paths[leaf][: depth + 1]):
            if sum(pods.get(leaf, 0) for leaf in leaves) % size:
                return False
    return True


@pytest.mark.parametrize("seed", [1, 2])
def test_three_layers_of_slices_stay_whole_if_they_can(seed: int) -> None:
    """One host or two fail, and the others stay."""
    rng = random.Random(seed)
    found: Counter[str] = Counter()
    using = settings("dc", "block", HOSTNAME)
    for _ in range(300):
        paths = [
            (f"d{dc}", f"d{dc}b{block}", f"d{dc}b{block}h{host}")
            for dc in range(2)
            for block in range(rng.randint(1, 3))
            for host in range(rng.randint(2, 3))
        ]
        cpus = [rng.choice([2, 4, 4, 6, 8]) for _ in paths]
        sizes = rng.choice([(12, 4, 4), (8, 4, 2), (8, 8, 4), (8, 4, 4), (4, 4, 2)])
        nodes = [
            node(host, DC=dc, BLOCK=block, cpu=cpu)
            for (dc, block, host), cpu in zip(paths, cpus, strict=True)
        ]
        slices = [{"level": level, "size": size} for level, size in zip(LAYERS, sizes, strict=True)]
        given = group(pod_set(sizes[0] * rng.choice([1, 1, 2]), {"slices": slices}))
        status = offline.place({"nodes": nodes}, given, using)
        if status["state"] != "Placed":
            continue
        hosts = [host for *_, host in paths]
        before = {hosts.index(host): pods for host, pods in placed(status)["main"].items()}
        failed = rng.sample(sorted(before), min(len(before), rng.choice([1, 1, 2])))
        kept = {leaf: pods for leaf, pods in before.items() if leaf not in failed}
        lost = sum(before[leaf] for leaf in failed)
        for leaf in failed:
            nodes[leaf]["spec"]["unschedulable"] = True
            cpus[leaf] = 0
        names = [hosts[leaf] for leaf in failed]
        given["status"] = {"assignments": status["assignments"], "unhealthyNodes": names}
        again = offline.place({"nodes": nodes}, given, using)
        units = combinations_with_replacement(range(len(paths)), lost // sizes[-1])
        fits = any(
            all(pods <= cpus[leaf] for leaf, pods in after.items()) and whole(paths, after, sizes)
            for places in units
            for after in [Counter(kept) + Counter([*places] * sizes[-1])]
        )
        found[again["state"]] += 1
        assert (again["state"] == "Placed") == fits
        if fits:
            own = {hosts.index(host): pods for host, pods in placed(again)["main"].items()}
            assert whole(paths, own, sizes)
            assert all(own.get(leaf, 0) >= pods for leaf, pods in kept.items())
    assert found["Placed"] > 60 < found["Unplaceable"]
