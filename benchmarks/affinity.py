"""Time the affinities of one container against all others, and compare with the plain twin.

The twin looks at every container for every affinity; ours asks an index. Both end with the score of
every pool.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import yaml
from msgspec.structs import replace

from nri_policy.foundation.cpuset import CPUSet
from nri_policy.manifests.quality_of_service import QoS
from nri_policy.pools.affinity_scores import AffinityScorer
from nri_policy.pools.tree import PoolTree, build
from nri_policy.workload.affinity import Affinity, affinities_of
from nri_policy.workload.peers import Peers
from nri_policy.workload.pod import Container, ContainerState, Pod, Resources
from tests.support import affinity_twin, nodes

MACHINE = "package:2 numa:4 l3:4 core:4 pu:2"
OPERATORS = {
    "Equals": ["app3"],
    "NotEqual": ["app3"],
    "In": ["app1", "app2", "app5"],
    "NotIn": ["app1", "app2", "app5"],
    "Exists": [],
    "NotExists": [],
    "Matches": ["app*"],
    "MatchesNot": ["app1*"],
    "MatchesAny": ["*1", "app[2-4]"],
    "MatchesNone": ["*1", "app[2-4]"],
}
ROUNDS, CONTAINERS = 2000, 1000
KEYS = ("pod/labels/app", ":pod/labels/tier:name")


def node(count: int) -> list[Container]:
    """Containers as a kubelet makes them, two to a pod, with the labels that it sets."""
    containers = []
    for index in range(count):
        number = index // 2
        labels = {f"example.com/label{n}": f"value{number % (n + 3)}" for n in range(4)}
        pod = Pod(
            id=f"{number:064x}",
            uid=f"uid-{number}",
            name=f"pod{number}",
            namespace=f"ns{number % 20}",
            qos=tuple(QoS)[number % 3],
            labels={"app": f"app{number % 50}", "tier": f"tier{number % 4}", **labels},
            annotations={},
        )
        name = ("main", "sidecar")[index % 2]
        containers.append(
            Container(
                id=f"{index:064x}",
                pod=pod,
                name=name,
                state=ContainerState.RUNNING,
                created=index,
                labels={"io.kubernetes.container.name": name, "io.kubernetes.pod.uid": pod.uid},
                resources=Resources(),
            )
        )
    return containers


def asking(container: Container, count: int) -> Container:
    """The container with affinities of every operator, to pods in three sorts of scope."""
    scopes = (
        {"operator": "AlwaysTrue"},
        {"key": "namespace", "operator": "In", "values": [f"ns{n}" for n in range(10)]},
        {"key": "pod/qosclass", "operator": "NotEqual", "values": ["BestEffort"]},
    )
    written = [
        {
            "scope": scopes[index % 3],
            "match": {"key": KEYS[index // 10 % 2], "operator": operator, "values": values},
            "weight": index + 1,
        }
        for index, (operator, values) in enumerate([*OPERATORS.items()] * (count // 10))
    ]
    annotation = {"resource-policy.nri.io/affinity": yaml.safe_dump({container.name: written})}
    return replace(container, pod=replace(container.pod, annotations=annotation))


def timed(what: str, times: int, work: Callable[[], object]) -> float:
    """Print the median and the 99th percentile of *work*; return the median in microseconds."""
    taken = []
    for _ in range(times):
        began = time.perf_counter()
        work()
        taken.append((time.perf_counter() - began) * 1e6)
    median = statistics.median(taken)
    p99 = statistics.quantiles(taken, n=100)[98]
    print(f"{what:44} median {median:9.1f} us  p99 {p99:9.1f} us")
    return median


def plainly(
    asked: Container, affinities: list[Affinity], containers: list[Container], tree: PoolTree
) -> list[float]:
    """The twin's scores; its exact sums over the tree are replaced by ours, which are faster."""
    weights = affinity_twin.weights(asked, affinities, containers)
    booked = dict.fromkeys(range(len(tree.pools)), 0)
    for index, container in enumerate(containers):
        booked[index % len(tree.pools)] += weights.get(container.id, 0)
    return [float(booked[pool.id]) for pool in tree.pools]


def main() -> None:
    machine = nodes.machine(MACHINE)
    tree = build(machine, CPUSet.union(package.cpus for package in machine.packages))
    scorer, peers = AffinityScorer(tree), Peers()
    containers = node(CONTAINERS)
    for index, container in enumerate(containers):
        peers.add(container, index % len(tree.pools))
    asked = asking(containers[0], 20)
    affinities = affinities_of(asked, nodes.settings()).each
    pulls = peers.pulls(asked, affinities)
    assert pulls.weights() == affinity_twin.weights(asked, list(affinities), containers)
    print(f"{len(affinities)} affinities, {CONTAINERS} containers, {len(tree.pools)} pools")

    def ours() -> object:
        return scorer.scores(peers.pools, peers.pulls(asked, affinities).terms)

    timed("read the annotation", ROUNDS, lambda: affinities_of(asked, nodes.settings()))
    timed("  which peers pull, by the index", ROUNDS, lambda: peers.pulls(asked, affinities))
    timed("  score of every pool", ROUNDS, lambda: scorer.scores(peers.pools, pulls.terms))
    fast = timed("both", ROUNDS, ours)
    slow = timed(
        "the plain twin",
        max(ROUNDS // 100, 5),
        lambda: plainly(asked, list(affinities), containers, tree),
    )
    print(f"{'ratio':44} {slow / fast:16.0f}")

    def come_and_go() -> None:
        peers.remove(asked.id)
        peers.add(asked, 0)

    timed("a container goes and comes", ROUNDS, come_and_go)
    held = [(container, index % len(tree.pools)) for index, container in enumerate(containers)]
    held[0] = (asked, 0)
    timed("follow, nothing differs", ROUNDS, lambda: peers.follow(held))
    timed("a list of all peers, strongest first", ROUNDS // 10, pulls.strongest)
