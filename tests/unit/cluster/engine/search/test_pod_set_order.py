"""Pod sets of which one finds no room are tried in other orders, and then by a search."""

from __future__ import annotations

from typing import Any

import pytest

from nri_policy.cluster import offline
from nri_policy.cluster.engine.group_placement import GroupPlacement
from nri_policy.cluster.engine.search import domain_search
from nri_policy.cluster.engine.search.pod_set_order import Orders
from nri_policy.cluster.engine.state.tree import Demand, Tree
from nri_policy.cluster.objects.pod import PodSpec, Template
from nri_policy.cluster.objects.settings import read_settings
from nri_policy.cluster.requests.group import PodSet, read_group
from nri_policy.cluster.requests.request import Unit
from nri_policy.cluster.snapshot import read_snapshot
from nri_policy.native._counts import Counts
from tests.unit.cluster.engine.test_below_host import topology
from tests.unit.cluster.written import HOSTNAME, Object, group, node, placed, pod_set, settings

RACK = {"required": "example.com/rack"}
USING = settings("rack", HOSTNAME)
NODES = [node("a1", RACK="a"), node("a2", RACK="a"), node("b1", RACK="b")]
DRIVER = pod_set(1, name="driver", cpu=4)
WORKER = pod_set(2, RACK, name="worker", cpu=4)


def place(*pod_sets: Object, nodes: Any = NODES) -> Object:
    return offline.place({"nodes": nodes}, group(*pod_sets), USING)


def test_a_set_that_finds_no_room_goes_first() -> None:
    """The driver alone would take a host of the only rack that holds the workers."""
    status = place(DRIVER, WORKER)
    assert placed(status) == {"driver": {"b1": 1}, "worker": {"a1": 1, "a2": 1}}
    assert status["message"] == "placed in the order worker, driver"
    assert [each["podSet"] for each in status["assignments"]] == ["driver", "worker"]


def test_sets_that_are_placed_one_after_the_other_stay_in_their_order() -> None:
    status = place(WORKER, DRIVER)
    assert status["message"] == ""
    assert placed(status) == {"driver": {"b1": 1}, "worker": {"a1": 1, "a2": 1}}


def test_a_refusal_is_that_of_the_order_in_which_the_sets_are_written() -> None:
    status = place(DRIVER, pod_set(3, RACK, name="worker", cpu=4))
    assert status["message"].startswith('topology "default" allows to fit only 1 out of 3 pod(s)')


# Workers need 4 of the second resource each, as much as is left on only some hosts; the pods of
# `one` need one host. In either order the first of them takes what only the other one can use.
KNOTTED = [
    node("a1", RACK="a", cpu=4, gpu=8),
    node("a2", RACK="a", cpu=1, gpu=8),
    node("b1", RACK="b", cpu=5, gpu=5),
    node("b2", RACK="b", cpu=2, gpu=5),
]
WORKERS = pod_set(3, {"unconstrained": True}, name="workers", cpu=2, gpu=4)
ONE = pod_set(2, {"required": HOSTNAME}, name="one", cpu=2)


def test_a_search_finds_what_no_order_does(monkeypatch: pytest.MonkeyPatch) -> None:
    status = place(WORKERS, ONE, nodes=KNOTTED)
    assert placed(status) == {"workers": {"a1": 2, "b2": 1}, "one": {"b1": 2}}
    assert status["message"] == "placed by a search in the order one, workers"
    monkeypatch.setattr(domain_search, "MAX_STEPS", 1)
    assert place(WORKERS, ONE, nodes=KNOTTED)["state"] == "Unplaceable"


def test_a_search_tries_other_orders_of_few_sets() -> None:
    """The strictest set would take the rack in which the next one leaves room for the last."""
    nodes = [
        node("a1", RACK="a", cpu=8, gpu=2),
        node("a2", RACK="a", cpu=7, gpu=7),
        node("a3", RACK="a", cpu=8, gpu=8),
        node("b1", RACK="b", cpu=5, gpu=5),
        node("b2", RACK="b", cpu=4, gpu=7),
        node("b3", RACK="b", cpu=7, gpu=4),
    ]
    sets = (
        pod_set(3, RACK, name="first", cpu=4, gpu=4),
        pod_set(2, RACK, name="second", cpu=1, gpu=4),
        pod_set(2, {"unconstrained": True}, name="last", cpu=4, gpu=3),
    )
    status = place(*sets, nodes=nodes)
    assert status["message"] == "placed by a search in the order second, first, last"
    assert placed(status)["first"] == {"b1": 1, "b2": 1, "b3": 1}


def test_a_search_spreads_a_slice_over_more_hosts_than_it_needs() -> None:
    """Compact would put both pods of the slice on the host that one of the others needs."""
    nodes = [
        node("a1", RACK="a", cpu=6, gpu=6),
        node("b1", RACK="b", cpu=8, gpu=8),
        node("b2", RACK="b", cpu=3, gpu=6),
    ]
    sliced = {"slices": [{"level": "example.com/rack", "size": 2}], **RACK}
    sets = (
        pod_set(2, {"unconstrained": True}, name="single", cpu=4, gpu=1),
        pod_set(2, sliced, name="sliced", cpu=3, gpu=4),
    )
    status = place(*sets, nodes=nodes)
    assert placed(status) == {"single": {"a1": 1, "b1": 1}, "sliced": {"b1": 1, "b2": 1}}
    assert status["message"].startswith("placed by a search")


def test_a_search_puts_few_pods_on_hosts_in_every_way() -> None:
    """Leader and workers find room only if each host has one of the others."""
    nodes = [
        node("a1", RACK="a", cpu=6, gpu=8),
        node("a2", RACK="a", cpu=5, gpu=4),
        node("a3", RACK="a", cpu=6, gpu=6),
    ]
    led = RACK | {"leaderGroup": "led"}
    sets = (
        pod_set(1, led, name="leader", cpu=2),
        pod_set(4, led, name="workers", cpu=1, gpu=3),
        pod_set(3, RACK, name="others", cpu=3),
    )
    status = place(*sets, nodes=nodes)
    assert placed(status) == {
        "leader": {"a1": 1},
        "workers": {"a1": 1, "a2": 1, "a3": 2},
        "others": {"a1": 1, "a2": 1, "a3": 1},
    }
    assert status["message"] == "placed by a search in the order others, workers, leader"


def test_a_search_leaves_a_host_to_those_that_need_it() -> None:
    """Hosts a1 to a3 are equal for pods in one rack, but others can use only a1 and a2."""
    nodes = [
        node("a1", RACK="a", cpu=4, gpu=4),
        node("a2", RACK="a", cpu=4, gpu=4),
        node("a3", RACK="a", cpu=3, gpu=2),
        node("b1", RACK="b", cpu=4, gpu=8),
        node("c1", RACK="c", cpu=7, gpu=3),
    ]
    sets = (
        pod_set(2, {"required": HOSTNAME}, name="one", cpu=2, gpu=1),
        pod_set(2, {"unconstrained": True}, name="single", cpu=4, gpu=4),
        pod_set(2, RACK, name="near", cpu=3, gpu=2),
    )
    status = place(*sets, nodes=nodes)
    assert placed(status)["one"] == {"c1": 2}
    assert placed(status)["near"].keys() > {"a3"}
    assert status["message"].startswith("placed by a search")


def test_a_search_does_not_try_twice_what_leaves_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Six hosts for seven sets that need one each: each selection of hosts is tried once."""
    taken = []
    use = domain_search.DomainSearch._use

    def counted(self: domain_search.DomainSearch, found: Any, times: int) -> None:
        taken.append(times)
        use(self, found, times)

    monkeypatch.setattr(domain_search.DomainSearch, "_use", counted)
    nodes = [node(f"h{number}", RACK="a", cpu=99, gpu=10 + number) for number in range(6)]
    sets = [
        pod_set(9, {"required": HOSTNAME}, name=f"s{number}", cpu=number + 1, gpu=1)
        for number in range(7)
    ]
    assert place(*sets, nodes=nodes)["state"] == "Unplaceable"
    assert 0 < taken.count(1) <= 6 * 2**5


def test_all_orders_and_the_search_count_once_where_each_set_fits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = []
    count_once = Tree.count_once

    def counted(self: Tree, demand: Demand) -> Counts:
        made.append(demand)
        return count_once(self, demand)

    monkeypatch.setattr(Tree, "count_once", counted)
    nodes = [node(f"h{number}", RACK="a", cpu=200, gpu=10) for number in range(19)]
    sets = [
        pod_set(9, {"required": HOSTNAME}, name=f"s{number}", cpu=number + 1, gpu=1)
        for number in range(20)
    ]
    assert place(*sets, nodes=nodes)["state"] == "Unplaceable"
    assert len(made) == len(sets)


def test_a_search_goes_over_the_domains_of_two_trees() -> None:
    """A zone is no domain of the tree of hosts, by which the other set is placed."""
    cluster = {"nodes": [node("a1", cpu=8)], "zones": [topology("a1", "8", "8")]}
    zoned = pod_set(1, {"required": "zone/Node"}, name="zoned", cpu=6)
    whole = pod_set(1, {"required": HOSTNAME}, name="whole", cpu=6)
    using = settings(HOSTNAME, topology={"belowHost": ["Node"]})
    assert offline.place(cluster, group(zoned, whole), using)["state"] == "Unplaceable"


def test_at_most_so_many_pods_of_a_group_on_a_host_holds_in_every_order() -> None:
    one = {"maxPerHost": 1}
    status = place(
        pod_set(1, one, name="driver", cpu=1), pod_set(2, RACK | one, name="worker", cpu=2)
    )
    assert placed(status) == {"driver": {"b1": 1}, "worker": {"a1": 1, "a2": 1}}


@pytest.mark.parametrize(("cpu", "number"), [(3, 2), (4, 1)])
def test_a_set_that_fits_nowhere_is_tried_twice_and_once_where_too_little_is_left_in_all(
    cpu: int, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 12 CPUs, the group asks for 12 or for 15."""
    engine = offline.engine_of(read_snapshot({"nodes": NODES}), read_settings(USING))
    tries = []
    one_pass = GroupPlacement._place_steps

    def counted(self: GroupPlacement, *args: Any, **how: Any) -> Any:
        tries.append(args)
        return one_pass(self, *args, **how)

    monkeypatch.setattr(GroupPlacement, "_place_steps", counted)
    sets = (pod_set(1, name=f"s{number}", cpu=1) for number in range(3))
    status = engine.place(read_group(group(*sets, pod_set(3, RACK, name="large", cpu=cpu))))
    assert status.state == "Unplaceable"
    assert len(tries) == number


def unit(name: str, cpu: int) -> Unit:
    return Unit(workers=PodSet(name, cpu, Template(spec=PodSpec())))


def test_no_order_is_tried_that_begins_like_a_refused_one() -> None:
    a, b, c = unit("a", 1), unit("b", 2), unit("c", 3)
    orders = Orders([a, b, c], [c, a, b])
    assert orders.refuse(b) == [b, a, c]  # a, b
    assert orders.refuse(c) == [c, b, a]  # b, a, c
    assert orders.refuse(a) == [a, c, b]  # c, b, a
    assert orders.refuse(b) == [c, a, b]  # a, c, b
    assert orders.refuse(b) == [b, c, a]  # c, a, b
    assert orders.refuse(a) == []  # b, c, a
    assert orders.may_fit()


def test_equal_sets_are_not_tried_in_each_others_place() -> None:
    a, b, other = unit("a", 1), unit("b", 1), unit("other", 2)
    orders = Orders([a, other, b], [a, b, other])
    assert orders.refuse(other) == [other, a, b]
    assert orders.refuse(b) == [a, b, other]
    assert orders.refuse(other) == []


def test_a_set_that_is_refused_first_fits_nowhere() -> None:
    a, b = unit("a", 1), unit("b", 2)
    orders = Orders([a, b], [a, b])
    assert orders.refuse(b) == [b, a]
    assert orders.refuse(b) == []
    assert not orders.may_fit()
