"""Pod sets together: all of them in one domain, each by its own request there."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from nri_policy.cluster import offline
from nri_policy.cluster.engine.engine import Engine
from nri_policy.cluster.engine.state.host_limits import (
    HostLimits,
    HostRefusal,
    MakeLimits,
    RefusedByHost,
)
from nri_policy.cluster.groups.writes import CreateGroup
from nri_policy.cluster.objects.document import DocumentError
from nri_policy.cluster.objects.node import read_node
from nri_policy.cluster.objects.settings import read_settings
from nri_policy.cluster.requests.group import PlacementGroup, hosts_of, read_group
from nri_policy.cluster.view import Cluster
from tests.unit.cluster.written import HOSTNAME, Object, group, node, placed, pod_set, settings

RACK = "example.com/rack"
ZONE = "example.com/zone"
USING = settings("zone", "rack", HOSTNAME)
REQUIRED = "placement.nri/group-required-topology"
PREFERRED = "placement.nri/group-preferred-topology"


def hosts(**cpus: int) -> list[Object]:
    """Hosts like a1, in rack a of zone z, and A1 of zone Z."""
    zone = {name: "z" if name.islower() else "Z" for name in cpus}
    return [
        node(name, ZONE=zone[name], RACK=name[0], cpu=cpu, pods=99) for name, cpu in cpus.items()
    ]


def together(given: Object, **level: str) -> Object:
    return given | {"spec": given["spec"] | {"together": level}}


def place(given: Object, nodes: Any, **cluster: Any) -> Object:
    return offline.place({"nodes": nodes, **cluster}, given, USING)


def sets(prefill: int = 2, decode: int = 2, request: Any = None) -> tuple[Object, Object]:
    return (
        pod_set(prefill, request, name="prefill", cpu=2),
        pod_set(decode, request, name="decode", cpu=4),
    )


APART = hosts(a1=4, a2=2, b1=8, c1=8, c2=8)


def racks(status: Object) -> dict[str, set[str]]:
    return {name: {host[0] for host in found} for name, found in placed(status).items()}


def test_all_pod_sets_are_in_the_fullest_domain_that_holds_them() -> None:
    given = group(*sets())
    assert racks(place(given, APART)) == {"prefill": {"a"}, "decode": {"b"}}
    status = place(together(given, required=RACK), APART)
    assert placed(status) == {"prefill": {"c1": 2}, "decode": {"c2": 2}}
    assert racks(place(together(given, required=RACK), [*APART, *hosts(d1=12)])) == {
        "prefill": {"d"},
        "decode": {"d"},
    }


def test_racks_of_equal_room_in_all_differ_by_their_hosts() -> None:
    nodes = hosts(a1=4, a2=4, b1=7, b2=1)
    given = group(pod_set(7, {"required": HOSTNAME}))
    assert placed(place(together(given, required=RACK), nodes)) == {"main": {"b1": 7}}
    led = {"required": HOSTNAME, "leaderGroup": "g"}
    pair = group(pod_set(2, led, name="w", cpu=3), pod_set(1, led, name="l"))
    assert racks(place(together(pair, required=RACK), nodes)) == {"w": {"b"}, "l": {"b"}}


def test_sets_that_no_rack_holds_are_in_few_if_they_prefer_one() -> None:
    """The workers need two racks, and the driver has room beside them."""
    nodes = hosts(a1=4, b1=6, b2=4, c1=4, c2=4, d1=2)
    anywhere = {"unconstrained": True}
    driver = pod_set(1, anywhere, name="driver", cpu=2)
    given = group(driver, pod_set(4, anywhere, name="workers", cpu=4))
    assert racks(place(given, nodes)) == {"driver": {"d"}, "workers": {"a", "b", "c"}}
    status = place(together(given, preferred=RACK), nodes)
    assert racks(status) == {"driver": {"b"}, "workers": {"b", "c"}}


def test_any_pod_says_it_in_an_annotation() -> None:
    prefill, decode = sets()
    decode["template"]["metadata"] = {"annotations": {REQUIRED: RACK}}
    status = place(group(prefill, decode), APART)
    assert racks(status) == {"prefill": {"c"}, "decode": {"c"}}


def test_pods_that_name_different_levels_are_refused() -> None:
    prefill, decode = sets()
    prefill["template"]["metadata"] = {"annotations": {REQUIRED: RACK}}
    decode["template"]["metadata"] = {"annotations": {REQUIRED: ZONE}}
    with pytest.raises(
        DocumentError,
        match=r"required 'example.com/zone' for .* required 'example.com/rack' at spec.podSets.0.",
    ):
        place(group(prefill, decode), APART)
    decode["template"]["metadata"] = {"annotations": {PREFERRED: RACK}}
    with pytest.raises(
        DocumentError, match=r"preferred 'example.com/rack' for pod sets together, but required"
    ):
        place(group(prefill, decode), APART)
    decode["template"]["metadata"] = {"annotations": {PREFERRED: RACK, REQUIRED: RACK}}
    with pytest.raises(DocumentError, match=f"may not be set when {REQUIRED} is"):
        place(group(prefill, decode), APART)


@pytest.mark.parametrize("level", [{}, {"required": RACK, "preferred": RACK}, {"required": ""}])
def test_a_group_names_one_level(level: Any) -> None:
    with pytest.raises(DocumentError, match=r"spec\.together"):
        place(together(group(*sets()), **level), APART)


def test_a_level_that_there_is_not_is_refused() -> None:
    status = place(together(group(*sets()), required="example.com/row"), APART)
    assert status["state"] == "Unplaceable"
    assert "example.com/row" in status["message"]
    assert RACK in status["message"]


def test_the_refusal_says_which_set_could_not_join_and_why() -> None:
    status = place(together(group(*sets(decode=4)), required=RACK), APART)
    assert status["message"].startswith(
        "no rack holds all pod sets together; in rack c, decode finds no room beside prefill:"
        ' topology "default" allows to fit only 3 out of 4 pod(s).'
    )
    status = place(together(group(*sets(decode=9)), required=RACK), APART)
    assert "; in rack c, decode finds no room" in status["message"]


def test_a_preferred_level_is_the_finest_that_can_be() -> None:
    nodes = hosts(a1=4, b1=4, A1=4, B1=20)
    given = together(group(*sets(1, 1)), preferred=RACK)
    assert racks(place(given, nodes)) == {"prefill": {"B"}, "decode": {"B"}}
    given = together(group(*sets(6, 1)), preferred=RACK)
    found = racks(place(given, hosts(A1=8, B1=4, a1=8, b1=8)))
    assert found["prefill"] | found["decode"] == {"a", "b"}  # of one zone
    given = together(group(*sets(8, 3)), preferred=RACK)
    assert place(given, hosts(a1=8, b1=8, A1=8, B1=4))["state"] == "Placed"


def test_each_set_keeps_its_own_request_inside() -> None:
    nodes = hosts(a1=9, a2=3, b1=6, b2=6)
    one_host = {"required": HOSTNAME}
    given = group(pod_set(3, one_host, name="x", cpu=2), pod_set(3, one_host, name="y", cpu=2))
    assert placed(place(together(given, required=RACK), nodes)) == {"x": {"b1": 3}, "y": {"b2": 3}}
    coarse = {
        "required": ZONE,
        "slices": [{"level": ZONE, "size": 4}, {"level": HOSTNAME, "size": 2}],
    }
    given = group(pod_set(4, coarse, name="x", cpu=3), pod_set(1, name="y", cpu=1))
    assert placed(place(together(given, required=RACK), hosts(a1=3, a2=9, b1=6, b2=7))) == {
        "x": {"b1": 2, "b2": 2},
        "y": {"b2": 1},
    }
    alone = {"slices": [{"level": ZONE, "size": 2}]}
    given = group(pod_set(2, alone, name="x", cpu=3), pod_set(1, name="y", cpu=1))
    assert racks(place(together(given, required=RACK), hosts(a1=3, b1=3, c1=7))) == {
        "x": {"c"},
        "y": {"c"},
    }


def test_another_order_is_tried_inside_a_domain() -> None:
    driver = pod_set(1, name="driver", cpu=3)
    worker = pod_set(4, {"required": HOSTNAME}, name="worker", cpu=2)
    status = place(together(group(driver, worker), required=RACK), hosts(a1=8, a2=6, b1=8))
    assert placed(status) == {"driver": {"a2": 1}, "worker": {"a1": 4}}
    assert status["message"] == "placed in the order worker, driver"


def test_spread_pods_are_spread_inside_the_domain() -> None:
    spread = {"spreadOver": [HOSTNAME]}
    given = group(pod_set(4, spread, name="x", cpu=1), pod_set(1, name="y", cpu=4))
    status = place(together(given, required=RACK), hosts(a1=3, a2=3, b1=6, b2=6))
    assert placed(status) == {"x": {"b1": 2, "b2": 2}, "y": {"b1": 1}}


def stored(given: Object, where: dict[str, dict[str, int]], *failed: str) -> Object:
    assignments = [
        {
            "podSet": name,
            "levels": [HOSTNAME],
            "domains": [{"values": [host], "count": count} for host, count in found.items()],
        }
        for name, found in where.items()
    ]
    return given | {"status": {"assignments": assignments, "unhealthyNodes": [*failed]}}


def test_pods_of_a_failed_node_stay_in_the_domain_of_the_group() -> None:
    given = group(*sets(1, 1))
    nodes = hosts(a1=4, a2=4, a3=9, b1=4)
    nodes[0] = node("a1", ZONE="z", RACK="a", ready=False)
    lost = stored(given, {"prefill": {"a1": 1}, "decode": {"a2": 1}}, "a1")
    assert placed(place(lost, nodes))["prefill"] == {"b1": 1}
    assert placed(place(together(lost, required=RACK), nodes))["prefill"] == {"a3": 1}
    full = place(together(lost, required=RACK), [*nodes[:2], nodes[3]])
    assert full["state"] == "Unplaceable"


def test_a_wider_level_of_its_own_takes_no_lost_pod_out_of_the_groups_domain() -> None:
    nodes = hosts(a1=4, a2=2, b1=8)
    given = together(group(pod_set(2, {"required": ZONE}, cpu=2)), required=RACK)
    where = [{"values": [host], "count": 1} for host in ("a1", "a2")]
    assignment = {"podSet": "main", "levels": [HOSTNAME], "domains": where}
    given["status"] = {"assignments": [assignment], "unhealthyNodes": ["a2"]}
    assert placed(place(given, nodes)) == {"main": {"a1": 2}}
    full = hosts(a1=2, a2=2, b1=8)
    assert place(given, full)["state"] == "Unplaceable"


def test_a_group_that_lost_all_goes_to_another_domain_as_a_whole() -> None:
    given = together(group(*sets(1, 1)), required=RACK)
    nodes = hosts(a1=9, b1=2, c1=4, c2=2)
    nodes[0] = node("a1", ZONE="z", RACK="a", ready=False)
    lost = stored(given, {"prefill": {"a1": 1}, "decode": {"a1": 1}}, "a1")
    assert placed(place(lost, nodes)) == {"prefill": {"c2": 1}, "decode": {"c1": 1}}


def test_a_group_that_lost_all_is_searched_for_like_a_new_one() -> None:
    """No order of its pod sets finds the only way: s0 on both hosts, s1 and s2 apart."""
    sizes = {"s0": (3, 3, 1), "s1": (1, 1, 2), "s2": (1, 1, 2)}
    sets = [
        pod_set(count, {"unconstrained": True}, name=name, cpu=cpu, gpu=gpu)
        for name, (count, cpu, gpu) in sizes.items()
    ]
    given = together(group(*sets), required=RACK)
    there = {"a1": (10, 7), "a2": (2, 5)}
    free = {"b1": (7, 7), "b2": (8, 2)}
    nodes = [
        node(name, ZONE="z", RACK=name[0], ready=name in free, cpu=cpu, gpu=gpu)
        for name, (cpu, gpu) in (there | free).items()
    ]
    lost = stored(given, {"s0": {"a1": 3}, "s1": {"a1": 1}, "s2": {"a2": 1}}, *there)
    assert racks(place(lost, nodes)) == {name: {"b"} for name in sizes}


STEPS = hosts(a1=8, b1=4)  # the workers below would fit best in rack b


def step(given: Object, name: str, uid: str = "u", **level: str) -> Object:
    """Make a group one of a JobSet whose Jobs start one after the other."""
    labels = {"jobset.sigs.k8s.io/jobset-uid": uid}
    return together(given, **level) | {"metadata": {"name": name, "labels": labels}}


def driver(name: str = "s", uid: str = "u", *failed: str, **level: str) -> Object:
    given = step(group(pod_set(1, cpu=1)), name, uid, **(level or {"required": RACK}))
    return stored(given, {"main": {"a1": 1}}, *failed)


WORKERS = step(group(pod_set(2, cpu=2)), "s.w", required=RACK)


def test_a_later_step_of_a_jobset_joins_the_earlier_ones() -> None:
    assert placed(place(WORKERS, STEPS)) == {"main": {"b1": 2}}
    assert placed(place(WORKERS, STEPS, groups=[driver()])) == {"main": {"a1": 2}}
    prefer = step(group(pod_set(2, cpu=2)), "s.w", preferred=RACK)
    assert placed(place(prefer, STEPS, groups=[driver(preferred=RACK)])) == {"main": {"a1": 2}}
    full = hosts(a1=4, b1=4)
    assert placed(place(prefer, full, groups=[driver(preferred=RACK)])) == {"main": {"b1": 2}}
    status = place(WORKERS, full, groups=[driver()])
    assert status["message"].startswith(
        "it shares rack a with default/s of its JobSet; there, main finds no room: topology"
        ' "default" allows to fit only 1 out of 2 pod(s)'
    )


def test_a_preferring_step_stays_near_the_earlier_ones_where_their_rack_has_no_room() -> None:
    prefer = step(group(pod_set(2, cpu=2)), "s.w", preferred=RACK)
    nodes = hosts(a1=2, c1=6, B1=4)
    assert placed(place(prefer, nodes)) == {"main": {"B1": 2}}
    assert placed(place(prefer, nodes, groups=[driver(preferred=RACK)])) == {"main": {"c1": 2}}


@pytest.mark.parametrize(
    "other",
    [
        driver(uid="other"),
        driver(required=ZONE),
        driver(preferred=RACK),
        driver() | {"metadata": {"name": "s"}},
        driver("s", "u", "a1"),
        {**driver(), "metadata": {**driver()["metadata"], "namespace": "other"}},
    ],
)
def test_only_steps_of_its_jobset_that_name_its_level_hold_a_group(other: Object) -> None:
    assert placed(place(WORKERS, STEPS, groups=[other])) == {"main": {"b1": 2}}


def test_exclusive_jobs_of_a_jobset_have_a_domain_each() -> None:
    alone = {"exclusive": RACK}
    job = step(group(pod_set(2, alone, cpu=2)), "job-s-1", required=RACK)
    other = stored(
        step(group(pod_set(1, alone, cpu=1)), "job-s-0", required=RACK), {"main": {"a1": 1}}
    )
    assert placed(place(job, STEPS, groups=[other])) == {"main": {"b1": 2}}


def test_a_step_that_lost_all_goes_to_the_others_and_one_that_did_not_stays() -> None:
    nodes = [*hosts(a1=8, b1=4, b2=4), node("b3", ZONE="z", RACK="b", ready=False)]
    lost = stored(WORKERS, {"main": {"b3": 2}}, "b3")
    assert placed(place(lost, nodes, groups=[driver()])) == {"main": {"a1": 2}}
    lost = stored(WORKERS, {"main": {"b3": 1, "b1": 1}}, "b3")
    assert placed(place(lost, nodes, groups=[driver()])) == {"main": {"b1": 2}}


class _ClosedRack(HostLimits):
    """Whatever is in rack b is refused, and nobody knows why."""

    def may_refuse(self) -> bool:
        return True

    def find_refused(
        self, placed: PlacementGroup, _kept: PlacementGroup | None = None
    ) -> RefusedByHost:
        refusal = {"main": HostRefusal(1, 1, "no")}
        return {host: refusal for host in hosts_of(placed) if host.startswith("b")}


@pytest.mark.parametrize(("limits", "expected"), [(HostLimits, "b1"), (_ClosedRack, "a1")])
def test_steps_to_come_keep_a_group_from_no_place(limits: MakeLimits, expected: str) -> None:
    """In rack b there is room for all, but hosts may refuse the first one there."""
    cluster = Cluster([read_node(each, "") for each in hosts(a1=2, b1=8)])
    engine = Engine(read_settings(USING), cluster.view, limits)
    first = read_group(step(group(pod_set(1, cpu=1)), "s", required=RACK))
    assert [*hosts_of(replace(first, status=engine.place(first)))] == ["a1"]
    engine.state.usages.plan(("default", "s"), ((first, read_group(WORKERS)),))
    found = engine.place(first)
    assert [*hosts_of(replace(first, status=found))] == [expected]


def test_a_level_below_the_host_is_refused_with_the_levels_that_can_be_shared() -> None:
    below = settings("rack", HOSTNAME)
    below["spec"]["topologies"][0]["belowHost"] = ["Node"]
    given = together(group(*sets()), required="zone/Node")
    assert offline.place({"nodes": APART}, given, below)["message"] == (
        "a group cannot share a domain of zone/Node, a level below the host: name one of"
        f" {RACK}, {HOSTNAME}"
    )


def test_the_object_of_a_group_keeps_the_level() -> None:
    given = read_group(together(group(*sets()), required=RACK))
    made = CreateGroup(given, ()).object()
    assert made["spec"]["together"] == {"required": RACK}
    assert read_group(made).together == given.together
