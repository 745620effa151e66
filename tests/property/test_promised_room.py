"""What is promised of nodes, kept event by event, against all of it counted anew."""

from __future__ import annotations

import random
from collections import Counter

from nri_policy.cluster.engine.engine import Engine
from nri_policy.cluster.numa.promised_room import PromisedRoom
from nri_policy.cluster.objects.document import Amounts
from nri_policy.cluster.objects.metadata import Key
from nri_policy.cluster.objects.node import read_node
from nri_policy.cluster.objects.pod import Pod, read_pod
from nri_policy.cluster.objects.settings import ClusterSettings
from nri_policy.cluster.requests.group import PlacementGroup, read_group
from nri_policy.cluster.view import Cluster
from nri_policy.foundation.clock import Clock
from tests.property.seeds import seeds
from tests.unit.cluster.written import HOSTNAME, group, node, pod_set, pod_spec

HOSTS = [f"h{at}" for at in range(4)]
GROUPS = ["a", "b", "c"]
CPUS = 16


class Events:
    """Groups, pods and nodes that come, change and go, in any order."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.now = 0.0
        self.cluster = Cluster()
        self.engine = Engine(ClusterSettings(), self.cluster.view)
        self.room = PromisedRoom(self.cluster.view, Clock(now=lambda: self.now))
        self.engine.state.on_group = self.room.set_group
        self.cluster.follow(self.engine.state, self.room)
        self.pods: dict[str, Pod] = {}

    def happen(self) -> None:
        self.chance.choice([self.group, self.group_goes, self.pod, self.pod, self.pod_goes,
                            self.ask, self.ask, self.node])()  # fmt: skip

    def group(self) -> None:
        levels = self.chance.choice([[HOSTNAME], ["example.com/rack", HOSTNAME], ["other"]])
        assignments = []
        sets = []
        for name in ("main", "more")[: self.chance.randint(0, 2)]:
            hosts = self.chance.sample(HOSTS, self.chance.randint(1, 3))
            places = [
                {"values": ["r"] * (len(levels) - 1) + [host], "count": self.chance.randint(1, 2)}
                for host in hosts
            ]
            count = sum(place["count"] for place in places if isinstance(place["count"], int))
            sets.append(pod_set(count, name=name, cpu=self.chance.randint(1, 4)))
            assignments.append({"podSet": name, "levels": levels, "domains": places})
        made = group(
            *sets,
            name=self.chance.choice(GROUPS),
            status={"assignments": assignments},
            priority=self.chance.randint(0, 1),
        )
        self.engine.state.set_group(read_group(made))

    def group_goes(self) -> None:
        self.engine.state.remove_group("default", self.chance.choice(GROUPS))

    def pod(self) -> None:
        name = f"p{self.chance.randint(0, 12)}"
        old = self.pods.get(name)
        at = old.node if old is not None and old.node else self.chance.choice(["", *HOSTS])
        of = self.chance.choice(["", *GROUPS])
        pod = self.read(name, at, of, self.chance.choice(["Pending", "Running", "Failed"]))
        if old is not None:  # nothing of it changes but these two
            pod = self.read(name, at, of, pod.phase, old)
        self.pods[name] = pod
        self.engine.state.set_pod(pod)
        self.room.set_pod(pod)

    def read(self, name: str, at: str, of: str, phase: str, old: Pod | None = None) -> Pod:
        cpu = self.chance.randint(1, 4)
        if old is not None:
            cpu = old.spec.containers[0].requests["cpu"] // 1000
            of = old.annotations.get("placement.nri/group", "")
        annotations = {"placement.nri/group": of} if of else {}
        spec = pod_spec({"cpu": cpu}, nodeName=at)
        metadata = {"name": name, "annotations": annotations}
        return read_pod({"metadata": metadata, "spec": spec, "status": {"phase": phase}}, "")

    def pod_goes(self) -> None:
        if self.pods:
            name = self.chance.choice(sorted(self.pods))
            del self.pods[name]
            self.engine.state.remove_pod("default", name)
            self.room.remove_pod("default", name)

    def node(self) -> None:
        name = self.chance.choice(HOSTS)
        if name in self.cluster.view.nodes and self.chance.random() < 0.3:
            self.cluster.remove_node(name)
        else:
            self.cluster.set_node(read_node(node(name, cpu=CPUS, RACK="r"), ""))

    def ask(self) -> None:
        """A pod asks, and may go where it fits."""
        self.now += self.chance.choice([0.0, 1.0, 20.0])
        pod = self.read(f"q{self.chance.randint(0, 3)}", "", self.chance.choice(["", "a"]), "")
        self.room.expire()
        self.room.withdraw((pod.namespace, pod.name))
        refused = self.room.refusals(pod, HOSTS)
        assert refused.keys() == {host for host in HOSTS if not self.fits(pod, host)}
        self.room.let_through(pod, [host for host in HOSTS if host not in refused])

    def fits(self, pod: Pod, host: str) -> bool:
        """Whether a pod fits beside all that is promised, or nothing is promised to others."""
        if host not in self.cluster.view.nodes:
            return True
        own = ("default", pod.annotations.get("placement.nri/group", ""))
        promised = self.promised(host)
        others = sum(amounts["cpu"] for key, amounts in promised.items() if key != own)
        used = sum(
            each.spec.containers[0].requests["cpu"]
            for each in self.pods.values()
            if each.node == host and not each.finished
        )
        through = 0
        groups = self.engine.state.groups
        if own not in groups or not groups[own].status.assignments:
            through = self.room._taken.get(host, {}).get("cpu", 0)
        asked = pod.spec.containers[0].requests["cpu"]
        return not others or CPUS * 1000 - used - others - through >= asked

    def promised(self, host: str) -> dict[Key, Amounts]:
        """The places on a host to which no pod is bound, counted anew."""
        found = {}
        for key, each in self.engine.state.groups.items():
            left = self.assigned(each, host)
            for pod in self.pods.values():
                if (
                    pod.node == host
                    and not pod.finished
                    and pod.annotations.get("placement.nri/group") == key[1]
                ):
                    left.subtract({"cpu": pod.spec.containers[0].requests["cpu"], "pods": 1})
            if +left:
                found[key] = dict(+left) | {"cpu": max(left["cpu"], 0)}
        return found

    def assigned(self, each: PlacementGroup, host: str) -> Counter[str]:
        left: Counter[str] = Counter()
        kinds = {one.name: one.template.spec.containers[0].requests for one in each.pod_sets}
        for assignment in each.status.assignments:
            for place in assignment.domains if HOSTNAME in assignment.levels else ():
                if place.values[-1] == host:
                    left["cpu"] += kinds[assignment.pod_set]["cpu"] * place.count
                    left["pods"] += place.count
        return left


@seeds(60)
def test_what_is_promised_is_what_counting_it_anew_gives(seed: int) -> None:
    events = Events(seed)
    for _ in range(60):
        events.happen()
        for host in HOSTS:
            kept = {
                key: dict(amounts) | {"cpu": amounts.get("cpu", 0)}
                for key, amounts in events.room.promised(host).items()
            }
            assert kept == events.promised(host), host
    for name in [*events.pods]:
        events.engine.state.remove_pod("default", name)
        events.room.remove_pod("default", name)
    for name in GROUPS:
        events.engine.state.remove_group("default", name)
    for at in range(4):
        events.room.withdraw(("default", f"q{at}"))
    left = [value for name, value in vars(events.room).items() if name not in ("_view", "_clock")]
    assert not any(left), "nothing is kept of what is gone"
