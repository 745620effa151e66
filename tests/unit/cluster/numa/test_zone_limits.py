"""Groups go where the zones of nodes that align pods take them, or wait."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from nri_policy.cluster.engine.preemption import find_victims
from nri_policy.cluster.engine.reservation import Reservations
from nri_policy.cluster.engine.unit_capacity import count_fitting
from nri_policy.cluster.numa.zone_limits import ZoneLimits
from nri_policy.cluster.objects.pod import read_pod
from nri_policy.cluster.objects.settings import read_settings
from nri_policy.cluster.offline import engine_of
from nri_policy.cluster.planning.group_answers import explain_group
from nri_policy.cluster.requests.group import Condition, GroupStatus, read_group
from nri_policy.cluster.snapshot import read_snapshot
from tests.unit.cluster.numa.test_extender import node, pod, zones
from tests.unit.cluster.written import HOSTNAME, group, pod_set

LEVELS = ("topology.kubernetes.io/zone", HOSTNAME)
REQUIRED = {"required": "topology.kubernetes.io/zone"}
PREFERRED = {"preferred": "topology.kubernetes.io/zone"}


class Hosts:
    """Hosts of 16 CPUs in two zones each, of which so many are free, in one zone of the tree."""

    def __init__(
        self, free: Mapping[str, tuple[int, ...]], *, down: str = "", **listed: Any
    ) -> None:
        nodes = [node(name) for name in free]
        for each in nodes:
            name = each["metadata"]["name"]
            each["metadata"]["labels"] = {HOSTNAME: name, "topology.kubernetes.io/zone": "z"}
            each["status"]["conditions"] = [{"type": "Ready", "status": str(name != down)}]
        reports = [zones(name, *each) for name, each in free.items() if each]
        using = read_settings({"spec": listed.pop("settings")} if "settings" in listed else None)
        snapshot = read_snapshot({"nodes": nodes, "zones": reports, **listed})
        self.engine = engine_of(snapshot, using)

    def place(self, of: Any, more: Mapping[str, int] | None = None) -> Any:
        """Where the pods of a group go, by pod set."""
        return by_host(self.engine.place(read_group(of), more=more or {}))


def by_host(status: GroupStatus) -> dict[str, dict[str, int]]:
    return {
        each.pod_set: {one.values[-1]: one.count for one in each.domains}
        for each in status.assignments
    }


def pods(count: int, cpu: int, request: Any = REQUIRED, name: str = "main") -> Any:
    return pod_set(count, request, name=name) | {"template": {"spec": pod("p", cpu)["spec"]}}


def on(*failed: str, **places: int) -> Any:
    """The status of a group with so many pods of `main` on hosts."""
    domains = [{"values": [host], "count": count} for host, count in places.items()]
    assignment = {"podSet": "main", "levels": [HOSTNAME], "domains": domains}
    return {"state": "Placed", "assignments": [assignment], "unhealthyNodes": list(failed)}


SPREAD = {"spreadOver": [HOSTNAME]}


@pytest.mark.parametrize("request_", [REQUIRED, None, SPREAD])
def test_a_pod_goes_to_a_host_whose_zones_take_it(request_: Any) -> None:
    """By totals, the first of these equal hosts is the best one."""
    hosts = Hosts({"a": (4, 4), "b": (4, 4), "c": (8, 0)})
    assert hosts.place(group(pods(1, 6, request_))) == {"main": {"c": 1}}


def test_a_host_gets_no_more_pods_than_its_zones_take() -> None:
    """Three pods of 5 CPUs fit into 16, but into zones of 8 only one each."""
    hosts = Hosts({"a": (8, 8), "b": (8, 4), "c": (8, 8)})
    assert hosts.place(group(pods(5, 5))) == {"main": {"a": 2, "b": 1, "c": 2}}


def test_a_group_for_which_zones_leave_no_place_is_told_so() -> None:
    """Six pods are one too many for the zones, and fit by what the hosts have in all."""
    hosts = Hosts({"a": (8, 8), "b": (8, 4), "c": (8, 8)})
    status = hosts.engine.place(read_group(group(pods(6, 5))))
    assert (status.state, status.assignments) == ("Unplaceable", [])
    text = (
        "pod set main: on 2 of 2 hosts the node aligns pods to one NUMA node, and refuses 3 of 6 of"
        " its pods while its zones are as full as now (a: cannot align container: 2 of 3 fit"
        " together)"
    )
    assert status.message == (f'topology "default" allows to fit only 5 out of 6 pod(s); {text}')
    assert status.conditions == [Condition(type="ZonesRefuse", reason="ZonesFull", message=text)]


def test_pods_that_are_larger_than_every_zone_are_told_so() -> None:
    hosts = Hosts({"a": (8, 8)})
    [condition] = hosts.engine.place(read_group(group(pods(1, 12)))).conditions
    assert condition.reason == "ZonesTooSmall"
    assert "refuses its pods even if it is empty (a: " in condition.message
    assert not hosts.engine.without_usage().place(read_group(group(pods(1, 12)))).assignments
    assert hosts.engine.without_usage().place(read_group(group(pods(1, 8)))).assignments


def test_nodes_that_align_nothing_have_no_limit() -> None:
    hosts = Hosts({"a": (4, 4), "b": ()})
    assert hosts.place(group(pods(2, 6))) == {"main": {"b": 2}}


@pytest.mark.parametrize(
    ("most", "found"), [(1, {"a": 1, "b": 1, "c": 1}), (2, {"a": 2, "b": 1}), (3, {"a": 2, "b": 1})]
)
def test_the_most_per_host_counts_beside_zones(most: int, found: Any) -> None:
    hosts = Hosts({"a": (8, 8), "b": (8, 4), "c": (8, 4)})
    of = group(pods(3, 5, REQUIRED | {"maxPerHost": most}))
    assert hosts.place(of) == {"main": found}


def test_slices_stay_whole() -> None:
    """A host whose zones take one pod takes no slice of two."""
    sliced = REQUIRED | {"slices": [{"level": HOSTNAME, "size": 2}]}
    hosts = Hosts({"a": (8, 4), "b": (8, 8), "c": (8, 8)})
    assert hosts.place(group(pods(4, 5, sliced))) == {"main": {"b": 2, "c": 2}}


@pytest.mark.parametrize("request_", [REQUIRED, SPREAD])
def test_what_a_failed_host_had_goes_to_zones_that_take_it(request_: Any) -> None:
    hosts = Hosts({"a": (8, 8), "b": (4, 4), "c": (8, 8)}, down="a")
    of = group(pods(2, 6, request_), status=on("a", a=2))
    assert hosts.place(of) == {"main": {"c": 2}}


@pytest.mark.parametrize("request_", [REQUIRED, SPREAD])
def test_more_pods_of_a_group_go_beside_those_that_stay(request_: Any) -> None:
    """Host a takes one more in its zones, and two by what it has in all."""
    status = on(a=1)
    one = pod("one", 6, at="a")
    one["metadata"]["labels"] = {"placement.nri/group": "g"}
    one["status"]["phase"] = "Running"
    listed: dict[str, Any] = {"pods": [one], "groups": [group(pods(1, 6, request_), status=status)]}
    hosts = Hosts({"a": (2, 8), "b": (3, 3), "c": (8, 3)}, **listed)
    of = group(pods(3, 6, request_), status=status)
    assert hosts.place(of, {"main": 2}) == {"main": {"a": 2, "c": 1}}


def test_pod_sets_have_limits_of_their_own() -> None:
    hosts = Hosts({"a": (4, 4), "b": (4, 4), "c": (8, 8)})
    of = group(pods(1, 6, name="large"), pods(2, 4, name="small"))
    assert hosts.place(of)["large"] == {"c": 1}


def test_places_of_others_whose_pods_are_not_there_yet_take_zones() -> None:
    other = group(pods(1, 6), name="other", status=on(a=1))
    hosts = Hosts({"a": (8, 4), "b": (8, 4)}, groups=[other])
    assert hosts.place(group(pods(1, 6))) == {"main": {"b": 1}}


def test_bound_pods_that_are_not_reported_take_zones() -> None:
    hosts = Hosts({"a": (8, 4), "b": (8, 4)}, pods=[pod("bound", 6, at="a")])
    assert hosts.place(group(pods(1, 6))) == {"main": {"b": 1}}


@pytest.mark.parametrize("free", [(8, 8), ()])
def test_hosts_are_not_counted_for_a_group_that_no_node_refuses(
    free: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = Hosts({"a": free, "b": free})
    limits: list[Any] = []
    monkeypatch.setattr(ZoneLimits, "of", lambda _, unit: limits.append(unit))
    assert hosts.place(group(pods(4, 8)))
    assert limits == []


def test_why_a_group_fits_is_said_of_the_same_places() -> None:
    hosts = Hosts({"a": (4, 4), "b": (8, 0)})
    found = explain_group(hosts.engine, read_group(group(pods(1, 6))))
    assert (by_host(found.status), found.refused, found.notes) == ({"main": {"b": 1}}, {}, [])


def test_it_is_said_how_many_pods_zones_leave_room_for() -> None:
    hosts = Hosts({"a": (4, 4), "b": (8, 8)})
    found = explain_group(hosts.engine, read_group(group(pods(3, 6))))
    [pod_set] = found.pod_sets
    assert [(each.level, each.in_all) for each in pod_set.levels] == [
        ("topology.kubernetes.io/zone", 2),
        (HOSTNAME, 2),
    ]
    assert pod_set.excluded == {"NUMA zones": 1}
    assert pod_set.examples["NUMA zones"].leaves == ["a"]
    assert [each.counts for each in found.changes] == [{"main": 2}]


def test_zones_count_where_hosts_have_too_little_in_all() -> None:
    """In all, each host holds three of the pods, in its zones two."""
    hosts = Hosts({"a": (8, 8), "b": (8, 8)})
    status = explain_group(hosts.engine, read_group(group(pods(8, 5)))).status
    assert status.message == (
        'topology "default" allows to fit only 4 out of 8 pod(s);'
        " nodes that align pods to one NUMA node count by their zones"
    )
    assert not status.conditions


def leader_group(leader: int, workers: int, cpu: int) -> Any:
    """A leader that asks for so many CPUs, and so many workers."""
    request = REQUIRED | {"leaderGroup": "lg"}
    return group(pods(1, leader, request, "leader"), pods(workers, cpu, request, "workers"))


def test_a_leader_goes_to_a_host_whose_zones_take_it() -> None:
    hosts = Hosts({"a": (4, 4), "b": (3, 8)})
    assert hosts.place(leader_group(6, 2, 3))["leader"] == {"b": 1}
    assert not Hosts({"a": (4, 4), "b": (3, 3)}).place(leader_group(6, 1, 1))


def test_workers_make_room_for_their_leader_on_its_host() -> None:
    """In all, each of many hosts holds two workers and the leader; in its zones, one less."""
    hosts = Hosts({f"h{at:02}": (8, 8) for at in range(20)})
    found = hosts.place(leader_group(3, 2, 6))
    assert found == {"leader": {"h00": 1}, "workers": {"h00": 1, "h01": 1}}


def test_workers_that_do_not_fit_beside_their_leader_are_told_so() -> None:
    hosts = Hosts({"a": (8, 8), "b": (8, 8)})
    status = hosts.engine.place(read_group(leader_group(3, 4, 6)))
    assert status.message == (
        'topology "default" allows to fit only 4 out of 4 pod(s), 3 beside the leader; pod set'
        " leader: on 1 of 1 host the node aligns pods to one NUMA node, and refuses its pods"
        " beside those of the other pod sets even if it is empty (a: cannot align container: what"
        " zones have left is promised to other pods)"
    )


def test_pod_sets_that_are_in_each_others_way_are_placed_apart() -> None:
    """Each host takes both of the large, or all of the small pods, but not all of one group."""
    hosts = Hosts({"a": (8, 8), "b": (8, 8), "c": (8, 8)})
    found = hosts.place(group(pods(3, 5, None, "five"), pods(3, 6, None, "six")))
    pods_on = Counter(dict.fromkeys("abc", 0))
    for places in found.values():
        pods_on.update(places)
    assert pods_on == {"a": 2, "b": 2, "c": 2}


@pytest.mark.parametrize("request_", [PREFERRED, {"unconstrained": True}, None])
def test_empty_hosts_take_pod_sets_that_would_break_up_each_others_zones(request_: Any) -> None:
    """By totals, one host takes three of 3 and one of 4 CPUs; its zones do not."""
    hosts = Hosts({f"h{number:02}": (8, 8) for number in range(40)})
    placed = hosts.place(group(pods(60, 3, request_, "three"), pods(60, 4, request_, "four")))
    assert {name: sum(each.values()) for name, each in placed.items()} == {"three": 60, "four": 60}


def test_a_pod_set_goes_where_zones_have_room_beside_the_one_before() -> None:
    hosts = Hosts({"a": (8, 8), "b": (8, 8)})
    found = hosts.place(group(pods(3, 5, name="five"), pods(1, 6, name="six")))
    assert found == {"five": {"a": 2, "b": 1}, "six": {"b": 1}}


def test_on_nodes_that_align_pods_other_orders_are_tried_too() -> None:
    """The small pods would take the only zone that the large one fits into."""
    hosts = Hosts({"a": (8, 0), "b": (4, 4)})
    of = group(pods(2, 4, name="small"), pods(1, 8, name="large"))
    assert hosts.place(of) == {"small": {"b": 2}, "large": {"a": 1}}
    assert hosts.engine.place(read_group(of)).message == "placed in the order large, small"


def test_spreading_counts_zones() -> None:
    """In all, each host holds three of the pods; some that find no zone go elsewhere, or wait."""
    hosts = Hosts({"a": (8, 8), "b": (8, 4), "c": (8, 8)})
    spread = hosts.engine.spread
    assert spread(read_group(group(pods(4, 5, SPREAD)))) == {"a": 2, "b": 1, "c": 1}
    assert spread(read_group(group(pods(7, 5, SPREAD)))) == {"a": 2, "b": 1, "c": 2, "": 2}
    two = group(pods(3, 5, SPREAD, "five"), pods(3, 6, SPREAD, "six"))
    assert spread(read_group(two)) == {"a": 2, "b": 1, "c": 2, "": 1}


def test_spreading_ends_where_nodes_share_a_hostname() -> None:
    """A limit of the host is one of each of its nodes: in the end they get none."""
    nodes = [node("a"), node("b")]
    for each in nodes:
        each["metadata"]["labels"] = {HOSTNAME: "h"}
        each["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
    snapshot = read_snapshot({"nodes": nodes, "zones": [zones("a", 4, 4), zones("b", 4, 4)]})
    found = engine_of(snapshot, read_settings(None)).spread(
        read_group(group(pods(5, 3, {"spreadOver": ["x"]})))
    )
    assert sum(found.values()) == 5
    assert sum(found[name] for name in found if name) <= 4


def test_a_node_without_a_hostname_is_a_host_of_its_name() -> None:
    one = node("a")
    one["metadata"]["labels"] = {"x": "y"}
    one["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
    engine = engine_of(
        read_snapshot({"nodes": [one], "zones": [zones("a", 4, 4)]}), read_settings(None)
    )
    over = {"spreadOver": ["x"]}
    assert by_host(engine.place(read_group(group(pods(1, 3, over))))) == {"main": {"a": 1}}
    assert not engine.place(read_group(group(pods(1, 6, over)))).assignments


def test_a_group_that_leaves_gives_its_zones_back() -> None:
    """Its pod on host a runs, so that the report counts it; the one on b has not come yet."""
    status = on(a=1, b=1)
    one = pod("one", 6, at="a")
    one["metadata"]["labels"] = {"placement.nri/group": "old"}
    one["status"]["phase"] = "Running"
    old = group(pods(2, 6), name="old", status=status)
    hosts = Hosts({"a": (4, 2), "b": (8, 3)}, pods=[one], groups=[old])
    new = group(pods(2, 7), name="new", priority=1)
    assert not hosts.place(new)
    [victim] = find_victims(hosts.engine, read_group(new)) or []
    assert victim.name == "old"
    trial = hosts.engine.fork()
    trial.state.take_out([("default", "old")])
    assert by_host(trial.place(read_group(new))) == {"main": {"a": 1, "b": 1}}
    trial.state.take_out([])
    assert not trial.place(read_group(new)).assignments


def test_nobody_leaves_for_zones_that_stay_full() -> None:
    """Its places are free then by what the host has in all, but another pod is in its zone."""
    old = group(pods(1, 2), name="old", status=on(a=1))
    hosts = Hosts({"a": (6, 6)}, groups=[old])
    assert find_victims(hosts.engine, read_group(group(pods(1, 7), name="new", priority=1))) is None


def test_hosts_are_set_aside_whose_zones_could_hold_the_group() -> None:
    hosts = Hosts({"a": (8, 8), "b": (8, 8), "c": (8, 8)})
    asked = read_group(group(pods(3, 5, {"unconstrained": True})))
    assert len(Reservations(hosts.engine).choose(asked) or ()) == 2
    assert Reservations(hosts.engine).choose(read_group(group(pods(1, 9)))) is None


@pytest.mark.parametrize(("policy", "chosen"), [("Never", ("a",)), ("Always", None)])
def test_hosts_are_not_set_aside_whose_zones_services_leave_too_small(
    policy: str, chosen: tuple[str, ...] | None
) -> None:
    """A pod of 2 CPUs is in each zone of 8; another needs 7 of one zone."""
    services = []
    for number in (0, 1):
        one = pod(f"web-{number}", 2)
        one["metadata"]["annotations"] = {"placement.nri/zone": f"node-{number}"}
        one["spec"] |= {"nodeName": "a", "restartPolicy": policy}
        services.append(one | {"status": {"phase": "Running"}})
    hosts = Hosts({"a": (6, 6)}, pods=services)
    assert Reservations(hosts.engine).choose(read_group(group(pods(1, 7)))) == chosen
    assert Reservations(hosts.engine).choose(read_group(group(pods(1, 6)))) == ("a",)


def test_as_many_pods_fit_now_as_zones_take() -> None:
    hosts = Hosts({"a": (8, 4), "b": (4, 4)})
    assert count_fitting(hosts.engine.state, read_group(group(pods(4, 5))), ["a", "b"]) == 1


def test_a_group_that_is_placed_anew_does_not_count_beside_itself() -> None:
    hosts = Hosts({"a": (8, 3)}, groups=[group(pods(1, 6), status=on(a=1))])
    assert hosts.place(group(pods(1, 6))) == {"main": {"a": 1}}
    assert not hosts.place(group(pods(1, 6), name="other"))


def test_what_changes_in_the_engine_counts_at_once() -> None:
    hosts = Hosts({"a": (8, 4), "b": (8, 4)})
    one = read_group(group(pods(1, 6), name="one"))
    two = read_group(group(pods(2, 6), name="two"))
    three = read_group(group(pods(3, 6), name="three"))
    assert not hosts.engine.place(three).assignments
    hosts.engine.state.set_group(replace(one, status=hosts.engine.place(one)))
    assert not hosts.engine.place(two).assignments
    trial = hosts.engine.fork()
    trial.state.set_group(replace(one, status=GroupStatus()))
    assert trial.place(two).assignments
    hosts.engine.state.remove_group("default", "one")
    assert hosts.engine.place(two).assignments


def test_limits_of_a_host_count_for_its_zones_together() -> None:
    """A place in a zone is promised to a pod that comes: of two zones one is left."""
    using = {"topologies": [{"name": "default", "levels": [*LEVELS], "belowHost": ["Node"]}]}
    hosts = Hosts({"a": (8, 8), "b": (8, 8)}, settings=using)
    assert isinstance(hosts.engine.state.limits, ZoneLimits)
    live = hosts.engine.state.limits.zones()
    chosen = read_pod(pod("other", 5), "")
    assert live.choose(chosen, live.fits.request(chosen), ["a"]) == "a"
    zoned = {"required": LEVELS[0], "slices": [{"level": "zone/Node", "size": 1}]}
    status = hosts.engine.place(read_group(group(pods(3, 6, zoned))))
    [assignment] = status.assignments
    found = Counter(each.values[-2] for each in assignment.domains)
    assert found == {"a": 1, "b": 2}


def test_hosts_without_a_place_for_more_pods_stay_so_beside_zones() -> None:
    """By totals the host that has a pod of the group is best; its zones are for no more of it."""
    hosts = Hosts({"a": (8, 8), "b": (4, 4), "c": (8, 8)})
    status = on(a=1)
    status["assignments"] += [each | {"podSet": "other"} for each in status["assignments"]]
    asked = read_group(group(pods(1, 5), pods(1, 5, name="other"), status=status))
    found = hosts.engine.without_nodes(["a"]).place(asked, more={"main": 1})
    assert by_host(found) == {"main": {"a": 1, "c": 1}, "other": {"a": 1}}
