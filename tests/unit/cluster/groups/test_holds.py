"""Hosts that are set aside: beside what stays, for whom, against whom, and for how long."""

from __future__ import annotations

from itertools import pairwise

import pytest
from msgspec.structs import replace

from nri_policy.cluster.groups.queue import MAX_PAUSE, PAUSE
from nri_policy.cluster.groups.record import QueuePlace, rank_of
from nri_policy.cluster.objects.node import read_node
from nri_policy.cluster.objects.pod import read_pod
from nri_policy.cluster.requests.group import PlacementGroup, read_group
from tests.unit.cluster import written as objects
from tests.unit.cluster.groups.test_waiting import TIMEOUT, Racks, full, rack
from tests.unit.cluster.written import Object, group, pod_set

HOLD_TIMEOUT = 600.0
ALWAYS = {"restartPolicy": "Always"}
GANG = ("default", "gang")


def stay(racks: Racks, name: str, host: str, cpu: str) -> None:
    """Have a pod of a service, or a DaemonSet, on a host."""
    spec = objects.pod_spec({"cpu": cpu}, nodeName=host, **ALWAYS)
    racks.engine.state.set_pod(read_pod({"metadata": {"name": name}, "spec": spec}, ""))


def run_group(racks: Racks, name: str, *pod_sets: Object, priority: int = 0) -> PlacementGroup:
    """Have a group at its places now."""
    asked = read_group(group(*pod_sets, name=name, priority=priority))
    placed = replace(asked, status=racks.engine.place(asked))
    assert placed.status.assignments
    racks.engine.state.set_group(placed)
    racks.groups["default", name] = placed
    return placed


def lack(racks: Racks, placed: PlacementGroup, *failed: str) -> None:
    """Have a group that runs wait for what it had on failed hosts."""
    key = (placed.namespace, placed.name)
    degraded = replace(placed.status, state="Degraded", unhealthy_nodes=[*failed])
    racks.groups[key] = changed = replace(placed, status=degraded)
    racks.engine.state.set_group(changed)
    racks.waiting.queue.put(key, QueuePlace(rank_of(placed.priority, 0.0, runs=True)))


# what stays


def test_hosts_with_services_that_leave_too_little_are_not_set_aside() -> None:
    racks = full()
    stay(racks, "web", "h3", "1")
    racks.step(TIMEOUT)
    assert racks.reserved("gang") == ("h0", "h1")


def with_daemons() -> Racks:
    """Each host has a pod of a DaemonSet; a gang wants whole hosts."""
    racks = Racks()
    for at in range(6):
        stay(racks, f"agent-{at}", f"h{at}", "100m")
    racks.wait("gang", rack(2, cpu=4))
    return racks


def test_a_gang_of_whole_hosts_beside_daemonsets_holds_none_and_says_what_it_lacks() -> None:
    racks = with_daemons()
    racks.step(0.0)
    racks.step(TIMEOUT)
    assert racks.reserved("gang") == ()
    asked = racks.groups[GANG]
    status = racks.waiting.refusal(asked, racks.engine.place(asked))
    lack = "DaemonSets and services leave at most 3.9 of 4 CPUs on each host"
    assert status.state == "Waiting"
    assert status.message == f"fits nowhere beside what stays: {lack}"


def test_it_is_tried_again_when_what_stays_changes() -> None:
    racks = with_daemons()
    racks.step(0.0)
    racks.waiting.queue.note_change()
    assert racks.waiting.queue.rank(GANG)
    assert not [*racks.waiting.queue.due()], "nothing that ends can help"
    for at in (2, 3):
        racks.engine.state.remove_pod("default", f"agent-{at}")
    assert racks.step(1.0) == {"gang": ["h2", "h3"]}


def test_a_gang_that_fits_each_host_but_no_rack_says_how_much_fits() -> None:
    racks = Racks(1)
    stay(racks, "web", "h1", "2")
    racks.wait("gang", rack(2, cpu=4))
    racks.step(0.0)
    asked = racks.groups[GANG]
    status = racks.waiting.refusal(asked, racks.engine.place(asked))
    assert status.state == "Waiting"
    assert status.message.startswith("fits nowhere beside what stays: topology")
    assert "allows to fit only 1 out of 2 pod(s)" in status.message


def test_a_gang_that_no_empty_cluster_holds_is_unplaceable() -> None:
    racks = Racks()
    racks.wait("gang", rack(9))
    racks.step(0.0)
    asked = racks.groups[GANG]
    found = racks.engine.place(asked)
    assert racks.waiting.refusal(asked, found) == replace(found, state="Unplaceable")


@pytest.mark.parametrize(
    ("preemption", "priority", "held"), [(False, 5, False), (True, 5, True), (True, 0, False)]
)
def test_groups_that_never_end_stay_unless_they_can_be_preempted(
    preemption: bool, priority: int, held: bool
) -> None:
    racks = Racks(1, groups={"preemption": preemption})
    run_group(racks, "serving", rack(2, spec=ALWAYS))
    racks.wait("gang", rack(8), priority=priority)
    racks.step(0.0)
    racks.step(TIMEOUT)
    assert racks.reserved("gang") == (("h0", "h1") if held else ())


def test_groups_that_end_do_not_stay() -> None:
    racks = Racks(1)
    run_group(racks, "training", rack(2))
    racks.wait("gang", rack(8))
    racks.step(0.0)
    racks.step(TIMEOUT)
    assert racks.reserved("gang") == ("h0", "h1")


# who holds, and which hosts


def degraded() -> tuple[Racks, list[str]]:
    """A group runs on two hosts and loses one; small jobs run on the others; a gang waits."""
    racks = Racks(2)
    train = run_group(racks, "train", pod_set(2, cpu=4))
    own = sorted(one.values[-1] for one in train.status.assignments[0].domains)
    others = sorted({"h0", "h1", "h2", "h3"} - {*own})
    racks.run("one", others[0], 1)
    racks.run("two", others[1], 2)
    racks.wait("gang", rack(8))
    racks.step(0.0)
    racks.set_node(own[1], ready=False)
    lack(racks, train, own[1])
    assert racks.step(0.0) == {}
    return racks, others


def test_a_group_that_has_lost_a_host_holds_before_those_that_wait() -> None:
    racks, others = degraded()
    racks.step(TIMEOUT)
    assert racks.reserved("train") == (others[0],), "the freest host, and no more than it needs"
    assert racks.reserved("gang") == ()
    text = racks.standing("train")
    assert text == "reserved: 1 host, 0 of 1 pod fit now, since 0 min"
    racks.wait("small", rack(1, cpu=3), since=TIMEOUT)
    assert racks.step(TIMEOUT + 1) == {}
    racks.end("one")
    assert racks.step(TIMEOUT + 2).keys() == {"train"}
    assert [*racks.waiting.reservations()] == []


def test_a_group_that_runs_holds_in_the_domain_that_it_has_to_stay_in() -> None:
    racks = Racks(2)
    train = run_group(racks, "train", rack(4))
    (host,) = (one.values[-1] for one in train.status.assignments[0].domains)
    mate = {"h0": "h1", "h1": "h0", "h2": "h3", "h3": "h2"}[host]
    racks.run("p", mate, 4)
    for other in {"h0", "h1", "h2", "h3"} - {host, mate}:
        racks.run(f"p-{other}", other, 1)
    grown = replace(train, pod_sets=(replace(train.pod_sets[0], count=6),))
    racks.groups["default", "train"] = grown
    racks.waiting.queue.put(("default", "train"), QueuePlace(rank_of(0, 0.0, runs=True)))
    for now in (0.0, TIMEOUT):
        racks.waiting.hold(now, racks.groups.__getitem__)
        assert not racks.waiting.place(("default", "train"), grown, more={"main": 2}).assignments
        racks.waiting.queue.note_refusal(("default", "train"), hopeless=False)
        racks.waiting.queue.note_change()
    assert racks.reserved("train") == (mate,)


def test_a_group_that_runs_and_that_no_host_could_complete_holds_none() -> None:
    racks, others = degraded()
    for host in others:
        stay(racks, f"web-{host}", host, "1")
    racks.step(TIMEOUT)
    assert racks.reserved("train") == ()
    change = racks.waiting.queue.change
    racks.step(TIMEOUT + 1)
    racks.step(TIMEOUT + 2)
    assert racks.waiting.queue.change == change, "it is not tried in a loop"


def test_a_hold_stays_until_it_ends_but_for_higher_priority() -> None:
    racks = full()
    racks.wait("late", rack(8), since=100.0)
    racks.wait("urgent", rack(8), priority=3, since=500.0)
    racks.step(500.0)
    racks.step(TIMEOUT)
    assert [racks.reserved(name) for name in ("gang", "late")] == [("h2", "h3"), ()]
    racks.wait("older", rack(8), since=-100.0)
    racks.step(TIMEOUT + 1)
    assert racks.reserved("gang") == ("h2", "h3"), "the older one holds next"
    racks.step(500.0 + TIMEOUT)
    assert (racks.reserved("urgent"), racks.reserved("gang")) == (("h2", "h3"), ())


# against whom: see also test_waiting.py


def test_ordinary_pods_may_use_the_hosts_by_default() -> None:
    racks = full()
    racks.step(TIMEOUT)
    assert racks.reserved("gang") == ("h2", "h3")
    spec = objects.pod_spec({"cpu": 1})
    assert racks.waiting.closed_to(read_pod({"metadata": {"name": "web"}, "spec": spec}, "")) == {}


# how long


def held() -> Racks:
    """A gang holds r1 since TIMEOUT; another waits behind it."""
    racks = full()
    racks.wait("next", rack(7), since=1.0)
    racks.step(1.0)
    racks.step(TIMEOUT)
    assert racks.reserved("gang") == ("h2", "h3")
    return racks


def test_a_hold_without_progress_ends_and_the_next_in_order_holds() -> None:
    racks = held()
    end = TIMEOUT + HOLD_TIMEOUT
    assert racks.waiting.next_look() == end
    racks.step(end - 1)
    assert racks.reserved("gang") == ("h2", "h3")
    racks.step(end)
    assert (racks.reserved("gang"), racks.reserved("next")) == ((), ("h2", "h3"))
    assert racks.waiting.ended == 1
    racks.step(end + PAUSE)  # the other made none, either
    assert (racks.reserved("gang"), racks.reserved("next")) == (("h2", "h3"), ())


def test_something_that_ends_on_its_hosts_is_progress() -> None:
    racks = held()
    racks.run("q2", "h2", 1)  # as an ordinary pod may
    racks.step(TIMEOUT + 1)
    racks.end("p2")
    racks.step(TIMEOUT + 400)
    racks.run("r2", "h2", 2)
    racks.step(TIMEOUT + 400 + HOLD_TIMEOUT - 1)
    assert racks.reserved("gang") == ("h2", "h3")
    racks.step(TIMEOUT + 400 + HOLD_TIMEOUT)
    assert racks.reserved("gang") == ()


def test_the_end_of_what_came_to_its_hosts_later_is_none() -> None:
    racks = held()
    racks.run("q2", "h2", 1)
    racks.step(TIMEOUT + 1)
    racks.end("q2")
    racks.step(TIMEOUT + 400)
    racks.step(TIMEOUT + HOLD_TIMEOUT)
    assert racks.reserved("gang") == ()


def test_groups_that_end_on_its_hosts_or_become_smaller_are_progress() -> None:
    racks = Racks(1)
    small = run_group(racks, "small", pod_set(4))
    racks.wait("gang", rack(8))
    racks.step(0.0)
    racks.step(TIMEOUT)
    assert racks.reserved("gang") == ("h0", "h1")
    (assignment,) = small.status.assignments
    fewer = replace(assignment, domains=[replace(each, count=1) for each in assignment.domains])
    racks.engine.state.set_group(replace(small, status=replace(small.status, assignments=[fewer])))
    racks.waiting.queue.note_change()
    racks.step(TIMEOUT + 300)
    racks.step(TIMEOUT + HOLD_TIMEOUT)
    assert racks.reserved("gang") == ("h0", "h1")
    racks.step(TIMEOUT + 300 + HOLD_TIMEOUT)
    assert racks.reserved("gang") == ()


def test_more_pods_that_fit_are_progress() -> None:
    racks = Racks(1)
    racks.run("p", "h0", 4)
    racks.wait("gang", rack(8))
    racks.run("late", "h1", 2)
    racks.step(0.0)
    racks.set_node("h1", ready=False)
    racks.set_node("h1")
    racks.step(TIMEOUT)
    racks.end("late")  # while nobody looks, and another one is there
    racks.run("other", "h1", 1)
    racks.step(TIMEOUT + HOLD_TIMEOUT)
    racks.step(TIMEOUT + 2 * HOLD_TIMEOUT - 1)
    assert racks.reserved("gang") == ("h0", "h1")


def test_a_larger_host_where_more_pods_fit_is_progress() -> None:
    racks = held()
    racks.cluster.set_node(read_node(objects.node("h3", RACK="r1", cpu=5), ""))
    racks.waiting.see_cluster()
    end = TIMEOUT + HOLD_TIMEOUT
    racks.step(end)
    assert racks.reserved("gang") == ("h2", "h3"), "one more pod fits than before"
    racks.step(end + HOLD_TIMEOUT)
    assert racks.reserved("gang") == ()


def test_its_pauses_double_up_to_half_a_day_and_its_place_in_the_queue_stays() -> None:
    racks = full()
    now, starts = TIMEOUT, []
    for _ in range(10):
        while racks.reserved("gang") == ():
            racks.step(now)
            if racks.reserved("gang") == ():
                now = racks.waiting.next_look()
        starts.append(now)
        now = racks.waiting.next_look()
        racks.step(now)
        assert racks.reserved("gang") == ()
    pauses = [later - earlier - HOLD_TIMEOUT for earlier, later in pairwise(starts)]
    assert pauses == [min(PAUSE * 2**each, MAX_PAUSE) for each in range(9)]
    assert racks.waiting.queue.rank(GANG) == (0, True, "000.0", 0.0)


def test_a_hold_moves_only_where_more_of_its_pods_fit_than_ever_on_its_hosts() -> None:
    racks = held()
    racks.run("q2", "h2", 2)  # 3 fitted, now 1
    racks.step(TIMEOUT + 61)
    assert racks.reserved("gang") == ("h2", "h3"), "2 fit on others, and 3 did here"
    racks.end("p0")
    racks.step(TIMEOUT + 122)
    assert racks.reserved("gang") == ("h0", "h1")
