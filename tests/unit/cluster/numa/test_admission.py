"""The admission check numa-fit: a Workload is admitted if its pods fit the zones now."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from nri_policy.cluster.numa.admission import NumaAdmission, WriteActive, WriteCheck
from nri_policy.cluster.numa.extender import Verbs
from nri_policy.cluster.numa.promises import MOST_SECONDS, LiveZones
from nri_policy.cluster.numa.service_spread import ServiceSpread
from nri_policy.cluster.numa.workload_places import WorkloadPlaces
from nri_policy.cluster.objects.node import read_node
from nri_policy.cluster.objects.pod import Pod, read_pod
from nri_policy.cluster.objects.settings import Extender
from nri_policy.cluster.view import Cluster
from nri_policy.cluster.workloads.kueue import (
    KueueWorkload,
    read_check,
    read_flavor,
    read_workload,
)
from nri_policy.cluster.zones.zone import read_zones
from nri_policy.foundation.clock import Clock
from tests.unit.cluster import written as objects
from tests.unit.cluster.kueue_objects import (
    CHECK,
    admission_check,
    check_state,
    flavor,
    guaranteed,
    pod_set,
    workload,
)
from tests.unit.cluster.written import HOSTNAME, Object

ANNOTATION = "kueue.x-k8s.io/workload"


class World:
    """Nodes of two NUMA nodes with 4 CPUs each, which align pods, and a clock."""

    def __init__(self, nodes: int = 2) -> None:
        self.time = 1000.0
        self.cluster = Cluster()
        self.zones = LiveZones(Extender(), self.cluster.view, Clock(now=lambda: self.time))
        self.cluster.follow(self.zones)
        self.admission = NumaAdmission(
            self.zones, Clock(date=datetime(2026, 1, 1, tzinfo=UTC).timestamp)
        )
        self.verbs = Verbs(
            self.zones,
            ServiceSpread(self.cluster.view, Clock(now=lambda: self.time)),
            pod_arrived=self.admission.places.pod_arrived,
        )
        for at in range(nodes):
            self.node(f"n{at}")
        self.admission.set_check(read_check(admission_check(), ""))

    def node(self, name: str, free: tuple[int, int] = (4, 4), **own: Any) -> None:
        node = objects.node(name, cpu=8, **own)
        self.cluster.set_node(read_node(node, ""))
        attributes = [
            {"name": "topologyManagerPolicy", "value": "single-numa-node"},
            {"name": "topologyManagerScope", "value": "pod"},
        ]
        zones = [
            {
                "name": f"node-{number}",
                "type": "Node",
                "resources": [
                    {"name": "cpu", "capacity": cpus, "allocatable": 4, "available": cpus},
                    {"name": "memory", "capacity": "8Gi", "allocatable": "8Gi", "available": "4Gi"},
                ],
            }
            for number, cpus in enumerate(free)
        ]
        document = {"metadata": {"name": name}, "attributes": attributes, "zones": zones}
        self.cluster.set_zones(read_zones(document, ""))

    def put(self, *args: Any, **own: Any) -> None:
        self.admission.set_workload(read_workload(workload(*args, **own), ""))

    def answers(self) -> dict[str, Object]:
        """What is written of our check, by Workload."""
        return {
            each.key[1]: one
            for each in self.admission.step()
            if isinstance(each, WriteCheck)
            for one in each.patch()["status"]["admissionChecks"]
            if one["name"] == CHECK
        }

    def states(self) -> dict[str, str]:
        return {name: answer["state"] for name, answer in self.answers().items()}

    def pod(self, name: str, of: str, cpu: int, node: str = "") -> Pod:
        metadata = {
            "name": name,
            "namespace": "default",
            "annotations": {ANNOTATION: of},
            "labels": {"kueue.x-k8s.io/podset": "main"},
        }
        return read_pod({"metadata": metadata, "spec": guaranteed(cpu, nodeName=node)}, "")

    def room(self, cpu: int) -> int:
        """How many more pods of so many CPUs would find a zone."""
        probe = self.pod("probe", "", cpu)
        request = self.zones.fits.request(probe)
        number = 0
        for node in self.cluster.view.nodes:
            while self.zones.keep(("default", f"probe/{number}"), node, request):
                number += 1
        for at in range(number):
            self.zones.withdraw(("default", f"probe/{at}"))
        return number


def test_pods_that_fit_the_zones_are_admitted_and_their_places_kept() -> None:
    world = World()
    world.put("a", pod_set(3, 3))
    assert world.answers() == {
        "a": {
            "name": CHECK,
            "state": "Ready",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
            "message": "all pods fit the zones of the nodes",
        }
    }
    assert world.room(3) == 1


def test_an_error_of_ours_about_one_workload_stops_no_other(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world = World()
    world.put("a", pod_set(1, 3))
    world.put("b", pod_set(1, 3))
    keeping = WorkloadPlaces.keep

    def keep(self: WorkloadPlaces, workload: KueueWorkload, *args: Any, **options: Any) -> str:
        if workload.name == "a":
            raise ArithmeticError("ours")
        return keeping(self, workload, *args, **options)

    monkeypatch.setattr(WorkloadPlaces, "keep", keep)
    assert world.states() == {"b": "Ready"}
    assert world.admission.errors == 1
    assert "workload-failed workload=default/a" in caplog.text
    assert world.room(3) == 3, "nothing is kept for the other"


def test_pods_that_fit_the_nodes_but_no_zone_now_are_not() -> None:
    """Two nodes have 14 CPUs free, but no zone has four."""
    world = World()
    for name in ("n0", "n1"):
        world.node(name, (3, 3))
    world.put("a", pod_set(2, 4))
    answer = world.answers()["a"]
    assert answer["state"] == "Retry"
    assert "requeueAfterSeconds" not in answer, "else Kueue keeps the quota until then"
    assert answer["message"] == (
        "2 of 2 pods of pod set 'main' find no NUMA zone now: cannot align pod on 2 nodes"
    )
    assert world.room(3) == 4, "nothing is kept"


def test_pods_that_fit_no_zone_even_if_it_is_empty_are_rejected() -> None:
    """Kueue would keep asking, and whoever comes later would wait for it."""
    world = World()
    world.put("a", pod_set(1, 1, "small"), pod_set(1, 5, "large"))
    world.put("b", pod_set(1, 9))
    answers = world.answers()
    assert {name: each["state"] for name, each in answers.items()} == dict.fromkeys(
        "ab", "Rejected"
    )
    assert answers["a"]["message"] == (
        "pods of pod set 'large' fit no NUMA zone, even if it is empty: cannot align pod on 2 nodes"
    )
    assert answers["b"]["message"].endswith('even if it is empty: resource "cpu" on 2 nodes')
    assert world.room(4) == 4, "nothing is kept"


def test_pods_that_may_fit_a_node_that_is_away_or_is_to_come_are_not_rejected() -> None:
    world = World()
    large = objects.node("n2", ready=False, taints=[{"key": "k", "effect": "NoSchedule"}], cpu=9)
    world.cluster.set_node(read_node(large, ""))  # it does not align pods
    world.put("a", pod_set(1, 9))
    world.put("b", pod_set(1, 9, nodeSelector={"kind": "large"}))
    assert world.states() == {"a": "Retry", "b": "Retry"}


def test_kueue_learns_when_to_try_again_once_it_has_taken_the_quota_back() -> None:
    """It evicts at once only where it is told no time, and else reserves again at once."""
    world = World(1)
    evicted: Object = {"conditions": ["Evicted"], "reserved": False}
    world.put("a", pod_set(3, 4), checks=[check_state("Pending", retryCount=1)], **evicted)
    answer = world.answers()["a"]
    assert (answer["state"], answer["requeueAfterSeconds"]) == ("Retry", 15)
    assert answer["message"] == "a pod found no NUMA zone; it is tried again after 15 s"
    world.put("a", pod_set(3, 4), checks=[answer], revision="2", **evicted)
    assert world.states() == {}, "Kueue has not taken note of it"
    world.put("a", pod_set(3, 4), checks=[answer], revision="3", delayed=True, **evicted)
    again = world.answers()["a"]
    assert (again["state"], again["requeueAfterSeconds"]) == ("Pending", 15)
    world.put("a", pod_set(3, 4), checks=[again], revision="4", delayed=True, **evicted)
    assert world.states() == {}, "it is Kueue's turn"
    world.put("a", pod_set(2, 4), checks=[again], revision="5")
    assert world.states() == {"a": "Ready"}


@pytest.mark.parametrize("conditions", [["Evicted", "Finished"], ["Evicted"], []])
def test_who_was_not_refused_by_us_or_is_over_is_not_delayed(conditions: list[str]) -> None:
    world = World(1)
    retries = 0 if conditions == ["Evicted"] else 1
    check = check_state("Pending", retryCount=retries)
    world.put("a", pod_set(3, 4), checks=[check], conditions=conditions, reserved=False)
    assert world.states() == {}


def test_all_pods_or_none() -> None:
    world = World()
    world.put("a", pod_set(5, 3))
    assert world.answers()["a"]["message"].startswith("1 of 5 pods")
    assert world.room(3) == 4


def test_two_workloads_are_not_promised_the_same_zones() -> None:
    world = World()
    world.put("a", pod_set(3, 3), priority=1)
    world.put("b", pod_set(2, 3), priority=2)
    assert world.states() == {"a": "Retry", "b": "Ready"}
    world.put("b", pod_set(2, 3), checks=[check_state("Ready")], conditions=["Finished"])
    world.put("a", pod_set(3, 3), revision="2")
    assert world.states() == {"a": "Ready"}


def test_large_pods_find_their_zones_before_small_ones_break_them_up() -> None:
    world = World(1)
    world.put("a", pod_set(3, 1, "small"), pod_set(1, 4, "large"))
    assert world.states() == {"a": "Ready"}


def test_a_workload_is_tried_again_later_and_later() -> None:
    world = World(1)
    waits = []
    for retries in (1, 2, 4, 30):
        checks = [check_state("Pending", retryCount=retries)]
        revision = str(retries)
        world.put("a", pod_set(3, 4), checks=checks, revision=revision, conditions=["Evicted"])
        waits.append(world.answers()["a"]["requeueAfterSeconds"])
    assert waits == [15, 30, 120, 300]


def test_a_pod_that_asks_takes_over_a_place_of_its_workload_once() -> None:
    """Else the zone that was kept for it would be closed to it."""
    world = World(1)
    world.put("a", pod_set(2, 4))
    assert world.states() == {"a": "Ready"}
    stranger = world.pod("other", "", 4)
    assert not count_fitting(world, stranger)
    own = world.pod("a-0", "a", 4)
    assert count_fitting(world, own)
    assert count_fitting(world, own), "it asks again"
    assert world.room(4) == 1
    world.zones.set_pod(bound := world.pod("a-0", "a", 4, "n0"))
    world.admission.places.set_pod(bound)
    assert world.room(4) == 0, "the other place is still kept"


def count_fitting(world: World, pod: Pod) -> bool:
    return bool(_names(world, pod))


def _names(world: World, pod: Pod) -> list[str]:
    spec = guaranteed(pod.spec.containers[0].requests["cpu"] // 1000)
    metadata = {
        "name": pod.name,
        "namespace": pod.namespace,
        "annotations": pod.annotations,
        "labels": pod.labels,
    }
    body = {"Pod": {"metadata": metadata, "spec": spec}, "NodeNames": [*world.cluster.view.nodes]}
    found = json.loads(world.verbs.filter(json.dumps(body).encode()))["NodeNames"]
    assert isinstance(found, list)
    return found


@pytest.mark.parametrize(
    "changed",
    [
        {"reserved": False},
        {"conditions": ["Evicted"]},
        {"conditions": ["Finished"]},
        {"active": False},
        {"checks": [check_state("Retry")]},
        {"checks": []},
    ],
)
def test_places_are_given_back_when_a_workload_has_no_use_for_them(changed: Any) -> None:
    world = World(1)
    world.put("a", pod_set(2, 4))
    assert world.states() == {"a": "Ready"}
    assert world.room(4) == 0
    world.put("a", pod_set(2, 4), **{"checks": [check_state("Ready")], "revision": "2", **changed})
    assert world.states() == {}
    assert world.room(4) == 2


def test_they_are_given_back_when_it_goes_and_after_a_while() -> None:
    world = World(1)
    for name in ("a", "b"):
        world.put(name, pod_set(1, 4))
        assert world.states() == {name: "Ready"}
    world.admission.remove_workload(("default", "a"))
    assert world.room(4) == 1
    world.time += MOST_SECONDS
    world.admission.step()
    assert world.room(4) == 2


def test_another_replica_keeps_places_for_pods_that_have_not_come() -> None:
    world = World(1)
    world.zones.set_pod(bound := world.pod("a-0", "a", 4, "n0"))
    world.admission.places.set_pod(bound)
    world.put("a", pod_set(2, 4), checks=[check_state("Ready")])
    assert world.states() == {}
    assert world.room(4) == 0


def test_flavors_say_where_pods_go() -> None:
    world = World(2)
    world.node("gpu", labels=[("pool", "gpu")], taints=[{"key": "gpu", "effect": "NoSchedule"}])
    tolerations = [{"key": "gpu", "operator": "Exists"}]
    world.put("a", pod_set(3, 4), flavors=["gpu"])
    assert world.states() == {}, "the flavor is not known yet"
    world.admission.set_flavor(read_flavor(flavor("gpu", {"pool": "gpu"}), ""))
    answer = world.answers()["a"]
    assert answer["state"] == "Retry"
    assert 'nodeSelector on 2 nodes, taint "gpu:NoSchedule" on 1 node' in answer["message"]
    world.admission.set_flavor(read_flavor(flavor("gpu", {"pool": "gpu"}, tolerations), ""))
    world.put("a", pod_set(2, 4), flavors=["gpu"], revision="2")
    assert world.states() == {"a": "Ready"}
    world.put("b", pod_set(1, 4), flavors=["gpu"])
    assert world.states() == {"b": "Retry"}


def test_pods_fit_where_kueue_has_assigned_them_or_not_at_all() -> None:
    def topology(*counts: int) -> Object:
        names = [f"n{at}" for at in range(len(counts))]
        return {
            "levels": [HOSTNAME],
            "slices": [
                {
                    "domainCount": len(counts),
                    "valuesPerLevel": [{"individual": {"roots": names}}],
                    "podCounts": {"individual": [*counts]},
                }
            ],
        }

    world = World(2)
    world.put("a", pod_set(3, 4), topology=topology(3, 0))
    assert world.states() == {"a": "Retry"}
    world.put("b", pod_set(3, 4), topology=topology(2, 1))
    assert world.states() == {"b": "Ready"}
    assert world.room(4) == 1


def test_a_node_that_does_not_align_pods_takes_what_it_could_hold() -> None:
    world = World(0)
    world.cluster.set_node(read_node(objects.node("plain", cpu=8), ""))
    world.put("a", pod_set(2, 4))
    assert world.states() == {"a": "Ready"}
    world.put("b", pod_set(3, 4))
    assert world.states() == {"b": "Retry"}


def test_checks_of_other_controllers_are_left_alone() -> None:
    world = World()
    world.admission.set_check(read_check(admission_check("theirs", "somebody"), ""))
    checks = [check_state("Pending", "theirs", extra=1), check_state("Pending")]
    world.put("a", pod_set(1, 1), checks=checks)
    (write,) = (each for each in world.admission.step() if isinstance(each, WriteCheck))
    theirs, ours = write.patch()["status"]["admissionChecks"]
    assert (theirs, ours["state"]) == (checks[0], "Ready")
    world.put("b", pod_set(1, 1), checks=checks[:1])
    assert world.states() == {}


def test_an_answer_is_written_once_and_again_when_it_was_refused() -> None:
    world = World()
    world.put("a", pod_set(1, 1))
    write = next(each for each in world.admission.step() if isinstance(each, WriteCheck))
    assert write.patch()["metadata"] == {"resourceVersion": "1"}
    world.admission.begin()
    assert world.states() == {}
    world.admission.note_failure(write)
    assert world.states() == {"a": "Ready"}


def test_a_check_is_active_unless_it_has_parameters() -> None:
    world = World()
    (write,) = (each for each in world.admission.step() if isinstance(each, WriteActive))
    (condition,) = write.patch()["status"]["conditions"]
    assert (condition["type"], condition["status"]) == ("Active", "True")
    assert not [*world.admission.step()]
    stored = admission_check() | {"status": {"conditions": [condition]}}
    world.admission.set_check(read_check(stored, ""))
    assert not [*world.admission.step()]
    given = admission_check(parameters={"apiGroup": "x", "kind": "Y", "name": "z"})
    given["metadata"] |= {"generation": 2, "resourceVersion": "2"}
    world.admission.set_check(read_check(given, ""))
    (write,) = (each for each in world.admission.step() if isinstance(each, WriteActive))
    (condition,) = write.patch()["status"]["conditions"]
    assert (condition["status"], condition["message"]) == ("False", "it takes no parameters")
    world.put("a", pod_set(1, 1))
    assert world.states() == {}
