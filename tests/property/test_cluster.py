"""A cluster whose nodes fail and return at random: what its groups were promised holds."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import msgspec

from nri_policy.cluster.engine.engine import Engine
from nri_policy.cluster.objects.node import HOSTNAME, ClusterNode, Taint
from nri_policy.cluster.objects.pod import Container, Pod, PodSpec, Template
from nri_policy.cluster.objects.settings import ClusterSettings, Topology
from nri_policy.cluster.requests.group import (
    GroupStatus,
    PlacementGroup,
    PlacementRequest,
    PodSet,
    Slice,
)
from nri_policy.cluster.view import Cluster
from tests.property.seeds import seeds

STEPS = 3000
LEVELS = ("zone", "rack", HOSTNAME)
TAINT = Taint(key="broken", effect="NoExecute")


def template(cpu: int) -> Template:
    container = Container(name="c", requests={"cpu": cpu * 1000}, limits={})
    return Template(spec=PodSpec(containers=(container,)))


class ChangingCluster:
    """What happens to a cluster of 24 nodes; whatever is drawn is applied to the engine."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.settings = ClusterSettings(topologies=[Topology(levels=[*LEVELS])])
        self.healthy = {
            name: ClusterNode(
                name=name,
                labels={"zone": f"z{n // 12}", "rack": f"r{n // 4}", HOSTNAME: name},
                allocatable={"cpu": 8000 + n % 3 * 4000, "pods": 20},
            )
            for n in range(24)
            for name in [f"n{n:02}"]
        }
        self.cluster = Cluster(self.healthy.values())
        self.engine = Engine(self.settings, self.cluster.view)
        self.cluster.follow(self.engine.state)
        self.number = 0

    def node(self) -> ClusterNode:
        return self.healthy[self.random.choice([*self.healthy])]

    def fail(self) -> None:
        node = self.node()
        match self.random.randrange(3):
            case 0:
                self.cluster.remove_node(node.name)
            case 1:
                self.cluster.set_node(msgspec.structs.replace(node, ready=False))
            case _:
                self.cluster.set_node(msgspec.structs.replace(node, taints=(TAINT,)))
        self.repair()

    def come_back(self) -> None:
        self.cluster.set_node(self.node())

    def repair(self) -> None:
        """Replace what failed nodes took; a group that cannot be repaired goes."""
        up = {name for name, node in self.engine.state.nodes.items() if node == self.healthy[name]}
        for key, group in list(self.engine.state.groups.items()):
            hosts = {one.values[0] for each in group.status.assignments for one in each.domains}
            if lost := sorted(hosts - up):
                status = msgspec.structs.replace(group.status, unhealthy_nodes=lost)
                answer = self.engine.place(msgspec.structs.replace(group, status=status))
                if answer.state == "Placed":
                    self.engine.state.set_group(msgspec.structs.replace(group, status=answer))
                else:
                    self.engine.state.remove_group(*key)

    def arrive(self) -> None:
        """A group comes, and is placed if it fits."""
        self.number += 1
        size = self.random.choice([1, 1, 2, 4])
        slices = [Slice(self.random.choice(["rack", HOSTNAME]), size)] if size > 1 else []
        if size == 4 and slices[0].level == "rack" and self.random.random() < 0.5:
            slices.append(Slice(HOSTNAME, 2))
            if self.random.random() < 0.5:
                slices = [
                    Slice("zone", 8),
                    Slice("rack", 4),
                    Slice(HOSTNAME, self.random.choice([2, 4])),
                ]
                size = 8
        mode = self.random.choice(["required", "preferred", "unconstrained", ""])
        request: dict[str, Any] = {"slices": slices}
        if mode in ("required", "preferred"):
            request[mode] = self.random.choice(["zone", "rack"])
        elif mode and not slices:
            request["unconstrained"] = True
        request["algorithm"] = self.random.choice([None, "Balanced", "BestFit", "LeastFree"])
        cpu, count = self.random.randint(1, 3), size * self.random.randint(1, 6)
        led = not slices and mode in ("required", "preferred") and self.random.random() < 0.3
        asked = PlacementRequest(**request, leader_group="pair" if led else None)
        workers = PodSet("w", count, template(cpu), asked)
        leader = PodSet("l", 1, template(2), asked)
        pod_sets = (leader, workers) if led else (workers,)
        group = PlacementGroup("default", f"g{self.number}", pod_sets)
        before = self.state()
        answer = self.engine.place(group)
        assert self.state() == before
        if answer.state == "Placed":
            self.engine.state.set_group(msgspec.structs.replace(group, status=answer))

    def leave(self) -> None:
        if self.engine.state.groups:
            self.engine.state.remove_group(*self.random.choice([*self.engine.state.groups]))

    def bind(self) -> None:
        """Bind another pod to a node that has room for it."""
        node, spec = self.node(), template(1).spec
        leaf = self.engine.state.tree("default").leaf_of(node.name)
        if (
            leaf is not None
            and self.engine.state.tree("default").rows.room(leaf).get("cpu", 0) >= 1000
        ):
            self.number += 1
            self.engine.state.set_pod(Pod("default", f"p{self.number % 40}", spec, node=node.name))

    def unbind(self) -> None:
        self.engine.state.remove_pod("default", f"p{self.random.randrange(40)}")

    def step(self) -> None:
        actions = [self.fail, self.come_back, self.arrive, self.arrive, self.leave]
        self.random.choice([*actions, self.come_back, self.bind, self.unbind])()

    def state(self) -> dict[Any, Any]:
        """The non-zero free amounts of every leaf with a node."""
        tree = self.engine.state.tree("default")
        return {
            tree.shape.paths[n]: {
                name: amount for name, amount in tree.rows.room(n).items() if amount
            }
            for n in range(tree.shape.domains.leaves)
            if tree.rows.nodes_at(n)
        }

    def check(self) -> None:
        for path, room in self.state().items():
            assert all(amount >= 0 for amount in room.values()), (path, room)
        for group in self.engine.state.groups.values():
            everywhere: list[str] = []
            wanted = group.pod_sets[0].request
            assert wanted is not None
            for pod_set in group.pod_sets:
                [each] = [a for a in group.status.assignments if a.pod_set == pod_set.name]
                hosts = {one.values[0]: one.count for one in each.domains}
                assert sum(hosts.values()) == pod_set.count
                request = pod_set.request
                assert request is not None
                for layer in request.slices:
                    held: Counter[str] = Counter()
                    for host, count in hosts.items():
                        held[self.healthy[host].labels[layer.level]] += count
                    assert not any(count % layer.size for count in held.values()), group
                everywhere += hosts
            if level := wanted.required:
                assert len({self.healthy[host].labels[level] for host in everywhere}) == 1


@seeds(3)
def test_promises_hold_whatever_fails(seed: int) -> None:
    cluster = ChangingCluster(seed)
    for number in range(STEPS):
        cluster.step()
        cluster.check()
        if number % 50 == 0:
            assert fresh(cluster) == cluster.state()
    assert cluster.engine.state.groups


def fresh(cluster: ChangingCluster) -> dict[Any, Any]:
    """The state of an engine that is told all at once, in another order."""
    other, shuffled = ChangingCluster(0), random.Random(1)
    nodes, groups = [*cluster.engine.state.nodes.values()], [*cluster.engine.state.groups.values()]
    pods = [*cluster.engine.state.pods().items()]
    for each in (nodes, groups, pods):
        shuffled.shuffle(each)
    other.engine = Engine(cluster.settings, Cluster(nodes).view)
    for group in groups:
        other.engine.state.set_group(group)
    for name, (node, kind, ends) in pods:
        other.engine.state.bind(*name, node, kind, ends=ends)
    return other.state()


def test_a_group_that_never_fitted_changes_nothing() -> None:
    cluster = ChangingCluster(0)
    before = cluster.state()
    huge = PlacementGroup(
        "default", "g", (PodSet("w", 10_000, template(1), PlacementRequest(required="rack")),)
    )
    answer = cluster.engine.place(huge)
    assert answer == GroupStatus(
        state="Unplaceable",
        message='topology "default" allows to fit only 52 out of 10000 pod(s)',
    )
    assert cluster.state() == before


@seeds(100)
def test_the_order_of_pod_sets_does_not_decide_whether_a_group_that_is_spread_fits(
    seed: int,
) -> None:
    draw = random.Random(seed)
    topology = Topology(levels=["rack", HOSTNAME])
    nodes = [
        ClusterNode(
            name=f"n{at}",
            labels={"rack": f"r{at // 3}", HOSTNAME: f"n{at}"},
            allocatable={"cpu": draw.choice([2, 4]) * 1000, "pods": 10},
        )
        for at in range(6)
    ]
    engine = Engine(ClusterSettings(topologies=[topology]), Cluster(nodes).view)
    asked = [
        PlacementRequest(spread_over=["rack"], max_per_host=draw.choice([None, 1, 2])),
        draw.choice(
            [
                PlacementRequest(required="rack"),
                PlacementRequest(unconstrained=True),
                PlacementRequest(spread_over=[HOSTNAME]),
            ]
        ),
    ]
    pod_sets = tuple(
        PodSet(name, draw.randint(1, 9), template(draw.randint(1, 4)), request)
        for name, request in zip("ab", asked, strict=True)
    )
    found = [
        engine.place(PlacementGroup("default", "g", order)) for order in (pod_sets, pod_sets[::-1])
    ]
    assert found[0].state == found[1].state
