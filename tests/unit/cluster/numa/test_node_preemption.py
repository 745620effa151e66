"""Whom a pod may evict so that a zone takes it: against brute force, and as kube-scheduler asks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, combinations
from random import Random
from typing import Any

import msgspec
import pytest

from nri_policy.cluster.numa.extender import BadRequestError, Verbs
from nri_policy.cluster.numa.node_pods import NodePods
from nri_policy.cluster.numa.node_preemption import Preemption, Victims
from nri_policy.cluster.numa.promised_room import PromisedRoom
from nri_policy.cluster.numa.promises import LiveZones
from nri_policy.cluster.numa.service_spread import ServiceSpread
from nri_policy.cluster.objects.budget import Budget
from nri_policy.cluster.objects.label_selector import LabelSelector
from nri_policy.cluster.objects.node import read_node
from nri_policy.cluster.objects.pod import Pod, read_pod
from nri_policy.cluster.objects.settings import Extender
from nri_policy.cluster.requests.group import read_group
from nri_policy.cluster.view import Cluster
from nri_policy.cluster.zones.zone import read_zones
from nri_policy.foundation.clock import Clock
from nri_policy.nrt.numaplacement import METADATA, VECTOR, encode
from tests.support.zone_reports import zone_report
from tests.unit.cluster.written import HOSTNAME, group, node, pod_set

Object = dict[str, Any]


def document(name: str, cpu: int, at: str = "", priority: int = 0, **more: Any) -> Object:
    """A Guaranteed pod."""
    amounts = {"cpu": str(cpu), "memory": "1Gi"}
    zone = more.pop("zone", None)
    annotations = {} if zone is None else {"placement.nri/zone": f"node-{zone}"}
    container = {"name": "c", "resources": {"requests": amounts, "limits": amounts}}
    return {
        "metadata": {
            "name": name,
            "uid": f"u-{name}",
            "annotations": annotations,
            "creationTimestamp": more.pop("created", "2026-01-01T00:00:00Z"),
            "labels": {"app": name[0]},
        },
        "spec": {"nodeName": at, "priority": priority, "containers": [container], **more},
        "status": {"phase": "Running"},
    }


class Nodes:
    """Nodes of two zones of 4 CPUs, which align pods."""

    def __init__(self) -> None:
        self.cluster = Cluster()
        self.zones = LiveZones(Extender(), self.cluster.view, Clock(now=lambda: 0.0))
        self.cluster.follow(self.zones)
        self.pods = NodePods()

    def add(self, name: str, pods: Sequence[Object], *free: int, cpu: int = 8) -> None:
        self.cluster.set_node(read_node(node(name, cpu=cpu, memory="64Gi"), ""))
        report = zone_report(name, *(free or (0, 0)), cpus=4, memory="32Gi")
        self.cluster.set_zones(read_zones(report, ""))
        for each in pods:
            pod = read_pod(each, "")
            self.zones.set_pod(pod)
            self.pods.set_pod(pod)

    def choose(self, asked: Object, **proposed: list[str]) -> dict[str, Victims]:
        given = {name: ({f"u-{one}" for one in each}, 0) for name, each in proposed.items()}
        return Preemption(self.zones, self.pods).choose(read_pod(asked, ""), given)

    def say_zones(self, name: str, **of: int) -> None:
        """Have a full node report in which zone the container of each of these pods is."""
        encoded = encode({("default", pod, "c"): zone for pod, zone in of.items()}, 2)
        report = zone_report(name, 0, 0, cpus=4, memory="32Gi")
        report["attributes"].append({"name": METADATA, "value": encoded.metadata})
        for zone, vector in encoded.vectors.items():
            report["zones"][zone]["attributes"] = [{"name": VECTOR, "value": vector}]
        self.cluster.set_zones(read_zones(report, ""))


def names(victims: Victims) -> list[str]:
    return sorted(each.name for each in victims.pods)


FOUR = [
    document(f"{zone}{number}", 2, "n", zone=at)
    for at, zone in enumerate("ab")
    for number in (1, 2)
]


def test_victims_whose_leaving_frees_no_zone_are_others() -> None:
    nodes = Nodes()
    nodes.add("n", FOUR)
    asked = document("x", 4, priority=1)
    assert names(nodes.choose(asked, n=["a1", "b1"])["n"]) in (["a1", "a2"], ["b1", "b2"])
    assert names(nodes.choose(asked, n=["a1", "a2"])["n"]) == ["a1", "a2"]


def test_a_node_that_no_leaving_helps_is_dropped() -> None:
    nodes = Nodes()
    high = [document(f"{zone}h", 2, "n", 5, zone=at) for at, zone in enumerate("ab")]
    low = [document(f"{zone}l", 2, "n", 0, zone=at) for at, zone in enumerate("ab")]
    nodes.add("n", high + low)
    assert nodes.choose(document("x", 4, priority=1), n=["al", "bl"]) == {}
    assert nodes.choose(document("x", 5, priority=9), n=["al", "bl"]) == {}


def test_where_zones_are_unknown_the_fullest_is_believed() -> None:
    nodes = Nodes()
    nodes.add("n", [document(f"p{at}", 2, "n") for at in range(4)])
    found = nodes.choose(document("x", 4, priority=1), n=["p0", "p1"])
    # Two may be of two zones; that all four free both is certain.
    assert 2 <= len(found["n"].pods) <= 4
    leaving = {"n": found["n"].pods}
    trial = nodes.zones.fork(["n"], leaving)
    assert not trial.verdict("n", trial.fits.request(read_pod(document("x", 4), "")))


def test_zones_are_known_that_the_node_reports_of_its_containers() -> None:
    nodes = Nodes()
    nodes.add("n", [document(name, 2, "n") for name in ("p0", "p1", "p2", "p3")])
    asked = document("x", 4, priority=1)
    for zones in ((0, 0, 1, 1), (0, 1, 0, 1), (1, 0, 0, 1)):
        of = {f"p{at}": zone for at, zone in enumerate(zones)}
        nodes.say_zones("n", **of)
        one, other = sorted(of, key=lambda name: (of[name] != of["p0"], name))[:2]
        assert names(nodes.choose(asked, n=[one, other])["n"]) == sorted([one, other])
        apart = next(name for name in of if of[name] != of["p0"])
        victims = names(nodes.choose(asked, n=["p0", apart])["n"])
        assert len(victims) == 2
        assert len({of[name] for name in victims}) == 1


def test_what_a_node_reports_of_other_containers_is_not_believed() -> None:
    nodes = Nodes()
    nodes.add("n", FOUR)
    asked = document("x", 4, priority=1)
    moved = {"a1": 1, "b1": 1, "a2": 0, "b2": 0}
    nodes.say_zones("n", **moved)
    assert names(nodes.choose(asked, n=["a1", "b1"])["n"]) == ["a1", "b1"], "before annotations"
    nodes.say_zones("n", **moved, other=0)
    assert names(nodes.choose(asked, n=["a1", "b1"])["n"]) in (["a1", "a2"], ["b1", "b2"])
    nodes.say_zones("n", **moved)
    for each in (nodes.zones, nodes.pods):
        each.remove_pod("default", "b2")
    assert names(nodes.choose(asked, n=["a1"])["n"]) != ["a1"], "one of them has gone since"


def test_containers_of_a_pod_are_in_zones_of_their_own() -> None:
    nodes = Nodes()
    wide = document("w", 2, "n")
    one = wide["spec"]["containers"][0]
    wide["spec"]["initContainers"] = [one | {"name": "s", "restartPolicy": "Always"}]
    wide["spec"]["initContainers"].append(one | {"name": "before"})
    nodes.add("n", [wide, document("p", 2, "n"), document("q", 2, "n")])
    encoded = {("default", "w", "s"): 0, ("default", "w", "c"): 1}
    encoded |= {("default", "p", "c"): 1, ("default", "q", "c"): 0}
    report = zone_report("n", 0, 0, cpus=4, memory="32Gi")
    found = encode(encoded, 2)
    report["attributes"].append({"name": METADATA, "value": found.metadata})
    report["zones"][1]["attributes"] = [{"name": VECTOR, "value": found.vectors[1]}]
    nodes.cluster.set_zones(read_zones(report, ""))
    held = nodes.zones.held("n", read_pod(wide, ""))
    assert [each.zone for each in held] == [0, 1]
    victims = names(nodes.choose(document("x", 4, priority=1), n=["p", "q"])["n"])
    assert victims in (["p", "w"], ["q", "w"])


def test_budgets_come_first_then_priority_then_age() -> None:
    asked = document("x", 4, priority=9)
    nodes = Nodes()
    nodes.add("n", FOUR)
    nodes.pods.set_budget(("default", "a"), Budget("default", "a", LabelSelector({"app": "a"}), 0))
    found = nodes.choose(asked, n=["a1", "b1"])["n"]
    assert (names(found), found.violations) == (["b1", "b2"], 0)
    nodes.pods.set_budget(("default", "b"), Budget("default", "b", LabelSelector({"app": "b"}), 1))
    found = nodes.choose(asked, n=["a1", "b1"])["n"]
    assert (names(found), found.violations) == (["b1", "b2"], 1)
    nodes.pods.set_budget(("default", "a"), None)
    assert names(nodes.choose(asked, n=["a1", "b1"])["n"]) == ["a1", "a2"]
    older = Nodes()
    dates = {"a": "2026-01-02T00:00:00Z", "b": "2026-01-01T00:00:00Z"}
    other = [
        document(f"{zone}{at}", 2, "n", zone=number, created=dates[zone])
        for number, zone in enumerate("ab")
        for at in (1, 2)
    ]
    older.add("n", other)
    assert names(older.choose(asked, n=["a1", "b1"])["n"]) == ["a1", "a2"]


def test_what_else_kube_scheduler_judges_needs_its_victims_to_leave() -> None:
    nodes = Nodes()
    nodes.add("n", FOUR)
    port = document("x", 4, priority=1)
    port["spec"]["containers"][0]["ports"] = [{"hostPort": 80}]
    found = nodes.choose(port, n=["a1", "b1"])["n"]
    assert {"a1", "b1"} <= {*names(found)}
    assert len(found.pods) == 3


def test_small_nodes_against_brute_force() -> None:
    """Every set of victims: none breaks fewer budgets, and of those none is smaller."""
    chance = Random(3)
    chosen = 0
    for turn in range(300):
        pods, free = [], [4, 4]
        for number in range(chance.randint(2, 6)):
            zone, cpu = chance.randint(0, 1), chance.randint(1, 3)
            if free[zone] >= cpu:
                free[zone] -= cpu
                name, priority = f"{chance.choice('abc')}{number}", chance.randint(0, 2)
                pods.append(document(name, cpu, "n", priority, zone=zone))
        nodes = Nodes()
        nodes.add("n", pods, *free)
        budgets = {kind: chance.randint(0, 2) for kind in "ab"}
        for kind, allowed in budgets.items():
            budget = Budget("default", kind, LabelSelector({"app": kind}), allowed)
            nodes.pods.set_budget(("default", kind), budget)
        cpu = chance.randint(2, 4)
        if max(free) >= cpu:
            continue
        lower = [each for each in pods if each["spec"]["priority"] < 2]
        best = None
        for leaving in chain.from_iterable(combinations(lower, n) for n in range(len(lower) + 1)):
            after = [*free]
            for each in leaving:
                zone = int(each["metadata"]["annotations"]["placement.nri/zone"][-1])
                after[zone] += int(each["spec"]["containers"][0]["resources"]["limits"]["cpu"])
            if max(after) < cpu:
                continue
            kinds = [each["metadata"]["name"][0] for each in leaving]
            broken = sum(max(0, kinds.count(kind) - most) for kind, most in budgets.items())
            best = min(best or (99, 99), (broken, len(leaving)))
        found = nodes.choose(document("x", cpu, priority=2), n=[])
        if best is None:
            assert not found, turn
        else:
            victims = found["n"]
            assert (victims.violations, len(victims.pods)) == best, (turn, names(victims))
            chosen += 1
    assert chosen > 100


def ask(verbs: Verbs, asked: Object, **victims: list[str]) -> Any:
    given = {
        name: {"Pods": [{"UID": f"u-{one}"} for one in each], "NumPDBViolations": 1}
        for name, each in victims.items()
    }
    body = {"Pod": asked, "NodeNameToVictims": None, "NodeNameToMetaVictims": given}
    return msgspec.json.decode(verbs.preempt(msgspec.json.encode(body)))["NodeNameToMetaVictims"]


def test_the_verb_answers_with_uids_and_drops_nodes_without_victims() -> None:
    nodes = Nodes()
    nodes.add("n", FOUR)
    nodes.add("m", [document("m1", 4, "m", zone=0), document("m2", 4, "m", 9, zone=1)])
    view = nodes.cluster.view
    verbs = Verbs(nodes.zones, ServiceSpread(view, Clock(now=lambda: 0.0)), pods=nodes.pods)
    asked = document("x", 4, priority=1)
    assert ask(verbs, asked, n=["a1", "a2"], m=["m1"], gone=["g"]) == {
        "n": {"Pods": [{"UID": "u-a1"}, {"UID": "u-a2"}], "NumPDBViolations": 1},
        "m": {"Pods": [{"UID": "u-m1"}], "NumPDBViolations": 1},
    }
    closed = Verbs(
        nodes.zones,
        ServiceSpread(view, Clock(now=lambda: 0.0)),
        pods=nodes.pods,
        closed_to=lambda _pod: {"n": "set aside"},
    )
    assert {*ask(closed, asked, n=["a1", "a2"], m=["m1"])} == {"m"}
    with pytest.raises(BadRequestError, match="nodeCacheCapable"):
        verbs.preempt(msgspec.json.encode({"Pod": asked, "NodeNameToVictims": {"n": {}}}))
    with pytest.raises(BadRequestError, match="NodeNameToMetaVictims: "):
        verbs.preempt(msgspec.json.encode({"Pod": asked, "NodeNameToMetaVictims": {"n": 1}}))


def test_victims_are_gone_at_once_for_the_pod_that_they_left_for() -> None:
    """Their node reports it later, and nothing would tell kube-scheduler then."""
    nodes = Nodes()
    nodes.add("n", FOUR)
    chosen = Preemption(nodes.zones, nodes.pods)
    asked, other = (read_pod(document(name, 4, priority=1), "") for name in "xy")
    assert names(chosen.choose(asked, {"n": ({"u-a1", "u-a2"}, 0)})["n"]) == ["a1", "a2"]
    for name in ("a1", "a2"):
        assert not chosen.has_made_room(asked, "n")
        for each in (nodes.pods, nodes.zones):
            each.remove_pod("default", name)
    assert chosen.has_made_room(asked, "n")
    assert not chosen.has_made_room(other, "n")
    assert not chosen.has_made_room(asked, "m")
    nodes.cluster.set_zones(read_zones(zone_report("n", 3, 0, cpus=4, memory="32Gi"), ""))
    assert not chosen.has_made_room(asked, "n")  # it says itself what it has


def test_room_that_is_promised_to_a_group_is_not_made_for_others() -> None:
    nodes = Nodes()
    nodes.add("n", [document("m1", 4, "n", zone=0)], 0, 4)
    room = PromisedRoom(nodes.cluster.view, Clock(now=lambda: 0.0))
    nodes.cluster.follow(room)
    for each in nodes.pods.on("n"):
        room.set_pod(each)
    domains = [{"values": ["n"], "count": 1}]
    assignment = {"podSet": "main", "levels": [HOSTNAME], "domains": domains}
    held = group(pod_set(1, cpu=6), status={"assignments": [assignment]}, priority=5)
    room.set_group(("default", "g"), read_group(held))
    spread = ServiceSpread(nodes.cluster.view, Clock(now=lambda: 0.0))
    verbs = Verbs(nodes.zones, spread, room=room, pods=nodes.pods)
    assert ask(verbs, document("x", 4, priority=1), n=["m1"]) == {}
    assert {*ask(verbs, document("x", 4, priority=9), n=["m1"])} == {"n"}


def test_pods_of_a_node_come_and_go() -> None:
    pods = NodePods()
    one: Pod = read_pod(document("a", 1, "n"), "")
    pods.set_pod(one)
    assert [*pods.on("n")] == [one]
    pods.set_pod(msgspec.structs.replace(one, node="m"))
    assert [*pods.on("n")] == []
    pods.set_pod(msgspec.structs.replace(one, node="m", phase="Succeeded"))
    assert [*pods.on("m")] == []
    pods.remove_pod("default", "a")
