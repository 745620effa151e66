"""Time the cluster side from 1,000 to 100,000 nodes, with the plain twin beside it.

Three levels (3 zones, racks of 32, hosts), three resources and `pods`. `--write` draws
docs/cluster-performance.svg.
"""

from __future__ import annotations

import random
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import msgspec

from benchmarks import curves
from nri_policy.cluster import offline
from nri_policy.cluster.engine.engine import Engine
from nri_policy.cluster.engine.preemption import victims
from nri_policy.cluster.objects.group import PlacementGroup, PlacementRequest, PodSet
from nri_policy.cluster.objects.node import HOSTNAME, ClusterNode
from nri_policy.cluster.objects.pod import Container, PodSpec, Template
from nri_policy.cluster.objects.settings import ClusterSettings, Topology
from nri_policy.cluster.view import Cluster
from tests.support import packing_twin as twin

SIZES = (1_000, 3_000, 10_000, 30_000, 100_000)
POD = {"cpu": 4000, "memory": 8 << 30, "x/gpu": 1}
MIB = 1 << 20
PICTURE = Path(__file__).parent.parent / "docs" / "cluster-performance.svg"


def nodes(count: int) -> list[ClusterNode]:
    """Nodes in the order of their names, as the API server lists them."""
    return [
        ClusterNode(
            name=f"node-{number:06}",
            labels={
                "zone": f"zone-{number // 32 % 3}",
                "rack": f"rack-{number // 32:05}",
                HOSTNAME: f"node-{number:06}",
                "kubernetes.io/arch": "amd64",
            },
            allocatable={
                "cpu": 64_000 - number * 7919 % 13 * 1000,
                "memory": 256 << 30,
                "pods": 110,
                "x/gpu": number * 7919 % 8,
            },
        )
        for number in range(count)
    ]


SETTINGS = ClusterSettings(topologies=[Topology(levels=["zone", "rack", HOSTNAME])])


def group(
    count: int, request: PlacementRequest, pod: dict[str, int] | None = None
) -> PlacementGroup:
    spec = PodSpec(containers=(Container(name="c", requests=pod or POD, limits={}),))
    pod_set = PodSet(name="main", count=count, template=Template(spec=spec), request=request)
    return PlacementGroup(namespace="default", name="job", pod_sets=(pod_set,))


def built(made: list[ClusterNode]) -> Engine:
    engine = Engine(SETTINGS, Cluster(made).view)
    engine.tree("default")
    return engine


def timed(work: Callable[[], object], times: int, before: Callable[[], object] = int) -> float:
    """The median of *work* in µs of CPU time: others that share the machine do not count."""
    taken = []
    for _ in range(times):
        before()
        began = time.process_time()
        work()
        taken.append((time.process_time() - began) * 1e6)
    return median(taken)


def measured(count: int) -> dict[str, float]:
    """What is in the table, in µs."""
    made = nodes(count)
    cluster = Cluster(made)
    engine = Engine(SETTINGS, cluster.view)
    cluster.follow(engine)
    cold = {
        "assign, a required rack": group(64, PlacementRequest(required="rack")),
        "assign, a preferred zone": group(256, PlacementRequest(preferred="zone")),
        "assign, unconstrained": group(64, PlacementRequest(unconstrained=True)),
    }
    took: dict[str, float] = {}
    tree = engine.tree("default")
    for name, asked in cold.items():
        took[f"{name}, cold"] = timed(lambda: engine.place(asked), 9, tree.forget)  # noqa: B023
        took[f"{name}, warm"] = timed(lambda: engine.place(asked), 50)  # noqa: B023
    kind = engine.kind(POD)
    names = random.Random(1).choices([node.name for node in made], k=1000)

    def come_and_go() -> None:
        for number, name in enumerate(names):
            engine.bind("default", f"pod-{number}", name, kind)
        for number in range(len(names)):
            engine.remove_pod("default", f"pod-{number}")

    took["a pod comes or goes"] = timed(come_and_go, 9) / 2000
    some = [node for node in made if node.name in set(names[:100])]
    down = [ClusterNode(node.name, node.labels, node.allocatable, ready=False) for node in some]

    def fail() -> None:
        for gone, back in zip(down, some, strict=True):
            cluster.set_node(gone)
            cluster.set_node(back)

    took["a node fails or returns"] = timed(fail, 9) / (2 * len(some))
    required = cold["assign, a required rack"]

    def change() -> None:
        engine.bind("default", "pod", names[0], kind)
        engine.remove_pod("default", "pod")

    def change_and_place() -> None:
        engine.bind("default", "pod", names[0], kind)
        engine.place(required)
        engine.remove_pod("default", "pod")

    took["a change, then the same rack"] = timed(change_and_place, 50)
    took["build from nodes in memory"] = timed(lambda: built(made), 5)
    evenly = group(1000, PlacementRequest(spread_over=["zone", "rack"]))
    took["spread 1,000 pods"] = timed(lambda: engine.spread(evenly), 9, change)
    fresh = (built(made) for _ in range(3))
    took["spread 1,000 pods, the first"] = min(_first_spread(each, evenly) for each in fresh)
    return took


def _first_spread(engine: Engine, asked: PlacementGroup) -> float:
    return timed(lambda: engine.spread(asked), 1)


def many_pods() -> float:
    """10,000 pods on 834 hosts of 3,000, another group of the same shape, in µs."""
    made = [
        msgspec.structs.replace(each, allocatable=each.allocatable | {"cpu": 64_000, "x/gpu": 12})
        for each in nodes(3000)
    ]
    engine = built(made)
    asked = group(10_000, PlacementRequest(unconstrained=True))
    assert engine.place(asked).state == "Placed"
    return timed(lambda: engine.place(asked), 100)


def documents() -> float:
    """A group in a required rack, from the documents of 100,000 nodes in memory, in µs."""
    made = [
        {
            "metadata": {"name": node.name, "labels": node.labels},
            "status": {
                "allocatable": {
                    "cpu": f"{node.allocatable['cpu']}m",
                    "memory": f"{node.allocatable['memory'] >> 30}Gi",
                    "pods": "110",
                    "x/gpu": str(node.allocatable["x/gpu"]),
                },
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        }
        for node in nodes(100_000)
    ]
    resources = {"requests": {"cpu": "4", "memory": "8Gi", "x/gpu": "1"}}
    template = {"spec": {"containers": [{"name": "c", "resources": resources}]}}
    pod_set = {
        "name": "main",
        "count": 64,
        "template": template,
        "request": {"required": "rack"},
    }
    asked = {"metadata": {"name": "job"}, "spec": {"podSets": [pod_set]}}
    levels = {"spec": {"topologies": [{"name": "default", "levels": ["zone", "rack", HOSTNAME]}]}}
    return timed(lambda: offline.place({"nodes": made}, asked, levels), 3)


def plainly(made: list[ClusterNode]) -> float:
    """The twin's time for a required rack, in µs."""
    paths = sorted((n.labels["zone"], n.labels["rack"], n.name) for n in made)
    by_name = {node.name: node.allocatable for node in made}
    levels = twin.grow(paths)
    rows = [by_name[path[-1]] for path in paths]
    nothing = [0] * len(paths)

    def place() -> None:
        twin.count(
            levels,
            rows,
            POD | {"pods": 1},
            leader=None,
            mask=nothing,
            scores=nothing,
            size=1,
            slice_level=2,
            inner={},
        )
        how = {"required": True, "unconstrained": False, "ascending": False}
        level, chosen = twin.choose(levels, 1, 64, 0, **how)
        twin.descend(levels, level, chosen, 64, 0, size=1, slice_level=2, inner={}, ascending=False)

    return timed(place, 3)


def balanced() -> float:
    """One placement of Balanced on 2,500 nodes in racks of 50, cold, in µs."""
    made = [
        ClusterNode(
            name=f"n{number:04}",
            labels={"zone": "z", "rack": f"r{number // 50:02}", HOSTNAME: f"n{number:04}"},
            allocatable={"cpu": 1000 * (4 + number * 7919 % 13), "pods": 110},
        )
        for number in range(2500)
    ]
    engine = built(made)
    asked = group(500, PlacementRequest(preferred="rack", algorithm="Balanced"), {"cpu": 1000})
    assert engine.place(asked).state == "Placed"
    return timed(lambda: engine.place(asked), 9, engine.tree("default").forget)


def preemption() -> dict[str, float]:
    """Searches among 700 groups on 2,000 nodes that have nothing left, in µs."""
    made = nodes(2000)
    engine = built(made)
    draw = random.Random(1)
    sizes = [draw.randint(1, 18) for _ in range(699)]
    sizes.append(sum(node.allocatable["x/gpu"] for node in made) - sum(sizes))
    for number, size in enumerate(sizes):
        asked = msgspec.structs.replace(
            group(size, PlacementRequest(preferred="rack")),
            name=f"job-{number}",
            priority=draw.randint(0, 4),
        )
        status = engine.place(asked)
        assert status.state == "Placed"
        engine.set_group(msgspec.structs.replace(asked, status=status))
    took = {}
    for pods, level in ((112, "rack"), (1000, "zone")):
        urgent = msgspec.structs.replace(group(pods, PlacementRequest(required=level)), priority=9)
        gone = victims(engine, urgent)
        assert gone
        name = f"preemption, {pods} pods in a {level}: {len(gone)} of 700 leave"
        took[name] = timed(lambda: victims(engine, urgent), 5)  # noqa: B023
    return took


def memory() -> float:
    """Resident memory of 100,000 nodes with 1,000,000 pods, in MiB, in a process of its own."""
    code = "from benchmarks.cluster import fill; fill()"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return float(done.stdout)


def fill(count: int = 100_000, each: int = 10) -> None:
    """Fill an engine and print the most memory that this process ever had, in MiB."""
    engine = built(nodes(count))
    for name in [*engine.nodes]:
        for number in range(each):
            kind = engine.kind({"cpu": 100 * (number + 1), "memory": number << 28})
            engine.bind(f"team-{number}", f"service-{name}-{number}-x7k2p", name, kind)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / MIB)


def main() -> None:
    """Print the growth, and each as a share of the twin's placement of as many nodes."""
    took = {}
    for count in SIZES:
        took[count] = measured(count)
    plain = {count: plainly(nodes(count)) for count in SIZES if count <= 10_000}
    print(f"{'µs':36}", *(f"{count:>10,}" for count in SIZES))
    for name in took[SIZES[0]]:
        print(f"{name:36}", *(f"{took[count][name]:10.1f}" for count in SIZES))
    print(f"{'the plain twin, a required rack':36}", *(f"{each:10.0f}" for each in plain.values()))
    cold = "assign, a required rack, cold"
    ratios = (f"{plain[count] / took[count][cold]:9.0f}x" for count in plain)
    print(f"{'  of ours':36}", *ratios)
    print(f"{'Balanced, 2,500 nodes':36} {balanced():10.1f}")
    print(f"{'10,000 pods on 834 hosts, warm':36} {many_pods():10.1f}")
    print(f"{'from documents of 100,000 nodes':36} {documents():10.1f}")
    for name, each in preemption().items():
        print(f"{name:60} {each:10.1f}")
    print(f"{'memory, 100,000 nodes, 1M pods':36} {memory():6.0f} MiB")
    if "--write" in sys.argv:
        PICTURE.write_text(picture(took))


def picture(took: dict[int, dict[str, float]]) -> str:
    """Draw the growth."""
    charts = [
        ("assign, cold", "nodes", _curves(took, "cold")),
        ("assign, warm", "nodes", _curves(took, "warm")),
        ("a change", "nodes", _curves(took, "comes", "fails", "then")),
    ]
    return curves.svg(charts)


def _curves(took: dict[int, dict[str, float]], *words: str) -> dict[str, curves.Curve]:
    names = [name for name in took[SIZES[0]] if any(word in name for word in words)]
    return {
        name.removeprefix("assign, ").partition(", ")[0]: [
            (float(count), took[count][name]) for count in SIZES
        ]
        for name in names
    }


if __name__ == "__main__":
    main()
