"""Groups come and go, nodes fail: nobody starves, and what is set aside stays set aside."""

from __future__ import annotations

import random

import msgspec

from nri_policy.cluster.engine.engine import Engine
from nri_policy.cluster.groups.record import QueuePlace, rank_of
from nri_policy.cluster.groups.table import GroupTable
from nri_policy.cluster.groups.waiting import WaitingGroups
from nri_policy.cluster.objects.metadata import Key
from nri_policy.cluster.objects.node import HOSTNAME, ClusterNode
from nri_policy.cluster.objects.settings import ClusterSettings, Groups, Topology
from nri_policy.cluster.requests.group import (
    GroupStatus,
    PlacementGroup,
    PlacementRequest,
    PodSet,
    hosts_of,
)
from nri_policy.cluster.view import Cluster
from tests.property.seeds import seeds
from tests.property.test_cluster import template

HOSTS, IN_RACK, CPUS = 12, 3, 4
TIMEOUT, LONGEST = 20, 15  # steps: until a group holds, that a group runs
STEPS = 400


class CrowdedCluster:
    """More groups come than fit; every step each host and each queue entry is checked."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        topology = Topology(levels=["rack", HOSTNAME])
        self.settings = ClusterSettings(topologies=[topology], groups=Groups(timeout=TIMEOUT))
        self.nodes = [
            ClusterNode(
                name=f"n{at:02}",
                labels={"rack": f"r{at // IN_RACK}", HOSTNAME: f"n{at:02}"},
                allocatable={"cpu": CPUS * 1000, "pods": 20},
            )
            for at in range(HOSTS)
        ]
        self.groups: dict[Key, PlacementGroup] = {}
        self.since: dict[Key, int] = {}  # of those that wait
        self.ends: dict[Key, int] = {}  # of those that run
        self.holding: dict[Key, tuple[list[str], int]] = {}  # hosts, for how many steps
        self.now = 0
        self.empty = Engine(self.settings, Cluster(self.nodes).view)
        self.elect()

    def elect(self) -> None:
        """Another leader begins, from what is stored."""
        self.cluster = Cluster()
        self.engine = Engine(self.settings, self.cluster.view)
        self.cluster.follow(self.engine.state)
        self.waiting = WaitingGroups(self.engine, GroupTable())
        for node in self.nodes:
            self.set_node(node)
        for key, group in self.groups.items():
            if key in self.ends:
                self.engine.state.set_group(group)
            else:
                self.waiting.restore(key, tuple(group.status.reserved), 0.0)
                self.put(key)

    def set_node(self, node: ClusterNode) -> None:
        self.cluster.set_node(node)
        self.waiting.see_cluster()

    def put(self, key: Key) -> None:
        since, group = self.since[key], self.groups[key]
        reserved = bool(group.status.reserved)
        rank = rank_of(0, since, f"{since:06}{key[1]}")
        self.waiting.queue.put(key, QueuePlace(rank, holds=reserved))

    def come(self) -> None:
        """A group comes, of any size and request that the empty cluster holds."""
        name = f"g{self.now:04}{len(self.since):03}"
        group = self.draw(name)
        while self.empty.place(group).state != "Placed":  # one pod set can be in another's way
            group = self.draw(name)
        self.groups["default", name] = group
        self.since["default", name] = self.now
        self.put(("default", name))

    def draw(self, name: str) -> PlacementGroup:
        draw = self.random
        request = draw.choice(
            [
                PlacementRequest(required="rack"),
                PlacementRequest(preferred="rack"),
                PlacementRequest(unconstrained=True),
                PlacementRequest(required=HOSTNAME),
                PlacementRequest(spread_over=["rack"]),
            ]
        )
        most = {"rack": IN_RACK, HOSTNAME: 1}.get(request.required or "", HOSTS // 2)
        cpu = draw.choice([1, 1, 2, 4])
        count = draw.randint(1, most * (CPUS // cpu))
        first = PodSet(name="main", count=count, template=template(cpu), request=request)
        pod_sets = [first]
        if draw.random() < 0.2:
            pod_sets.insert(draw.randrange(2), PodSet("other", 1, template(draw.choice([1, 3]))))
        return PlacementGroup("default", name, tuple(pod_sets))

    def end(self) -> None:
        for key in [key for key, at in self.ends.items() if at <= self.now]:
            del self.ends[key], self.groups[key]
            self.engine.state.remove_group(*key)
            self.waiting.queue.note_change()

    def fail(self) -> None:
        """Have a node fail, or one return; groups on a failed node keep their places there."""
        at = self.random.randrange(HOSTS)
        if all(each.ready for each in self.nodes) or not self.nodes[at].ready:
            self.nodes[at] = msgspec.structs.replace(self.nodes[at], ready=not self.nodes[at].ready)
            self.set_node(self.nodes[at])
            self.holding.clear()

    def step(self) -> None:
        self.now += 1
        self.end()
        while len(self.since) < 12:
            self.come()
        if self.random.random() < 0.02:
            self.fail()
        if self.random.random() < 0.1:
            self.elect()
        queue = self.waiting.queue
        self.waiting.hold(self.now, self.groups.__getitem__)
        before = {key: (rank, hosts) for key, rank, hosts in self.waiting.reservations()}
        self.waiting.begin_round()
        for key in queue.due():
            rank = queue.rank(key)
            status = self.waiting.place(key, self.groups[key])
            if not status.assignments:
                hopeless = self.waiting.is_hopeless(self.groups[key])
                queue.note_refusal(key, hopeless=hopeless)
                continue
            self.start(key, status)
            for holder, (other, hosts) in before.items():
                if holder not in self.ends:
                    taken = {*hosts} & hosts_of(self.groups[key]).keys()
                    assert rank < other or not taken, (key, holder, taken)
        self.store()

    def start(self, key: Key, status: GroupStatus) -> None:
        self.groups[key] = msgspec.structs.replace(self.groups[key], status=status)
        self.engine.state.set_group(self.groups[key])
        self.waiting.queue.remove(key)
        del self.since[key]
        self.ends[key] = self.now + self.random.randint(1, LONGEST)

    def store(self) -> None:
        """The same hosts are set aside for no longer than groups run; the status has them."""
        for key in self.since:
            hosts = [*self.waiting.reserved(key)]
            status = GroupStatus(reserved=hosts)
            self.groups[key] = msgspec.structs.replace(self.groups[key], status=status)
            before, steps = self.holding.get(key, ([], 0))
            self.holding[key] = (hosts, steps + 1 if hosts and hosts == before else 0)
            assert self.holding[key][1] <= LONGEST + 1, (key, hosts)
        self.holding = {key: each for key, each in self.holding.items() if key in self.since}


@seeds(20)
def test_every_group_that_fits_an_empty_cluster_is_placed_in_bounded_time(seed: int) -> None:
    cluster = CrowdedCluster(seed)
    for _ in range(STEPS):
        cluster.step()
    ready = all(each.ready for each in cluster.nodes)
    first = min(cluster.since.values())
    assert cluster.now - first <= TIMEOUT + 13 * (LONGEST + 2) or not ready
