"""Gates that are opened while other openings are under way: no place is given twice."""

from __future__ import annotations

import random
from collections import Counter

from nri_policy.cluster.engine.engine import Engine
from nri_policy.cluster.groups.assembly import Member
from nri_policy.cluster.groups.members import Members
from nri_policy.cluster.groups.placed_pods import PlacedPods
from nri_policy.cluster.groups.pod_writes import PendingPodWrites
from nri_policy.cluster.groups.writes import OpenGate
from nri_policy.cluster.objects.node import read_node
from nri_policy.cluster.objects.pod import read_pod
from nri_policy.cluster.objects.settings import ClusterSettings
from nri_policy.cluster.requests.group import read_group
from nri_policy.cluster.view import Cluster
from nri_policy.cluster.workloads.membership import Membership
from nri_policy.foundation.clock import Clock
from tests.property.seeds import seeds
from tests.unit.cluster.written import HOSTNAME, Object, group, node, pod_set, pod_spec

GATE = "placement.nri/group"
PLACES = {"h0": 2, "h1": 1, "h2": 3}
KEY = ("default", "g")


class Pods:
    """A group of six that has its places, and its pods: seen in any order, made anew."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        cluster = Cluster(read_node(node(name), "") for name in PLACES)
        engine = Engine(ClusterSettings(), cluster.view)
        self.known = known = Members(Clock(now=lambda: 0.0))
        self.changes = PendingPodWrites(
            engine.state, known, PlacedPods(engine.state, known), Clock(now=lambda: 0.0)
        )
        domains = [{"values": [host], "count": count} for host, count in PLACES.items()]
        status = {"assignments": [{"podSet": "main", "levels": [HOSTNAME], "domains": domains}]}
        self.group = read_group(group(pod_set(6), status=status))
        self.ranked = self.chance.random() < 0.7
        self.members: dict[str, Member] = {}
        self.ranks: dict[str, int] = {}
        self.under_way: dict[str, OpenGate] = {}
        self.revision = 0
        for rank in range(6):
            self.make(rank)

    def make(self, rank: int) -> None:
        """A pod comes that waits, whose name is anywhere among the others'."""
        self.revision += 1
        name = f"{self.chance.choice('abc')}{self.revision}"
        spec = pod_spec({"cpu": 1}, schedulingGates=[{"name": GATE}])
        self.see({"metadata": {"name": name, "uid": name}, "spec": spec}, rank)

    def see(self, item: Object, rank: int) -> None:
        self.revision += 1
        item["metadata"]["resourceVersion"] = str(self.revision)
        pod = read_pod(item, "")
        clear = self.ranked and self.chance.random() < 0.95  # else nobody knows its rank
        member = Member(pod, Membership(KEY, 6, None, rank if clear else None))
        self.members[pod.name] = member
        self.ranks[pod.name] = rank
        self.known.set_pod(pod)

    def ask(self) -> None:
        for write in self.changes.open(self.group, [*self.members.values()], ()):
            assert isinstance(write, OpenGate)
            name = write.opening.pod.name
            assert name not in self.under_way
            self.under_way[name] = write
            self.known.update((KEY[0], name), write=write)

    def answer(self) -> None:
        """The news of one write come; or it was refused."""
        name = self.chance.choice(sorted(self.under_way))
        write = self.under_way.pop(name)
        if self.chance.random() < 0.3:
            self.known.update((KEY[0], name), write=None)
            return
        spec = pod_spec({"cpu": 1}, nodeSelector=write.opening.selector)
        self.see({"metadata": {"name": name, "uid": name}, "spec": spec}, self.ranks[name])

    def end(self) -> None:
        """A pod is deleted, and its owner makes another."""
        name = self.chance.choice(sorted(self.members))
        del self.members[name]
        self.under_way.pop(name, None)
        self.known.remove_pod((KEY[0], name))
        self.make(self.ranks[name])

    def taken(self) -> Counter[str]:
        """The places that pods have, or are about to get."""
        pods = [each.pod for each in self.members.values() if not each.pod.gates]
        return Counter(each.spec.node_selector[HOSTNAME] for each in pods) + Counter(
            each.opening.selector[HOSTNAME] for each in self.under_way.values()
        )


@seeds(60)
def test_a_place_is_taken_from_when_the_opening_of_a_gate_to_it_is_asked(seed: int) -> None:
    pods = Pods(seed)
    for _ in range(40):
        what = pods.chance.random()
        if what < 0.4:
            pods.ask()
        elif what < 0.75 and pods.under_way:
            pods.answer()
        else:
            pods.end()
        assert all(number <= PLACES[host] for host, number in pods.taken().items())
    pods.ask()
    assert pods.taken() == PLACES  # none is left without a place, either
