"""Groups go where the zones of nodes that align pods take them, as far as there is such a place."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import pytest

from nri_policy.cluster.numa.alignment import Alignment
from nri_policy.cluster.numa.answers import explain_group
from nri_policy.cluster.numa.promises import LiveZones
from nri_policy.cluster.numa.report import live_zones
from nri_policy.cluster.objects.group import GroupStatus, read_group
from nri_policy.cluster.objects.settings import read_settings
from nri_policy.cluster.objects.snapshot import read_snapshot
from nri_policy.cluster.offline import engine_of
from tests.unit.cluster.numa.test_extender import node, pod, zones
from tests.unit.cluster.written import HOSTNAME, group, pod_set

REQUIRED = {"required": "topology.kubernetes.io/zone"}


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
        snapshot = read_snapshot({"nodes": nodes, "zones": reports, **listed})
        settings = read_settings(None)
        self.engine = engine_of(snapshot, settings)
        self.forks = 0

        def fork_of(names: Collection[str]) -> LiveZones:
            self.forks += 1
            return live_zones(snapshot, settings, names)

        self.fork_of = fork_of

    def place(self, of: Any, more: Mapping[str, int] | None = None) -> tuple[Any, Any]:
        """Where the pods of a group go, by pod set, and how many are refused there."""
        alignment = Alignment(self.engine, self.fork_of)
        status, refusals = alignment.place(self.engine, read_group(of), more=more or {})
        return by_host(status), refusals.pods


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
    assert hosts.engine.place(read_group(group(pods(1, 6, request_)))).assignments
    assert hosts.place(group(pods(1, 6, request_))) == ({"main": {"c": 1}}, {})


def test_a_host_gets_no_more_pods_than_its_zones_take() -> None:
    """Three pods of 5 CPUs fit into 16, but into zones of 8 only one each."""
    hosts = Hosts({"a": (8, 8), "b": (8, 4), "c": (8, 8)})
    assert hosts.place(group(pods(5, 5))) == ({"main": {"a": 2, "b": 1, "c": 2}}, {})


def test_without_a_place_by_zones_totals_count() -> None:
    """Six pods are one too many for the zones: the answer is that of the engine."""
    hosts = Hosts({"a": (8, 8), "b": (8, 4), "c": (8, 8)})
    of = group(pods(6, 5))
    alone = by_host(hosts.engine.place(read_group(of)))
    found, refused = hosts.place(of)
    assert found == alone
    assert refused


def test_nodes_that_align_nothing_have_no_limit() -> None:
    hosts = Hosts({"a": (4, 4), "b": ()})
    assert hosts.place(group(pods(2, 6))) == ({"main": {"b": 2}}, {})


@pytest.mark.parametrize(
    ("most", "found"), [(1, {"a": 1, "b": 1, "c": 1}), (2, {"a": 2, "b": 1}), (3, {"a": 2, "b": 1})]
)
def test_the_most_per_host_counts_beside_zones(most: int, found: Any) -> None:
    hosts = Hosts({"a": (8, 8), "b": (8, 4), "c": (8, 4)})
    of = group(pods(3, 5, REQUIRED | {"maxPerHost": most}))
    assert hosts.place(of) == ({"main": found}, {})


def test_slices_stay_whole() -> None:
    """A host whose zones take one pod takes no slice of two."""
    sliced = REQUIRED | {"slices": [{"level": HOSTNAME, "size": 2}]}
    hosts = Hosts({"a": (8, 4), "b": (8, 8), "c": (8, 8)})
    assert hosts.place(group(pods(4, 5, sliced))) == ({"main": {"b": 2, "c": 2}}, {})


@pytest.mark.parametrize("request_", [REQUIRED, SPREAD])
def test_what_a_failed_host_had_goes_to_zones_that_take_it(request_: Any) -> None:
    hosts = Hosts({"a": (8, 8), "b": (4, 4), "c": (8, 8)}, down="a")
    of = group(pods(2, 6, request_), status=on("a", a=2))
    assert hosts.place(of) == ({"main": {"c": 2}}, {})


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
    found, refused = hosts.place(of, {"main": 2})
    assert (found, refused) == ({"main": {"a": 2, "c": 1}}, {})


def test_pod_sets_have_limits_of_their_own() -> None:
    hosts = Hosts({"a": (4, 4), "b": (4, 4), "c": (8, 8)})
    of = group(pods(1, 6, name="large"), pods(2, 4, name="small"))
    found, refused = hosts.place(of)
    assert (found["large"], refused) == ({"c": 1}, {})


def test_places_of_others_whose_pods_are_not_there_yet_take_zones() -> None:
    other = group(pods(1, 6), name="other", status=on(a=1))
    hosts = Hosts({"a": (8, 4), "b": (8, 4)}, groups=[other])
    assert hosts.place(group(pods(1, 6))) == ({"main": {"b": 1}}, {})


def test_bound_pods_that_are_not_reported_take_zones() -> None:
    hosts = Hosts({"a": (8, 4), "b": (8, 4)}, pods=[pod("bound", 6, at="a")])
    assert hosts.place(group(pods(1, 6))) == ({"main": {"b": 1}}, {})


def test_zones_are_counted_only_where_pods_would_be_refused() -> None:
    free = Hosts({"a": (8, 8), "b": (8, 8)})
    free.place(group(pods(4, 8)))
    assert free.forks == 1
    unaligned = Hosts({"a": (), "b": ()})
    unaligned.place(group(pods(4, 5)))
    assert unaligned.forks == 0


def test_why_a_group_fits_is_said_of_the_same_places() -> None:
    hosts = Hosts({"a": (4, 4), "b": (8, 0)})
    found = explain_group(hosts.engine, read_group(group(pods(1, 6))), hosts.fork_of)
    assert (by_host(found.status), found.refused, found.notes) == ({"main": {"b": 1}}, {}, [])
