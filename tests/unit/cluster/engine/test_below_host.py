"""Requests that name zones of hosts: NUMA nodes and sockets as leaves of the same tree."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from nri_policy.cluster import offline
from nri_policy.cluster.engine.engine import Engine as ClusterEngine
from nri_policy.cluster.objects.node import read_node
from nri_policy.cluster.objects.settings import read_settings
from nri_policy.cluster.requests.group import read_group
from nri_policy.cluster.simulation import synthetic
from nri_policy.cluster.view import Cluster
from nri_policy.cluster.zones.zone import read_zones
from nri_policy.engine.engine import Engine
from nri_policy.engine.event import Created
from tests.support import nodes
from tests.support.daemon_report import daemon_report
from tests.unit.cluster.written import HOSTNAME, Object, group, node, placed, pod, pod_set, settings

USING = settings("rack", HOSTNAME, topology={"belowHost": ["socket", "Node"]})


def zone(name: str, kind: str, cpu: str, parent: str = "", *, total: str = "") -> Object:
    """A zone with so many CPUs left, of as many or of *total*."""
    amount = {"name": "cpu", "capacity": cpu, "allocatable": total or cpu, "available": cpu}
    return {"name": name, "type": kind, "resources": [amount]} | (
        {"parent": parent} if parent else {}
    )


def topology(host: str, *cpus: str) -> Object:
    """Two NUMA nodes a socket, with so many CPUs left; their chain is that of other exporters."""
    zones = [zone(f"node-{n}", "Node", cpu, f"socket #{n // 2}") for n, cpu in enumerate(cpus)]
    sockets = [
        zone(f"socket #{n}", "socket", str(sum(int(cpu) for cpu in cpus[2 * n : 2 * n + 2])))
        for n in range((len(cpus) + 1) // 2)
    ]
    return {"metadata": {"name": host}, "zones": [*sockets, *zones]}


def reports(*hosts: str, **spec: Any) -> list[Object]:
    """What the daemons of equal hosts publish: two sockets of two NUMA nodes of four CPUs."""
    engine = Engine(nodes.machine("package:2 numa:2 core:4"), nodes.settings(**spec))
    return [daemon_report(engine, name=host) for host in hosts]


NODES = [node("h1", RACK="a", cpu=16), node("h2", RACK="a", cpu=16), node("h3", RACK="a", cpu=16)]
ZONES = [topology("h1", "4", "4", "4", "4"), topology("h2", "1", "6", "3", "2")]
WHOLE = {"required": "example.com/rack", "slices": [{"level": "zone/Node", "size": 1}]}
PAIRS = {"required": "example.com/rack", "slices": [{"level": "zone/socket", "size": 2}]}


def place(given: Object, **cluster: Any) -> Object:
    return offline.place({"nodes": NODES, "zones": ZONES, **cluster}, given, USING)


def test_each_pod_is_whole_in_one_numa_node() -> None:
    status = place(group(pod_set(4, WHOLE, cpu=4)))
    assert status["assignments"] == [
        {
            "podSet": "main",
            "levels": [HOSTNAME, "zone/socket", "zone/Node"],
            "domains": [
                {"values": ["h1", "socket #0", "node-0"], "count": 1},
                {"values": ["h1", "socket #0", "node-1"], "count": 1},
                {"values": ["h1", "socket #1", "node-2"], "count": 1},
                {"values": ["h1", "socket #1", "node-3"], "count": 1},
            ],
        }
    ]
    status = place(group(pod_set(6, WHOLE, cpu=4)))
    assert status["message"] == (
        'topology "default" allows to fit only 5 out of 6 pod(s). Total zones: 8; excluded:'
        ' resource "cpu": 3'
    )


def test_pairs_share_a_socket_which_alone_has_to_hold_them() -> None:
    status = place(group(pod_set(6, PAIRS, cpu=3)))
    domains = status["assignments"][0]["domains"]
    assert domains == [
        {"values": ["h1", "socket #0"], "count": 2},
        {"values": ["h1", "socket #1"], "count": 2},
        {"values": ["h2", "socket #0"], "count": 2},
    ]
    status = place(group(pod_set(8, PAIRS, cpu=3)))
    assert status["message"] == 'topology "default" allows to fit only 3 out of 4 slice(s)'


def test_a_numa_node_that_is_in_no_socket_leaves_its_host_out() -> None:
    zones = [topology("h1", "4"), {"metadata": {"name": "h2"}, "zones": [zone("n", "Node", "9")]}]
    status = place(group(pod_set(2, WHOLE, cpu=4)), zones=zones)
    assert status["message"] == 'topology "default" allows to fit only 1 out of 2 pod(s)'


def test_zones_are_found_in_the_reports_of_our_own_daemon() -> None:
    zones = reports("h1", "h2")
    status = place(group(pod_set(8, WHOLE, cpu=3)), zones=zones)
    (assignment,) = status["assignments"]
    assert [each["values"] for each in assignment["domains"][:3]] == [
        ["h1", "socket #0", "node-0"],
        ["h1", "socket #0", "node-1"],
        ["h1", "socket #1", "node-2"],
    ]
    assert place(group(pod_set(9, WHOLE, cpu=3)), zones=zones)["state"] == "Unplaceable"
    status = place(group(pod_set(8, PAIRS, cpu=3)), zones=zones)
    assert status["state"] == "Placed"


SOCKETS = {"required": "example.com/rack", "slices": [{"level": "zone/socket", "size": 1}]}


def test_a_socket_of_a_node_that_aligns_holds_what_its_numa_nodes_hold_each() -> None:
    """Of 4 CPUs each: no pod of 5, and one of 3 in each, not two in the sum of 7 or 8."""
    for aligned, large, small in (("numa", 0, 4), ("none", 2, 4)):
        zones = reports("h1", alignment=aligned)
        for cpu, expected in ((5, large), (3, small)):
            asked = group(pod_set(9, SOCKETS, cpu=cpu))
            message = place(asked, zones=zones)["message"]
            fits = f"only {expected} out of 9" if expected else "any of 9"
            assert fits in message, (aligned, cpu)


def test_what_numa_nodes_hold_follows_their_reports() -> None:
    cluster = Cluster([read_node(each, "") for each in NODES])
    engine = ClusterEngine(read_settings(USING), cluster.view)
    cluster.follow(engine.state)
    numa = Engine(nodes.machine("package:2 numa:2 core:4"), nodes.settings(alignment="numa"))
    given = read_group(group(pod_set(4, SOCKETS, cpu=3)))
    cluster.set_zones(read_zones(daemon_report(numa, name="h1"), ""))
    assert engine.place(given).state == "Placed"
    for _ in range(2):  # on two NUMA nodes; their sockets have 5 CPUs and more left
        numa.handle(Created(container=nodes.container(2000)))
    cluster.set_zones(read_zones(daemon_report(numa, name="h1"), ""))
    assert "only 2 out of 4" in engine.place(given).message


def test_ids_that_a_machine_does_not_have_are_no_zones() -> None:
    sparse = topology("h1", "4", "4", "4", "4")
    sparse["zones"] += [zone("node-4", "Node", "0")]
    assert place(group(pod_set(4, WHOLE, cpu=4)), zones=[sparse])["state"] == "Placed"


def test_a_refusal_names_the_zones_that_reports_lack() -> None:
    numa = [zone("node-0", "Node", "4")]
    loose = [{"metadata": {"name": host}, "zones": numa} for host in ("h1", "h2")]
    status = place(group(pod_set(1, WHOLE, cpu=4)), zones=loose)
    assert status["message"] == (
        "no zones of type Node under socket on 2 nodes, no NodeResourceTopology on 1 node"
    )
    only = topology("h3")
    only["zones"] = [zone("socket #0", "socket", "16")]
    status = place(group(pod_set(1, WHOLE, cpu=4)), zones=[only], nodes=NODES[2:])
    assert status["message"] == "no zones of type Node on 1 node"


def test_the_host_caps_its_zones() -> None:
    """Memory is not listed by the zones; what other pods use of it counts at the host."""
    others = [pod("p", "h1", memory="6Gi")]
    status = place(group(pod_set(4, WHOLE, cpu=1, memory="1Gi")), pods=others)
    assert sum(placed(status)["main"].values()) == 4
    status = place(group(pod_set(11, WHOLE, cpu=1, memory="1Gi")), pods=others)
    assert status["message"].startswith('topology "default" allows to fit only 10 out of 11 pod(s)')


def test_a_request_that_names_no_zone_may_use_hosts_without() -> None:
    status = place(group(pod_set(3, {"required": "example.com/rack"}, cpu=16)))
    assert placed(status) == {"main": {"h1": 1, "h2": 1, "h3": 1}}


def test_stale_zones_are_not_used() -> None:
    status = place(group(pod_set(1, WHOLE, cpu=4)), stale=["h1"])
    assert placed(status) == {"main": {"node-1": 1}}
    status = place(group(pod_set(1, WHOLE, cpu=4)), stale=["h1", "h2"])
    assert status["message"] == "no NodeResourceTopology on 3 nodes"


def test_an_assignment_counts_against_its_zone_and_its_host() -> None:
    first = place(group(pod_set(4, WHOLE, cpu=4), name="first"))
    running = group(pod_set(4, WHOLE, cpu=4), name="first", status=first)
    status = place(group(pod_set(1, WHOLE, cpu=4)), groups=[running])
    assert placed(status) == {"main": {"node-1": 1}}
    anywhere = place(group(pod_set(3, {"required": "example.com/rack"}, cpu=16)), groups=[running])
    assert anywhere["state"] == "Unplaceable"


def test_pods_that_run_are_in_what_the_zones_have_left() -> None:
    first = place(group(pod_set(1, WHOLE, cpu=4), name="first"))
    assert placed(first) == {"main": {"node-1": 1}}
    running = group(pod_set(1, WHOLE, cpu=4), name="first", status=first)
    member = pod("m", "h2", group="first", cpu=4)
    given = group(pod_set(1, {**WHOLE, "required": HOSTNAME}, cpu=2))
    only = {"nodes": NODES[1:2], "groups": [running]}
    assert placed(place(given, **only)) == {"main": {"node-1": 1}}
    given = group(pod_set(1, {**WHOLE, "required": HOSTNAME}, cpu=5))
    assert place(given, **only)["state"] == "Unplaceable"
    assert placed(place(given, **only, pods=[member])) == {"main": {"node-1": 1}}


def test_zones_may_change() -> None:
    cluster = Cluster([read_node(each, "") for each in NODES])
    engine = ClusterEngine(read_settings(USING), cluster.view)
    cluster.follow(engine.state)
    given = read_group(group(pod_set(1, WHOLE, cpu=6)))
    assert engine.place(given).state == "Unplaceable"
    cluster.set_zones(read_zones(ZONES[1], ""))
    assert engine.place(given).state == "Placed"
    cluster.remove_zones("h2")
    assert engine.place(given).state == "Unplaceable"


def test_pods_in_zones_of_a_failed_host_are_placed_anew() -> None:
    made = synthetic.make_cluster("rack:2 host:3 cpu:8 socket:2")
    request = {"required": "example.com/rack", "slices": [{"level": "zone/socket", "size": 2}]}
    pods = {"containers": [{"name": "c", "resources": {"requests": {"cpu": "2"}}}]}
    job: Any = {
        "metadata": {"name": "job"},
        "spec": {
            "podSets": [
                {"name": "main", "count": 8, "template": {"spec": pods}, "request": request}
            ]
        },
    }
    first = offline.place(made.cluster, job, made.settings)
    (assignment,) = first["assignments"]
    lost = assignment["domains"][0]["values"][0]
    made.cluster["nodes"] = [
        each for each in made.cluster["nodes"] if each["metadata"]["name"] != lost
    ]
    job["status"] = first | {"unhealthyNodes": [lost]}
    again = offline.place(made.cluster | {"groups": [job]}, job, made.settings)
    assert again["state"] == "Placed", again["message"]
    (after,) = again["assignments"]
    hosts = {each["values"][0] for each in after["domains"]}
    assert lost not in hosts
    assert {host.rpartition("-")[0] for host in hosts} == {lost.rpartition("-")[0]}, "its rack"
    assert sum(each["count"] for each in after["domains"]) == 8
    assert all(each["count"] % 2 == 0 for each in after["domains"])


def by_host(status: Object) -> dict[str, int]:
    pods: Counter[str] = Counter()
    for assignment in status["assignments"]:
        for each in assignment["domains"]:
            pods[each["values"][0]] += each["count"]
    return dict(pods)


@pytest.mark.parametrize("level", ["zone/socket", "zone/Node"])
@pytest.mark.parametrize("limit", ["maxPerHost", "pods"])
def test_all_zones_of_a_host_together_get_no_more_than_it_may_take(level: str, limit: str) -> None:
    hosts = [node(name, RACK="a", cpu=16, pods=3 if limit == "pods" else 110) for name in "abc"]
    zones = [topology(name, "4", "4", "4", "4") for name in "abc"]
    request = {"unconstrained": True, "slices": [{"level": level, "size": 1}]}
    request |= {"maxPerHost": 3} if limit == "maxPerHost" else {}
    full = place(group(pod_set(9, request, cpu=1)), nodes=hosts, zones=zones)
    assert by_host(full) == {"a": 3, "b": 3, "c": 3}
    more = place(group(pod_set(10, request, cpu=1)), nodes=hosts, zones=zones)
    assert "only 9 out of 10" in more["message"]


def test_a_leader_takes_its_place_on_the_host_of_its_zone() -> None:
    """It asks for nothing that zones list: they would take four workers beside it."""
    hosts = [node(name, RACK="a", cpu=16, pods=4) for name in "ab"]
    zones = [topology(name, "4", "4", "4", "4") for name in "ab"]
    request = WHOLE | {"leaderGroup": "j"}
    pod_sets = [pod_set(1, request, name="leader", memory="1Gi")]
    pod_sets += [pod_set(7, request, name="workers", cpu=4)]
    status = place(group(*pod_sets), nodes=hosts, zones=zones)
    assert by_host(status) == {"a": 4, "b": 4}, status


def test_pods_that_a_host_keeps_count_for_the_most_that_it_takes_in_its_zones() -> None:
    hosts = [node("a", RACK="a", cpu=16)]
    zones = [topology(name, "4", "4", "4", "4") for name in "ac"]
    places = [(["a", "socket #0", "node-0"], 1), (["a", "socket #1", "node-2"], 1)]
    places += [(["c", "socket #0", "node-0"], 2)]
    given = [
        {
            "podSet": "main",
            "levels": [HOSTNAME, "zone/socket", "zone/Node"],
            "domains": [{"values": values, "count": count} for values, count in places],
        }
    ]
    status = {"state": "Degraded", "unhealthyNodes": ["c"], "assignments": given}
    for most, hosts_of_all in ((3, None), (4, {"a": 4})):
        asked = group(pod_set(4, WHOLE | {"maxPerHost": most}, cpu=1), status=status)
        found = place(asked, nodes=hosts, zones=zones, groups=[asked])
        assert (by_host(found) if found["assignments"] else None) == hosts_of_all, found
