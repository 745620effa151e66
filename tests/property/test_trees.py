"""Trees that go on through changes of the cluster are as if they were made anew."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import msgspec

from nri_policy.cluster.engine.engine import Engine
from nri_policy.cluster.engine.state.tree import Tree
from nri_policy.cluster.engine.state.zone_tree import ZoneTree
from nri_policy.cluster.engine.unit_capacity import UnitCapacity
from nri_policy.cluster.numa.promises import LiveZones
from nri_policy.cluster.numa.zone_limits import ZoneLimits
from nri_policy.cluster.objects.node import HOSTNAME, ClusterNode, Taint
from nri_policy.cluster.objects.pod import Container, Pod, PodSpec, Template
from nri_policy.cluster.objects.settings import ClusterSettings, Topology
from nri_policy.cluster.requests.group import PlacementGroup, PlacementRequest, PodSet, Slice
from nri_policy.cluster.requests.request import Unplaceable, units_of
from nri_policy.cluster.view import Cluster
from nri_policy.cluster.zones.zone import NodeZones, Zone
from nri_policy.foundation.clock import Clock
from nri_policy.foundation.units import BILLIONTHS
from tests.property.seeds import seeds

STEPS = 120
TAINTS: list[tuple[Taint, ...]] = [(), (Taint(key="k", effect="NoSchedule"),)]
HOSTS = 2**60  # a zone that does not list a resource has more than that: the host's counts
SETTINGS = ClusterSettings(
    topologies=[
        Topology(name="hosts", levels=["rack", HOSTNAME], below_host=["socket", "Node"]),
        Topology(name="racks", levels=["zone", "rack"]),
    ]
)


class Events:
    """Random events, told to one engine; another can be made from what there is after them."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.cluster = Cluster()
        self.engine, self.live = engine_in(self.cluster)
        self.cluster.follow(self.engine.state)
        self.zones: dict[str, NodeZones] = {}
        self.pods: dict[str, Pod] = {}

    def step(self) -> None:
        draw = self.random
        name = f"n{draw.randrange(8)}"
        match draw.randrange(8):
            case 0:
                self.cluster.remove_node(name)
            case 1 | 2:
                self.cluster.set_node(self.node(name))
            case 3 | 4:
                self.zones[name] = self.report(name)
                self.cluster.set_zones(self.zones[name])
            case 5 if draw.random() < 0.2:
                self.zones.pop(name, None)
                self.cluster.remove_zones(name)
            case 6:
                pod = Pod("default", f"p{draw.randrange(6)}", template(1).spec, node=name)
                self.pods[pod.name] = pod
                self.live.set_pod(pod)
                self.engine.state.set_pod(pod)
            case _:
                group = draw.choice(groups())
                self.engine.state.remove_group("default", group.name)
                status = self.engine.place(group)
                if status.state == "Placed":
                    self.engine.state.set_group(msgspec.structs.replace(group, status=status))

    def node(self, name: str) -> ClusterNode:
        number = int(name[1:])
        rack = number // 2 if self.random.random() < 0.9 else self.random.randrange(4)
        return ClusterNode(
            name=name,
            labels={"zone": f"z{rack // 2}", "rack": f"r{rack}", HOSTNAME: name},
            allocatable={
                "cpu": self.random.choice([4000, 8000]),
                "memory": 100,
                "pods": 20,
            },
            ready=self.random.random() < 0.8,
            taints=self.random.choice(TAINTS),
        )

    def report(self, name: str) -> NodeZones:
        zones = [Zone(name="s0", type="socket", parent="", costs={}, total={}, free={})]
        for number in range(2 if self.random.random() < 0.95 else 1):
            total = {"cpu": BILLIONTHS * self.random.randint(0, 4), "memory": BILLIONTHS * 100}
            free = total | {"cpu": min(total["cpu"], BILLIONTHS * self.random.randint(0, 9))}
            zones.append(Zone(f"node-{number}", "Node", "s0", {}, total=total, free=free))
        policy = self.random.choice(["single-numa-node", "none"])
        attributes = (("topologyManagerPolicy", policy),)
        return NodeZones(node=name, zones=(*zones,), attributes=attributes)

    def again(self) -> Engine:
        engine, live = engine_in(Cluster(self.engine.state.nodes.values(), self.zones.values()))
        for pod in self.pods.values():
            live.set_pod(pod)
            engine.state.set_pod(pod)
        for group in self.engine.state.groups.values():
            engine.state.set_group(group)
        return engine


def engine_in(cluster: Cluster) -> tuple[Engine, LiveZones]:
    zones = LiveZones(SETTINGS.extender, cluster.view, Clock(now=lambda: 0.0))
    cluster.follow(zones)
    return Engine(SETTINGS, cluster.view, partial(ZoneLimits, lambda: zones)), zones


def template(cpu: int) -> Template:
    amounts = {"cpu": cpu * 1000, "memory": 1}
    container = Container(name="c", requests=amounts, limits=amounts)
    return Template(spec=PodSpec(containers=(container,)))


def groups() -> list[PlacementGroup]:
    """Of hosts, of zones, of racks, spread: every sort of tree."""
    requests = [
        PlacementRequest(required="rack"),
        PlacementRequest(required="rack", slices=[Slice("zone/Node", 1)]),
        PlacementRequest(preferred="rack", slices=[Slice("zone/socket", 2)]),
        PlacementRequest(preferred="zone", topology="racks"),
        PlacementRequest(spread_over=["zone", "rack"]),
    ]
    return [
        PlacementGroup("default", f"g{number}", (PodSet("main", 2, template(2), request),))
        for number, request in enumerate(requests)
    ]


def room(tree: Tree) -> dict[Any, Any]:
    """What is left where there is a node: a tree that went on has empty leaves, too."""
    return {
        path: {name: each for name, each in tree.rows.room(leaf).items() if each and each < HOSTS}
        for leaf, path in enumerate(tree.shape.paths)
        if tree.rows.nodes_at(leaf)
    }


def shares(left: dict[str, int], pod: dict[str, int]) -> int:
    """Thousandths of pods that fit into what is left."""
    return min(max(0, left.get(name, 0)) * 1000 // amount for name, amount in pod.items())


def trees(engine: Engine) -> list[Tree]:
    return [
        engine.state.tree("hosts"),
        engine.state.tree("hosts", 1),
        engine.state.tree("hosts", 2),
        engine.state.tree("racks"),
    ]


@seeds(2)
def test_trees_that_went_on_are_as_those_made_anew(seed: int) -> None:
    events = Events(seed)
    engine = events.engine
    kept = 0
    for _ in range(STEPS):
        before = trees(engine)
        events.step()
        kept += all(one is other for one, other in zip(before, trees(engine), strict=True))
        anew = events.again()
        for one, other in zip(trees(engine), trees(anew), strict=True):
            assert room(one) == room(other)
        for group in groups():
            asked = msgspec.structs.replace(group, name="asked")
            assert engine.place(asked) == anew.place(asked)
            assert engine.spread(asked) == anew.spread(asked)
    assert kept > STEPS / 4, "many changes leave all trees as they are"


@seeds(2)
def test_what_a_domain_has_free_is_what_its_hosts_have(seed: int) -> None:
    events = Events(seed)
    pod = template(2).spec.effective()
    several = 0
    for _ in range(STEPS):
        events.step()
        for group in groups():
            try:
                found = UnitCapacity(events.engine.state, *units_of(group))
            except Unplaceable:
                continue
            tree = found.tree
            hosts = tree.hosts if isinstance(tree, ZoneTree) else tree
            for name in found.leaf:
                leaf = hosts.leaf_of(name)
                assert leaf is not None
                assert found.free(name) == shares(hosts.rows.room(leaf), pod)
            for level in range(min(found.host_level + 1, tree.shape.domains.levels)):
                for domain in tree.shape.domains.of_level(level):
                    below = tree.shape.domains.leaves_below(domain)
                    names = [name for name, leaf in found.leaf.items() if leaf in below]
                    assert sorted(tree.nodes_in([below])) == sorted(names)
                    assert found.free_below(domain) == sum(found.free(name) for name in names)
                    several += found.free_below(domain) > max(map(found.free, names), default=0)
    assert several > STEPS / 4, "many domains have several hosts with something free"
