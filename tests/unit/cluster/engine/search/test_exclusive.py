"""Exclusive domains: a group has one of a level to itself, among groups that ask for that."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from nri_policy.cluster import offline
from nri_policy.cluster.engine.preemption import find_victims
from nri_policy.cluster.engine.reservation import Reservations
from nri_policy.cluster.objects.settings import read_settings
from nri_policy.cluster.planning.group_answers import try_groups
from nri_policy.cluster.requests.group import read_group
from nri_policy.cluster.snapshot import read_snapshot
from nri_policy.cluster.workloads.workload import read_groups
from tests.unit.cluster.written import HOSTNAME, Object, group, node, placed, pod_set, settings

CONFIGS = Path(__file__).parents[5] / "configs/groups"
RACK = "example.com/rack"
USING = settings("rack", HOSTNAME)
NODES = [node(f"{rack}{number}", RACK=rack) for rack in "ab" for number in (1, 2)]
EXCLUSIVE = {"exclusive": RACK}


def there(name: str, host: str, request: Any = EXCLUSIVE) -> Object:
    """Another group, with a pod on a host."""
    assignment = {
        "podSet": "main",
        "levels": [HOSTNAME],
        "domains": [{"values": [host], "count": 1}],
    }
    return group(pod_set(1, request), name=name, status={"assignments": [assignment]})


def place(given: Object, *groups: Object) -> Object:
    return offline.place({"nodes": NODES, "groups": groups}, given, USING)


def test_a_group_goes_where_no_other_exclusive_one_is() -> None:
    given = group(pod_set(1, EXCLUSIVE))
    assert placed(place(given)) == {"main": {"a1": 1}}
    assert placed(place(given, there("o", "a1"))) == {"main": {"b1": 1}}
    assert placed(place(given, there("o", "a1", None))) == {"main": {"a1": 1}}


def test_all_its_pod_sets_are_in_one_domain() -> None:
    given = group(pod_set(3, EXCLUSIVE, name="x", cpu=2), pod_set(1, name="y", cpu=2))
    assert placed(place(given)) == {"x": {"a1": 2, "a2": 1}, "y": {"a2": 1}}
    larger = group(pod_set(4, EXCLUSIVE, name="x", cpu=2), pod_set(1, name="y", cpu=2))
    assert place(larger)["state"] == "Unplaceable"


def test_the_refusal_names_who_is_there() -> None:
    status = place(group(pod_set(1, EXCLUSIVE)), there("one", "a1"), there("two", "b2"))
    assert status["state"] == "Unplaceable"
    assert status["message"].endswith("; taken: a by default/one, b by default/two")


@pytest.mark.parametrize(("own", "other"), [(HOSTNAME, RACK), (RACK, HOSTNAME)])
def test_of_two_levels_the_coarser_one_counts(own: str, other: str) -> None:
    status = place(group(pod_set(1, {"exclusive": own})), there("o", "a1", {"exclusive": other}))
    assert placed(status) == {"main": {"b1": 1}}


@pytest.mark.parametrize(
    "key",
    ["placement.nri/exclusive-topology", "leaderworkerset.sigs.k8s.io/exclusive-topology"],
)
def test_it_may_be_an_annotation(key: str) -> None:
    given = pod_set(1)
    given["template"]["metadata"] = {"annotations": {key: RACK}}
    assert placed(place(group(given), there("o", "a1"))) == {"main": {"b1": 1}}
    other = there("o", "a1", None)
    other["spec"]["podSets"][0]["template"]["metadata"] = {"annotations": {key: RACK}}
    assert placed(place(group(given), other)) == {"main": {"b1": 1}}


def test_a_finer_level_for_all_pod_sets_holds_inside() -> None:
    given = group(pod_set(1, EXCLUSIVE, name="x", cpu=2), pod_set(1, name="y", cpu=2))
    given["spec"]["together"] = {"required": HOSTNAME}
    assert placed(place(given, there("o", "a1"))) == {"x": {"b1": 1}, "y": {"b1": 1}}


def test_lost_pods_stay_in_the_domain_of_the_group() -> None:
    nodes = [*NODES[:3], node("b2", RACK="b", ready=False)]
    assignment = {
        "podSet": "main",
        "levels": [HOSTNAME],
        "domains": [{"values": ["b1"], "count": 1}, {"values": ["b2"], "count": 1}],
    }
    status = {"assignments": [assignment], "unhealthyNodes": ["b2"]}
    given = group(pod_set(2, EXCLUSIVE), status=status)
    found = offline.place({"nodes": nodes}, given, USING)
    assert placed(found) == {"main": {"b1": 2}}


def test_a_group_that_leaves_gives_its_domain_back() -> None:
    """A group of higher priority needs a rack, and both are taken."""
    groups = [there("one", "a1"), there("two", "b2")]
    snapshot = read_snapshot({"nodes": NODES, "groups": groups})
    engine = offline.engine_of(snapshot, read_settings(USING))
    asked = read_group(group(pod_set(1, EXCLUSIVE), priority=1))
    assert len(find_victims(engine, asked) or ()) == 1


def test_a_level_that_there_is_not_is_refused() -> None:
    status = place(group(pod_set(1, {"exclusive": "example.com/row"})))
    assert "example.com/row" in status["message"]


def test_each_replica_of_a_leader_worker_set_has_a_rack() -> None:
    documents = [yaml.safe_load((CONFIGS / "exclusive.yaml").read_text())]
    engine = offline.engine_of(read_snapshot({"nodes": NODES}), read_settings(USING))
    small = documents[0]["spec"]["leaderWorkerTemplate"]["workerTemplate"]["spec"]["containers"][0]
    small["resources"]["requests"] = {"cpu": 1}
    found = [each.status for each in try_groups(engine.fork(), read_groups(documents))]
    racks = [
        {one.values[-1][0] for each in status.assignments for one in each.domains}
        for status in found
    ]
    assert racks == [{"a"}, {"b"}, set()]
    assert found[2].message.endswith("; taken: a by default/model-0, b by default/model-1")


def reserved(*groups: Object) -> tuple[str, ...] | None:
    """The hosts that would be set aside for an exclusive group of two large pods."""
    snapshot = read_snapshot({"nodes": NODES, "groups": groups})
    engine = offline.engine_of(snapshot, read_settings(USING))
    return Reservations(engine).choose(read_group(group(pod_set(2, EXCLUSIVE, cpu=3))))


def test_no_hosts_are_set_aside_in_a_rack_that_another_group_keeps() -> None:
    stays = group(
        pod_set(1, EXCLUSIVE, spec={"restartPolicy": "Always"}),
        name="o",
        status=there("o", "a1")["status"],
    )
    full = there("full", "b1", None)
    full["spec"]["podSets"][0] = pod_set(1, cpu=4)
    assert reserved(stays, full) == ("b1", "b2")
    assert reserved(stays, {**stays, "metadata": {"name": "p"}, **there("p", "b1")}) == (
        "b1",
        "b2",
    )


def test_hosts_in_a_rack_that_is_taken_for_now_come_last() -> None:
    full = there("full", "b1", None)
    full["spec"]["podSets"][0] = pod_set(1, cpu=2)
    assert reserved(full) == ("a1", "a2")
    assert reserved(full, there("o", "a1")) == ("b1", "b2")
