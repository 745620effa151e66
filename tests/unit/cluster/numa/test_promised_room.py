"""What nodes have left beside the places of groups: who is kept off, until when, and why."""

from __future__ import annotations

import json
from typing import Any

import pytest

from nri_policy.cluster.engine.engine import Engine
from nri_policy.cluster.numa.extender import Binding, Verbs
from nri_policy.cluster.numa.promised_room import REASON, PromisedRoom
from nri_policy.cluster.numa.promises import CHOSEN_SECONDS, LiveZones
from nri_policy.cluster.numa.service_spread import ServiceSpread
from nri_policy.cluster.objects.node import read_node
from nri_policy.cluster.objects.pod import Pod, read_pod
from nri_policy.cluster.objects.settings import ClusterSettings, Extender
from nri_policy.cluster.requests.group import read_group
from nri_policy.cluster.view import Cluster
from nri_policy.foundation.clock import Clock
from tests.unit.cluster.written import HOSTNAME, Object, group, node, pod_set, pod_spec

GROUP = "placement.nri/group"
TEXT = "14 of 16 CPUs promised to placement group default/train"


class World:
    """Hosts h0, h1 and h2 of 16 CPUs, of which the group train has a place of 14 on the first."""

    def __init__(self, *, choose: bool = False) -> None:
        self.now = 1000.0
        self.cluster = Cluster()
        zones = LiveZones(Extender(choose=choose), self.cluster.view, Clock(now=lambda: self.now))
        self.engine = Engine(ClusterSettings(), self.cluster.view)
        self.room = PromisedRoom(self.cluster.view, Clock(now=lambda: self.now))
        self.engine.state.on_group = self.room.set_group
        self.cluster.follow(zones, self.engine.state, self.room)
        spread = ServiceSpread(self.cluster.view, Clock(now=lambda: self.now))
        self.verbs = Verbs(zones, spread, room=self.room)
        for name in ("h0", "h1", "h2"):
            self.cluster.set_node(read_node(node(name, cpu=16), ""))
        self.place("train", h0=1)

    def place(self, name: str, priority: int = 0, cpu: int = 14, **places: int) -> None:
        domains = [{"values": [host], "count": count} for host, count in places.items()]
        one = {"podSet": "main", "levels": [HOSTNAME], "domains": domains}
        status = {"state": "Placed", "assignments": [one] if domains else []}
        count = sum(places.values())
        made = group(pod_set(count, cpu=cpu), name=name, status=status, priority=priority)
        self.engine.state.set_group(read_group(made))

    def see(self, item: Object) -> Pod:
        pod = read_pod(item, "")
        self.engine.state.set_pod(pod)
        self.room.set_pod(pod)
        return pod

    def filter(self, item: Object) -> Object:
        body = {"Pod": item, "NodeNames": ["h0", "h1", "h2"]}
        answer: Object = json.loads(self.verbs.filter(json.dumps(body).encode()))
        return answer

    def fits(self, item: Object) -> list[str]:
        return [*self.filter(item)["NodeNames"]]


def pod(name: str, cpu: int, *, at: str = "", of: str = "", phase: str = "", **spec: Any) -> Object:
    metadata: Object = {"name": name, "namespace": "default"}
    if of:
        metadata["annotations"] = {GROUP: of}
    if at:
        spec["nodeName"] = at
    made = {"metadata": metadata, "spec": pod_spec({"cpu": cpu}, **spec)}
    return made | ({"status": {"phase": phase}} if phase else {})


def test_a_pod_that_fits_only_on_promised_room_goes_elsewhere_and_is_told_why() -> None:
    world = World()
    answer = world.filter(pod("p", 3))
    assert answer["NodeNames"] == ["h1", "h2"]
    assert answer["FailedNodes"] == {"h0": TEXT}
    assert answer["FailedAndUnresolvableNodes"] == {}
    assert world.verbs.rejected == {REASON: 1}, "not a metric of each group"
    assert world.fits(pod("q", 2)) == ["h0", "h1", "h2"], "beside it"


def test_what_pods_that_run_use_counts_beside_what_is_promised() -> None:
    world = World()
    world.see(pod("web", 1, at="h0", phase="Running"))
    assert world.fits(pod("p", 2)) == ["h1", "h2"]
    world.see(pod("web", 1, at="h0", phase="Succeeded"))
    assert world.fits(pod("p", 2)) == ["h0", "h1", "h2"]


@pytest.mark.parametrize(
    "gone",
    [
        lambda world: world.see(pod("train-0", 14, at="h0", of="train")),
        lambda world: world.engine.state.remove_group("default", "train"),
        lambda world: world.place("train", h1=1),
        lambda world: world.place("train"),
    ],
    ids=["its pod is bound", "it went", "it is elsewhere", "it has no places"],
)
def test_nothing_is_promised_once_the_place_is_filled_or_gone(gone: Any) -> None:
    world = World()
    gone(world)
    assert not world.room.promised("h0")


def test_the_place_of_a_pod_that_ended_is_promised_to_the_next_until_it_is_given_back() -> None:
    world = World()
    world.see(pod("train-0", 14, at="h0", of="train"))
    world.see(pod("train-0", 14, at="h0", of="train", phase="Failed"))
    assert world.fits(pod("p", 3)) == ["h1", "h2"]


def test_who_may_use_promised_room() -> None:
    world = World()
    daemon = pod("d", 3)
    daemon["metadata"]["ownerReferences"] = [
        {"kind": "DaemonSet", "name": "d", "uid": "u", "controller": True}
    ]
    assert "h0" in world.fits(daemon)
    assert "h0" in world.fits(pod("urgent", 3, priority=1))
    assert "h0" not in world.fits(pod("less", 3, priority=-1))
    assert "h0" in world.fits(pod("train-0", 14, of="train")), "its own"
    assert "h0" not in world.fits(pod("other-0", 3, of="other"))
    world.place("train", priority=2, h0=1)
    assert "h0" not in world.fits(pod("urgent", 3, priority=1))


def test_several_groups_share_a_host() -> None:
    world = World()
    world.place("train", cpu=6, h0=1)
    world.place("more", cpu=6, h0=1)
    failed = world.filter(pod("p", 5))["FailedNodes"]
    assert failed["h0"] == "12 of 16 CPUs promised to placement group default/more and 1 more"
    assert "h0" in world.fits(pod("train-0", 6, of="train"))


def test_pods_of_one_second_share_what_is_not_promised() -> None:
    """kube-scheduler asks about the next before the last one is seen bound, who knows where."""
    world = World()
    assert world.fits(pod("a", 2)) == ["h0", "h1", "h2"]
    assert world.fits(pod("b", 2)) == ["h1", "h2"]
    assert world.fits(pod("a", 2)) == ["h0", "h1", "h2"], "it asks again"
    world.see(pod("a", 2, at="h1", phase="Pending"))
    assert world.fits(pod("c", 2)) == ["h0", "h1", "h2"]
    world.room.remove_pod("default", "c")
    assert world.fits(pod("d", 2)) == ["h0", "h1", "h2"]
    world.now += CHOSEN_SECONDS
    assert world.fits(pod("e", 2)) == ["h0", "h1", "h2"]
    assert "h0" in world.fits(pod("train-0", 14, of="train")), "they leave its place alone"


def test_pods_let_through_before_a_group_had_its_places_contest_them_until_they_are_bound() -> None:
    world = World()
    world.place("train")
    key = ("default", "train")
    for name in "ab":
        assert world.fits(pod(name, 2)) == ["h0", "h1", "h2"]
    assert not world.room.is_contested(key), "it has no places"
    world.place("train", h0=1)
    assert world.room.is_contested(key), "both may come to the host, which has room for one"
    assert world.fits(pod("c", 2)) == ["h1", "h2"], "they count for the next as well"
    world.see(pod("c", 2, at="h2", phase="Pending"))
    assert world.room.is_contested(key)
    world.see(pod("a", 2, at="h1", phase="Pending"))
    assert not world.room.is_contested(key), "the host has room for the other"
    assert world.fits(pod("c", 2)) == ["h1", "h2"]


@pytest.mark.parametrize(
    "gone",
    [
        lambda world: world.room.remove_pod("default", "a"),
        lambda world: world.fits(pod("a", 3)),
        lambda world: setattr(world, "now", world.now + CHOSEN_SECONDS),
        lambda world: world.place("train", h1=1, cpu=13),
        lambda world: world.see(pod("train-0", 14, at="h0", of="train")),
        lambda world: world.cluster.remove_node("h0"),
    ],
    ids=["it went", "it asks again", "never bound", "room beside", "place filled", "no host"],
)
def test_a_place_is_not_contested_any_more(gone: Any) -> None:
    world = World()
    world.place("train")
    world.fits(pod("a", 3))
    world.place("train", h0=1)
    assert world.room.is_contested(("default", "train"))
    gone(world)
    assert not world.room.is_contested(("default", "train"))


def test_a_pod_that_was_let_through_to_other_hosts_contests_no_place() -> None:
    world = World()
    world.fits(pod("a", 3))
    assert not world.room.is_contested(("default", "train")), "h0 was full for it"
    world.see(pod("web", 2, at="h0", phase="Running"))
    assert not world.room.is_contested(("default", "train"))


def test_a_pod_that_we_bind_counts_where_it_is_bound() -> None:
    world = World()
    binding = Binding("default", "a", "u", "h0")
    world.verbs.bind(binding, read_pod(pod("a", 2), ""))
    assert world.fits(pod("b", 2)) == ["h1", "h2"]
    world.verbs.withdraw(binding)
    assert world.fits(pod("b", 2)) == ["h0", "h1", "h2"]


def test_hosts_are_found_whatever_comes_first() -> None:
    """A group may be seen before its nodes; a node may have another name than its host."""
    world = World()
    world.place("early", h7=1, h8=1)
    world.cluster.set_node(read_node(node("h7", cpu=16), ""))
    other = node("eight", cpu=16)
    other["metadata"]["labels"][HOSTNAME] = "h8"
    world.cluster.set_node(read_node(other, ""))
    assert world.room.promised("h7") == world.room.promised("eight") != {}
    assert not world.room.promised("h8")
    world.cluster.remove_node("eight")
    assert world.room.promised("h8")


def test_other_resources_are_named_with_their_amounts() -> None:
    world = World()
    for name in ("h0", "h1"):
        world.cluster.set_node(read_node(node(name, cpu=16, gpu=8, memory="64Gi"), ""))
    domains = [{"values": [host], "count": 1} for host in ("h0", "h1")]
    status = {"assignments": [{"podSet": "main", "levels": [HOSTNAME], "domains": domains}]}
    made = group(pod_set(2, gpu=6, memory="60Gi"), name="train", status=status)
    world.engine.state.set_group(read_group(made))
    item = pod("p", 1)
    item["spec"]["containers"][0]["resources"]["requests"] = {"x/gpu": "3"}
    whose = "promised to placement group default/train"
    assert world.filter(item)["FailedNodes"]["h0"] == f"6 of 8 x/gpu {whose}"
    item["spec"]["containers"][0]["resources"]["requests"] = {"memory": "8Gi"}
    assert world.filter(item)["FailedNodes"]["h0"] == f"60 GiB of 64 GiB of memory {whose}"
