"""Groups of several pod sets: none is refused that fits, as far as another order or a search finds.

What fits is found out by trying everything, on trees of a few hosts.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from nri_policy.cluster import offline
from tests.support.exact_placement import Path, Pods, fit_together
from tests.unit.cluster.written import HOSTNAME, group, node, placed, pod_set, settings

CASES = 1500
RACK = "example.com/rack"
LEVELS = (RACK, HOSTNAME)


def hosts_in_racks(rng: random.Random) -> list[Path]:
    racks, hosts = rng.randint(2, 3), rng.randint(2, 3)
    return [(f"r{rack}", f"h{rack}{host}") for rack in range(racks) for host in range(hosts)]


def some_pods(rng: random.Random) -> Pods:
    size = rng.choice([1, 1, 1, 2])
    required = rng.choice([None, 0, 0, 1 if size == 1 else 0])
    return Pods(
        count=size * rng.randint(1, 3 if size == 1 else 2),
        pod=(rng.randint(1, 4), rng.randint(0, 4)),
        required=required,
        size=size,
        slice_level=rng.choice([0, 1]) if size > 1 else -1,
    )


def written(number: int, pods: Pods) -> dict[str, Any]:
    request: dict[str, Any] = {} if pods.required is None else {"required": LEVELS[pods.required]}
    if pods.size > 1:
        request["slices"] = [{"level": LEVELS[pods.slice_level], "size": pods.size}]
    cpu, gpu = pods.pod
    asked = request or {"unconstrained": True}
    return pod_set(pods.count, asked, name=f"s{number}", cpu=cpu, gpu=gpu)


@pytest.mark.parametrize("seed", [1, 2])
def test_no_group_is_refused_that_fits(seed: int) -> None:
    """Of those that fit, one in 20 or more needs another order."""
    rng = random.Random(seed)
    found: Counter[str] = Counter()
    for _ in range(CASES):
        paths = hosts_in_racks(rng)
        free = [(rng.randint(0, 8), rng.randint(0, 8)) for _ in paths]
        sets = [some_pods(rng) for _ in range(rng.choice([2, 2, 3]))]
        nodes = [
            node(host, RACK=rack, cpu=cpu, gpu=gpu)
            for (rack, host), (cpu, gpu) in zip(paths, free, strict=True)
        ]
        pod_sets = [written(number, each) for number, each in enumerate(sets)]
        status = offline.place({"nodes": nodes}, group(*pod_sets), settings("rack", HOSTNAME))
        if status["state"] != "Placed":
            found["refused"] += fit_together(paths, free, sets)
            continue
        assert fit_together(paths, free, sets)
        how, _, order = status.get("message", "").partition(" in the order ")
        found[how] += 1
        if how == "placed":  # written in that order, they are placed there at once
            by_name = {each["name"]: each for each in pod_sets}
            ordered = group(*(by_name[name] for name in order.split(", ")))
            again = offline.place({"nodes": nodes}, ordered, settings("rack", HOSTNAME))
            assert not again["message"]
            assert sorted(again["assignments"], key=str) == sorted(status["assignments"], key=str)
    assert found["placed"] * 20 > found[""]
    assert not found["refused"]


@pytest.mark.parametrize("seed", [1, 2])
def test_lost_pods_get_places_if_there_are_any(seed: int) -> None:
    """Others may lie in their way: of other sets, or of the slice that they break."""
    rng = random.Random(seed)
    found: Counter[str] = Counter()
    for _ in range(CASES):
        paths = hosts_in_racks(rng)
        free = [(rng.randint(2, 10), rng.randint(2, 8)) for _ in paths]
        sets = [some_pods(rng) for _ in range(rng.choice([1, 2, 2, 3]))]
        nodes = [
            node(host, RACK=rack, cpu=cpu, gpu=gpu)
            for (rack, host), (cpu, gpu) in zip(paths, free, strict=True)
        ]
        given = group(*(written(number, each) for number, each in enumerate(sets)))
        status = offline.place({"nodes": nodes}, given, settings("rack", HOSTNAME))
        if status["state"] != "Placed":
            continue
        where = [*placed(status).values()]
        hosts = [path[-1] for path in paths]
        used = sorted({host for own in where for host in own})
        failed = rng.sample(used, min(len(used), rng.choice([1, 1, 2])))
        stay = [
            {hosts.index(host): pods for host, pods in own.items() if host not in failed}
            for own in where
        ]
        sets = [replace(each, kept=kept) for each, kept in zip(sets, stay, strict=True)]
        left = [
            (0, 0) if host in failed else amounts for host, amounts in zip(hosts, free, strict=True)
        ]
        for host in nodes:
            if host["metadata"]["name"] in failed:
                host["spec"]["unschedulable"] = True
        given["status"] = {"assignments": status["assignments"], "unhealthyNodes": failed}
        again = offline.place({"nodes": nodes}, given, settings("rack", HOSTNAME))
        assert (again["state"] == "Placed") == fit_together(paths, left, sets)
        found[again["state"]] += 1
    assert found["Placed"] > 100 < found["Unplaceable"]


def racks_of(answer: dict[str, Any]) -> int:
    """Return how many racks a group touches; the host h12 is in the rack 1."""
    places = [one for each in answer["assignments"] for one in each["domains"]]
    return len({one["values"][-1][1] for one in places})


@pytest.mark.parametrize("seed", [1, 2])
def test_sets_that_fit_together_in_a_rack_are_in_one(seed: int) -> None:
    """Pod sets that only prefer one rack get one if they fit there, else few racks."""
    rng = random.Random(seed)
    missed = placed = near = apart = 0
    for _ in range(CASES // 2):
        paths = hosts_in_racks(rng)
        free = [(rng.randint(0, 8), rng.randint(0, 8)) for _ in paths]
        sets = [some_pods(rng) for _ in range(rng.choice([2, 2, 3]))]
        nodes = [
            node(host, RACK=rack, cpu=cpu, gpu=gpu)
            for (rack, host), (cpu, gpu) in zip(paths, free, strict=True)
        ]
        given = group(*(written(number, each) for number, each in enumerate(sets)))
        answers = {}
        for how in ("required", "preferred"):
            asked = given | {"spec": given["spec"] | {"together": {how: RACK}}}
            answers[how] = offline.place({"nodes": nodes}, asked, settings("rack", HOSTNAME))
        racks = {path[0] for path in paths}
        fits = any(
            fit_together(
                [path for path in paths if path[0] == rack],
                [each for path, each in zip(paths, free, strict=True) if path[0] == rack],
                sets,
            )
            for rack in racks
        )
        if answers["required"]["state"] == "Placed":
            assert fits
            placed += 1
            assert [racks_of(each) for each in answers.values()] == [1, 1]
        else:
            missed += fits
            alone = offline.place({"nodes": nodes}, given, settings("rack", HOSTNAME))
            assert answers["preferred"]["state"] == alone["state"]
            near, apart = near + racks_of(answers["preferred"]), apart + racks_of(alone)
    assert near < apart
    assert placed > 100
    assert missed * 100 <= placed
