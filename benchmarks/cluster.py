"""Time the cluster side from 1,000 to 100,000 nodes, with the plain twin beside it.

Three levels (3 zones, racks of 32, hosts), three resources and `pods`. `--write` writes the figures
of one run into docs/cluster-figures.md and docs/cluster-performance.svg.
"""

from __future__ import annotations

import os
import random
import re
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from statistics import median

import msgspec

from benchmarks import curves
from benchmarks.table import additions
from nri_policy.cluster import offline
from nri_policy.cluster.engine.engine import Engine
from nri_policy.cluster.engine.preemption import find_victims
from nri_policy.cluster.objects.node import HOSTNAME, ClusterNode
from nri_policy.cluster.objects.pod import Container, PodSpec, Template
from nri_policy.cluster.objects.settings import ClusterSettings, Topology
from nri_policy.cluster.requests.group import PlacementGroup, PlacementRequest, PodSet, Together
from nri_policy.cluster.view import Cluster
from tests.support import packing_twin as twin

SIZES = (1_000, 3_000, 10_000, 30_000, 100_000)
POD_SETS_ON = 10_000  # nodes, for groups of several pod sets
POD = {"cpu": 4000, "memory": 8 << 30, "x/gpu": 1}
MIB = 1 << 20
PAGE = Path(__file__).parent.parent / "docs" / "cluster-figures.md"
PICTURE = PAGE.with_name("cluster-performance.svg")
PLACE = re.compile(r"(?<=<!-- benchmarks/cluster\.py -->\n).*?(?=<!-- end -->)", re.DOTALL)
_GROUPS = {
    "a group in a required rack": PlacementRequest(required="rack"),
    "a group that prefers one zone": PlacementRequest(preferred="zone"),
    "an unconstrained group": PlacementRequest(unconstrained=True),
}
_FIRST, _ANOTHER = ", the first of its shape", ", another of its shape"
CHARTS: dict[str, dict[str, str]] = {  # chart -> what is measured -> its curve
    f"a group{kind}": dict(
        zip(
            (f"{name}{kind}" for name in _GROUPS),
            ("required rack", "preferred zone", "unconstrained"),
            strict=True,
        )
    )
    for kind in (_FIRST, _ANOTHER)
} | {
    "changes": {
        "a pod starts or ends": "a pod starts or ends",
        "a node fails or returns": "a node fails or returns",
        "a pod starts, a group is placed in a rack, the pod ends": "a pod, then a group",
    }
}


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
    engine.state.tree("default")
    return engine


def timed(work: Callable[[], object], times: int, before: Callable[[], object] = int) -> float:
    """The median of *work* in µs of CPU time: other processes do not count."""
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
    cluster.follow(engine.state)
    tree = engine.state.tree("default")
    took: dict[str, float] = {}
    for name, request in _GROUPS.items():
        asked = group(256 if request.preferred else 64, request)
        took[f"{name}{_FIRST}"] = timed(partial(engine.place, asked), 9, tree.known_counts.clear)
        took[f"{name}{_ANOTHER}"] = timed(partial(engine.place, asked), 50)
    kind = engine.state.kind(POD)
    names = random.Random(1).choices([node.name for node in made], k=1000)

    def come_and_go() -> None:
        for number, name in enumerate(names):
            engine.state.bind("default", f"pod-{number}", name, kind)
        for number in range(len(names)):
            engine.state.remove_pod("default", f"pod-{number}")

    took["a pod starts or ends"] = timed(come_and_go, 9) / 2000
    some = [node for node in made if node.name in set(names[:100])]
    down = [ClusterNode(node.name, node.labels, node.allocatable, ready=False) for node in some]

    def fail() -> None:
        for gone, back in zip(down, some, strict=True):
            cluster.set_node(gone)
            cluster.set_node(back)

    took["a node fails or returns"] = timed(fail, 9) / (2 * len(some))
    required = group(64, PlacementRequest(required="rack"))

    def change() -> None:
        engine.state.bind("default", "pod", names[0], kind)
        engine.state.remove_pod("default", "pod")

    def change_and_place() -> None:
        engine.state.bind("default", "pod", names[0], kind)
        engine.place(required)
        engine.state.remove_pod("default", "pod")

    what = "a pod starts, a group is placed in a rack, the pod ends"
    took[what] = timed(change_and_place, 50)
    took["building the tree from nodes in memory"] = timed(lambda: built(made), 5)
    evenly = group(1000, PlacementRequest(spread_over=["zone", "rack"]))
    took["spreading 1,000 pods over zones and racks"] = timed(
        lambda: engine.spread(evenly), 9, change
    )
    fresh = (built(made) for _ in range(3))
    took["the same for the first time, if a topology has these labels"] = min(
        _first_spread(each, evenly) for each in fresh
    )
    pools = [
        msgspec.structs.replace(each, labels={**each.labels, "pool": f"pool-{number % 50}"})
        for number, each in enumerate(made)
    ]
    by_pool = group(1000, PlacementRequest(spread_over=["pool"]))
    fresh = (built(pools) for _ in range(3))
    took["the same for the first time, over a label that is no level"] = min(
        _first_spread(each, by_pool) for each in fresh
    )
    return took


def _first_spread(engine: Engine, asked: PlacementGroup) -> float:
    return timed(lambda: engine.spread(asked), 1)


def several_pod_sets() -> tuple[float, float, float]:
    """Three pod sets in racks, the same together in one, and a refusal after a full search, in µs.

    The refused ones are 17 pod sets that each need a host of 4 GPUs in a rack with 16 of them.
    """
    engine = built(nodes(POD_SETS_ON))
    rack = PlacementRequest(required="rack")
    sets = [
        msgspec.structs.replace(group(pods, rack, {"cpu": cpu, "x/gpu": 1}).pod_sets[0], name=name)
        for name, pods, cpu in (("router", 1, 2000), ("prefill", 16, 4000), ("decode", 32, 3000))
    ]
    apart = msgspec.structs.replace(group(1, rack), pod_sets=tuple(sets))
    together = msgspec.structs.replace(apart, together=Together(required="rack"))
    host = PlacementRequest(required=HOSTNAME)
    found = []
    for number in range(17):
        (one,) = group(4, host, {"cpu": 1000 + number, "x/gpu": 1}).pod_sets
        spec = msgspec.structs.replace(one.template.spec, node_selector={"rack": "rack-00000"})
        found.append(msgspec.structs.replace(one, name=f"s{number}", template=Template(spec=spec)))
    refused = msgspec.structs.replace(apart, pod_sets=tuple(found))
    assert [engine.place(each).state for each in (apart, together)] == ["Placed", "Placed"]
    assert engine.place(refused).state == "Unplaceable"
    first, second, third = (
        timed(partial(engine.place, each), times)
        for each, times in ((apart, 50), (together, 50), (refused, 5))
    )
    return first, second, third


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
    """A group in a required rack, from the documents of all nodes in memory, in µs."""
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
        for node in nodes(SIZES[-1])
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
        level, chosen = twin.choose(
            levels, 1, 64, 0, required=True, unconstrained=False, ascending=False
        )
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
    return timed(lambda: engine.place(asked), 9, engine.state.tree("default").known_counts.clear)


def preemption() -> tuple[tuple[int, float], ...]:
    """Search among 700 groups on 2,000 nodes that have nothing left, for a rack and a larger job.

    Returns of each search how many groups leave, and its time in µs.
    """
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
        engine.state.set_group(msgspec.structs.replace(asked, status=status))
    searches = []
    for pods, level in ((112, "rack"), (1000, "zone")):
        urgent = msgspec.structs.replace(group(pods, PlacementRequest(required=level)), priority=9)
        gone = find_victims(engine, urgent)
        assert gone
        searches.append((len(gone), timed(partial(find_victims, engine, urgent), 5)))
    return tuple(searches)


def memory() -> float:
    """Resident memory of the most nodes with ten pods each, in MiB, in a process of its own."""
    code = f"from benchmarks.cluster import fill; fill({SIZES[-1]}, 10)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return float(done.stdout)


def fill(count: int, each: int) -> None:
    """Fill an engine and print the most memory that this process ever had, in MiB."""
    engine = built(nodes(count))
    for name in [*engine.state.nodes]:
        for number in range(each):
            kind = engine.state.kind({"cpu": 100 * (number + 1), "memory": number << 28})
            engine.state.bind(f"team-{number}", f"service-{name}-{number}-x7k2p", name, kind)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / MIB)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The figures of one run, for the terminal, the page and its picture."""

    head: str  # when, and on how busy a machine
    took: Mapping[int, Mapping[str, float]]  # number of nodes -> what -> µs
    twin: Mapping[int, float]  # number of nodes -> µs of plain Python, for a required rack
    others: str

    def markdown(self) -> str:
        first, *sizes = (f"{count:,}" for count in SIZES)
        rows = [
            f"| {name} | {' | '.join(_shown(self.took[count][name]) for count in SIZES)} |"
            for name in self.took[SIZES[0]]
        ]
        head = f"| | {first} nodes | {' | '.join(sizes)} |"
        table = "\n".join((head, f"|---|{'---|' * len(SIZES)}", *rows))
        first_group = f"{next(iter(_GROUPS))}{_FIRST}"
        ratios = (
            f"{each / self.took[count][first_group]:.0f}" for count, each in self.twin.items()
        )
        nodes = _listed(f"{count:,}" for count in self.twin)
        return (
            f"{self.head}\n\n{table}\n\n{self.others} With {nodes} nodes, plain Python takes"
            f" {_listed(ratios)} times as long for the first row.\n"
        )

    def picture(self) -> str:
        """Draw how the times grow."""
        return curves.svg(
            [
                (title, "nodes", {name: self._curve(what) for what, name in chart.items()})
                for title, chart in CHARTS.items()
            ]
        )

    def _curve(self, what: str) -> curves.Curve:
        return [(float(count), self.took[count][what]) for count in SIZES]


def report() -> Report:
    """Measure everything."""
    head = (
        f"Measured on {datetime.now(UTC):%Y-%m-%d}, at a load average of {os.getloadavg()[0]:.1f},"
        f" when a Python loop of ten million additions took {additions():.2g} s:"
    )
    took = {count: measured(count) for count in SIZES}
    twin = {count: plainly(nodes(count)) for count in SIZES if count <= 10_000}
    (few, rack), (many, zone) = preemption()
    most = SIZES[-1]
    apart, together, refused = several_pod_sets()
    others = (
        f"The algorithm Balanced takes {_shown(balanced())} on 2,500 nodes. {most:,} nodes with"
        f" {10 * most:,} pods need {memory():.0f} MiB in the engine alone. Another group of 10,000"
        f" pods, on 834 hosts, takes {_shown(many_pods())}. `place` with the documents of {most:,}"
        f" nodes takes {_shown(documents())}. On 2,000 nodes that are full with 700 groups, it"
        f" takes {_shown(rack)} to find the {few} groups that would have to leave for a rack, and"
        f" {_shown(zone)} to find {many} for a larger job. On {POD_SETS_ON:,} nodes, three pod sets"
        f" take {_shown(together)} together in one rack, {_shown(apart)} each in any, and a refusal"
        f" after 2,000 steps of search takes {_shown(refused)}."
    )
    return Report(head=head, took=took, twin=twin, others=others)


def _listed(texts: Iterable[str]) -> str:
    *others, last = texts
    return f"{', '.join(others)} and {last}"


def _shown(microseconds: float) -> str:
    if microseconds < 10:
        return f"{microseconds:.2g} µs"
    return f"{float(f'{microseconds:.2g}') / 1e3:g} ms"


def measure(*, write: bool) -> None:
    """Print the figures; with *write*, put them on the page and into its picture."""
    made = report()
    print(made.markdown())
    if write:
        page = PAGE.read_text()
        PAGE.write_text(PLACE.sub(lambda _: made.markdown(), page))
        PICTURE.write_text(made.picture())


def main() -> None:
    measure(write="--write" in sys.argv)
