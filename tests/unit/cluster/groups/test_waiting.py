"""Hosts are set aside for a group that has waited long, and nobody else waits for it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace

from nri_policy.cluster.engine.engine import Engine
from nri_policy.cluster.groups.record import QueuePlace, rank_of
from nri_policy.cluster.groups.table import GroupTable
from nri_policy.cluster.groups.waiting import WaitingGroups
from nri_policy.cluster.numa.extender import Verbs
from nri_policy.cluster.numa.promises import LiveZones
from nri_policy.cluster.numa.service_spread import ServiceSpread
from nri_policy.cluster.objects.metadata import OwnerReference
from nri_policy.cluster.objects.node import read_node
from nri_policy.cluster.objects.pod import Pod, read_pod
from nri_policy.cluster.objects.settings import Extender, read_settings
from nri_policy.cluster.requests.group import (
    GroupStatus,
    PlacementGroup,
    Together,
    read_group,
)
from nri_policy.cluster.view import Cluster
from nri_policy.cluster.zones.zone import NodeZones, read_zones
from nri_policy.foundation.clock import Clock
from tests.unit.cluster import written as objects
from tests.unit.cluster.written import HOSTNAME, Object, group, pod_set, settings

RACK = "example.com/rack"
TIMEOUT = 600.0


class Racks:
    """Three racks of two hosts with 4 CPUs each, and a queue."""

    def __init__(self, racks: int = 3, groups: Any = (), **topology: Any) -> None:
        using = read_settings(settings("rack", HOSTNAME, topology=topology, groups=dict(groups)))
        self.cluster = Cluster()
        self.engine = Engine(using, self.cluster.view)
        self.cluster.follow(self.engine.state)
        self.waiting = WaitingGroups(self.engine, GroupTable())
        self.groups: dict[tuple[str, str], PlacementGroup] = {}
        for at in range(2 * racks):
            self.set_node(f"h{at}")

    def set_node(self, name: str, *, ready: bool = True) -> None:
        node = read_node(objects.node(name, RACK=f"r{int(name[1:]) // 2}", ready=ready), "")
        self.cluster.set_node(node)
        self.waiting.see_cluster()

    def wait(self, name: str, *pod_sets: Object, priority: int = 0, since: float = 0.0) -> None:
        made = read_group(group(*pod_sets, name=name, priority=priority))
        self.groups["default", name] = made
        rank = rank_of(priority, since, f"{since:05}")
        self.waiting.queue.put(("default", name), QueuePlace(rank))

    def run(self, name: str, host: str, cpu: int) -> None:
        item = objects.pod(name, host, cpu=cpu)
        self.engine.state.set_pod(read_pod(item, ""))

    def end(self, name: str) -> None:
        self.engine.state.remove_pod("default", name)
        self.waiting.queue.note_change()

    def step(self, now: float) -> dict[str, list[str]]:
        """Try what is due; return the hosts of the groups that got places, by name."""
        found = {}
        self.waiting.hold(now, self.groups.__getitem__)
        self.waiting.begin_round()
        for key in self.waiting.worth_trying(self.waiting.queue.due()):
            asked = self.groups[key]
            status = self.waiting.place(key, asked)
            if status.assignments:
                self.place(asked, status)
                (assignment,) = status.assignments
                found[key[1]] = [each.values[-1] for each in assignment.domains]
            else:
                runs = bool(asked.status.assignments)
                hopeless = not runs and self.waiting.is_hopeless(asked)
                self.waiting.note_refusal(key, asked, hopeless=hopeless)
        return found

    def place(self, asked: PlacementGroup, status: GroupStatus) -> None:
        key = (asked.namespace, asked.name)
        self.groups[key] = read_group(group(name=asked.name))
        self.engine.state.set_group(
            PlacementGroup(asked.namespace, asked.name, asked.pod_sets, status=status)
        )
        self.waiting.queue.remove(key)

    def reserved(self, name: str) -> tuple[str, ...]:
        return self.waiting.reserved(("default", name))

    def standing(self, name: str) -> str:
        key = ("default", name)
        return self.waiting.standing(key, self.groups[key], self.waiting.queue.rank(key))


def rack(count: int, **own: Any) -> Object:
    return pod_set(count, {"required": RACK}, **own)


def full(**groups: Any) -> Racks:
    """Each host has 3 of its 4 CPUs in use, but h2 only 2; a gang waits for a whole rack."""
    racks = Racks(groups=groups)
    for at in range(6):
        racks.run(f"p{at}", f"h{at}", 2 if at == 2 else 3)
    racks.wait("gang", rack(8))
    assert racks.step(0.0) == {}
    return racks


def test_after_the_timeout_a_group_has_the_rack_where_most_of_it_fits() -> None:
    racks = full()
    racks.step(TIMEOUT - 1)
    assert racks.reserved("gang") == ()
    racks.step(TIMEOUT)
    assert racks.reserved("gang") == ("h2", "h3")
    text = racks.standing("gang")
    assert text == "reserved: rack r1, 3 of 8 pods fit now, since 0 min"
    racks.waiting.hold(TIMEOUT + 299, racks.groups.__getitem__)
    text = racks.standing("gang")
    assert text == "reserved: rack r1, 3 of 8 pods fit now, since 4 min"


def test_others_go_elsewhere_and_wait_where_there_is_nothing_else() -> None:
    racks = full()
    racks.wait("small", rack(2), since=1.0)
    assert racks.step(TIMEOUT) == {"small": ["h0", "h1"]}
    racks.wait("next", rack(3), since=2.0)
    assert racks.step(TIMEOUT + 1) == {}
    text = racks.standing("next")
    assert text == "2 hosts set aside for default/gang"


def test_those_who_leave_hosts_alone_see_each_others_places() -> None:
    racks = full()
    racks.step(TIMEOUT)
    for at, name in enumerate("abcd"):  # h0, h1, h4 and h5 have a CPU left each
        racks.wait(name, rack(1), since=1.0 + at)
    found = racks.step(TIMEOUT + 1)
    assert sorted(found.values()) == [["h0"], ["h1"], ["h4"], ["h5"]]


def test_it_is_placed_as_soon_as_it_fits_and_the_hosts_are_free_again() -> None:
    racks = full()
    racks.wait("next", rack(3), since=2.0)
    racks.step(TIMEOUT)
    racks.end("p4")
    assert racks.step(TIMEOUT + 1)["next"] == ["h4"]
    for name in ("p0", "p1"):
        racks.end(name)
    assert racks.step(TIMEOUT + 2) == {"gang": ["h0", "h1"]}  # elsewhere than what is set aside
    racks.wait("last", rack(3), since=3.0)
    assert racks.step(TIMEOUT + 3) == {"last": ["h2", "h3"]}
    assert racks.reserved("gang") == ()


def test_a_group_of_higher_priority_ignores_what_is_set_aside() -> None:
    racks = full()
    racks.step(TIMEOUT)
    racks.wait("urgent", rack(3), priority=5, since=TIMEOUT)
    racks.wait("equal", rack(3), since=TIMEOUT)
    assert racks.step(TIMEOUT + 1) == {"urgent": ["h2", "h3"]}


def test_a_host_that_fails_is_replaced() -> None:
    racks = full()
    racks.step(TIMEOUT)
    racks.set_node("h2", ready=False)
    racks.step(TIMEOUT + 1)
    assert racks.reserved("gang") == ("h0", "h1")


def test_one_that_fits_nowhere_any_more_lets_the_next_hold() -> None:
    racks = full()
    racks.wait("next", rack(4), since=1.0)
    racks.step(2.0)
    racks.step(TIMEOUT + 2)
    for name in ("h1", "h3", "h5"):
        racks.set_node(name, ready=False)
    racks.step(TIMEOUT + 3)
    assert racks.reserved("gang") == ()
    assert racks.reserved("next") == ("h2",)


def test_without_a_level_the_freest_hosts_are_set_aside_as_few_as_could_hold_it() -> None:
    racks = full()
    racks.waiting.queue.remove(("default", "gang"))
    racks.run("more", "h4", 1)
    racks.wait("wide", pod_set(7, {"unconstrained": True}), since=0.0)
    racks.step(0.0)
    racks.step(TIMEOUT)
    assert racks.reserved("wide") == ("h0", "h2")


def test_a_preferred_level_that_is_too_small_gives_way_to_a_coarser_one() -> None:
    racks = full()
    racks.waiting.queue.remove(("default", "gang"))
    racks.wait("wide", pod_set(10, {"preferred": RACK}))
    racks.step(0.0)
    racks.step(TIMEOUT)
    assert len(racks.reserved("wide")) == 3


def test_a_spread_group_does_not_get_hosts_that_are_set_aside() -> None:
    racks = full()
    racks.step(TIMEOUT)
    racks.wait("service", pod_set(4, {"spreadOver": [RACK]}), since=1.0)
    assert racks.step(TIMEOUT + 1) == {"service": ["h0", "h1", "h4", "h5"]}


def test_several_pod_sets_have_hosts_for_all_of_them() -> None:
    racks = Racks(racks=2)
    racks.run("p0", "h0", 1)
    racks.run("p2", "h2", 1)
    racks.wait("job", pod_set(1, {"unconstrained": True}, name="one"), rack(8, name="workers"))
    racks.step(0.0)
    racks.step(TIMEOUT)
    assert racks.reserved("job") == ("h1", "h2", "h3")


def test_a_pod_without_a_group_does_not_go_there_if_hosts_are_held_against_all() -> None:
    racks = full(holds="all")
    racks.step(TIMEOUT)

    def closed(**own: Any) -> set[str]:
        pod = read_pod({"metadata": {"name": "web"}, "spec": objects.pod_spec({"cpu": 1})}, "")
        return {*racks.waiting.closed_to(Pod(**{**_fields(pod), **own}))}

    assert closed(created="2026") == {"h2", "h3"}
    assert closed(created="2026", priority=5) == set()
    assert closed(annotations={"placement.nri/group": "other"}, created="2026") == set()
    owner = OwnerReference(kind="DaemonSet", name="agent", controller=True)
    assert closed(owners=(owner,), created="2026") == set()


def _fields(pod: Pod) -> dict[str, Any]:
    return {name: getattr(pod, name) for name in pod.__struct_fields__}


def test_what_is_stored_counts_for_another_leader() -> None:
    racks = full()
    racks.step(TIMEOUT)
    other = Racks()
    for at in range(6):
        other.run(f"p{at}", f"h{at}", 3)
    other.groups |= racks.groups
    other.waiting.restore(("default", "gang"), racks.reserved("gang"), 0.0)
    place = QueuePlace(rank_of(0, 5.0, "00000.0"), holds=True)
    other.waiting.queue.put(("default", "gang"), place)
    other.wait("small", rack(1), since=6.0)
    other.step(7.0)
    assert other.reserved("gang") == ("h2", "h3")


def test_a_group_is_tried_again_when_its_zones_have_more_left() -> None:
    def report(free: int) -> NodeZones:
        cpu = {"name": "cpu", "capacity": "4", "allocatable": "4", "available": str(free)}
        zone = {"name": "node-0", "type": "Node", "resources": [cpu]}
        return read_zones({"metadata": {"name": "h0"}, "zones": [zone]}, "")

    racks = Racks(1, belowHost=["Node"])
    racks.cluster.set_zones(report(1))
    racks.waiting.see_cluster()
    racks.wait(
        "g", pod_set(1, {"required": RACK, "slices": [{"level": "zone/Node", "size": 1}]}, cpu=4)
    )
    assert racks.step(0.0) == {}
    assert racks.step(1.0) == {}, "nothing has changed"
    racks.cluster.set_zones(report(4))
    racks.waiting.see_cluster()
    assert racks.step(2.0) == {"g": ["node-0"]}


def test_the_extender_rejects_hosts_that_are_set_aside() -> None:
    racks = full(holds="all")
    racks.step(TIMEOUT)
    view = Cluster().view
    clock = Clock(now=lambda: 0.0)
    zones, spread = LiveZones(Extender(), view, clock), ServiceSpread(view, clock)
    verbs = Verbs(zones, spread, closed_to=racks.waiting.closed_to)
    web = {
        "metadata": {"name": "web", "namespace": "default", "creationTimestamp": "2026"},
        "spec": objects.pod_spec({"cpu": 1}),
    }
    body = json.dumps({"Pod": web, "NodeNames": ["h0", "h2", "h3"]}).encode()
    answer = json.loads(verbs.filter(body))
    assert answer["NodeNames"] == ["h0"]
    assert answer["FailedNodes"] == dict.fromkeys(
        ("h2", "h3"), "set aside for placement group default/gang"
    )
    assert verbs.rejected == {"set aside for placement groups": 2}, "not a metric of each group"


def test_who_would_not_fit_into_an_empty_cluster_is_tried_again_only_in_another_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    racks, tried = Racks(racks=1), list[str]()
    place = Engine.place

    def counted(engine: Engine, group: PlacementGroup, *more: Any, **named: Any) -> GroupStatus:
        tried.append(group.name)
        return place(engine, group, *more, **named)

    racks.run("p", "h0", 1)
    racks.wait("large", rack(9))
    racks.wait("full", rack(8), since=1.0)
    assert racks.step(2.0) == {}
    monkeypatch.setattr(Engine, "place", counted)
    racks.run("brief", "h0", 1)
    racks.end("brief")
    assert racks.step(3.0) == {}
    assert tried == ["full"]
    racks.set_node("h2")
    racks.set_node("h3")
    racks.wait("late", rack(9), since=4.0)
    assert racks.step(4.0).keys() == {"full"}
    assert "large" in tried


def test_steps_of_other_jobsets_are_not_refused_with_the_steps_of_one() -> None:
    """Both ask for the same, but only one shares a full rack with an earlier step."""
    racks = Racks()
    racks.run("p", "h0", 4)
    racks.run("q", "h1", 3)
    together = Together(required=RACK)
    running = read_group(group(pod_set(1), name="a"))
    running = replace(running, job_set="a", together=together)
    status = racks.engine.place(running)
    assert [each.values[-1] for each in status.assignments[0].domains] == ["h1"]
    racks.engine.state.set_group(replace(running, status=status))
    for name in "ab":
        racks.wait(f"{name}.w", pod_set(2))
        asked = racks.groups["default", f"{name}.w"]
        asked = replace(asked, job_set=name, together=together)
        racks.groups["default", f"{name}.w"] = asked
        racks.engine.state.set_group(asked)
    assert racks.step(0.0).keys() == {"b.w"}
