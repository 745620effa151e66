"""Which pods are in which group, as Jobs and PodGroups come and go."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from nri_policy.cluster.groups.members import Members
from nri_policy.cluster.groups.record import IDLE, NO_FAILURE
from nri_policy.cluster.groups.ungating import Ungating
from nri_policy.cluster.groups.writes import DeletePod, OpenGate
from nri_policy.cluster.objects.metadata import OwnerReference
from nri_policy.cluster.objects.pod import Pod, PodSpec, Template
from nri_policy.cluster.requests.group import PodSet
from nri_policy.cluster.workloads.membership import Job, PodGroup
from nri_policy.cluster.workloads.replica_kinds import ReplicaOwner
from nri_policy.foundation.clock import Clock

WORKER = Template(spec=PodSpec())
GANG = PodGroup("default", "g", least=2, uid="u")

A = ("default", "a")


def pod(name: str) -> Pod:
    return Pod(namespace="default", name=name, spec=PodSpec(), pod_group="g")


def test_a_pod_waits_for_its_pod_group_also_after_that_went() -> None:
    members = Members(Clock(now=lambda: 0.0))
    assert members.set_pod(pod("a")).group is None
    assert members.set_pod_group(GANG) == [pod("a")]
    assert members.set_pod(pod("a")).group == ("default", "podgroup-g")
    members.remove_pod_group(("default", "g"))
    assert members.set_pod(pod("b")).group is None


def test_pods_that_went_are_not_taken_in_again_with_their_pod_group() -> None:
    members = Members(Clock(now=lambda: 0.0))
    members.set_pod(pod("a"))
    members.set_pod(pod("b"))
    members.remove_pod(("default", "a"))
    assert members.set_pod_group(GANG) == [pod("b")]


def test_objects_that_come_again_unchanged_are_no_news_for_pods() -> None:
    members = Members(Clock(now=lambda: 0.0))
    members.set_pod(pod("a"))
    owner, workers = ReplicaOwner("RayCluster", "default", "r", {"head": 1}), PodSet("w", 1, WORKER)
    assert members.set_pod_group(GANG)
    assert not members.set_pod_group(GANG)
    ray = OwnerReference(kind=owner.kind, name="r", uid="u", api_version="ray.io/v1")
    members.set_pod(replace(pod("b"), pod_group="", owners=(replace(ray, controller=True),)))
    assert members.set_owner(owner)
    assert not members.set_owner(owner)
    for _ in range(2):
        assert not members.set_led(("default", "lws"), workers)
    assert [*members.leader_worker_sets()] == [("default", "lws")]


def test_a_job_that_is_a_group_of_its_own_counts_in_its_jobset_until_it_went() -> None:
    members = Members(Clock(now=lambda: 0.0))
    keys = [("default", f"j-{number}") for number in range(2)]
    for namespace, name in keys:
        members.set_job(Job(namespace, name, 1, jobset="s", exclusive=True, uid=name))
    for key in keys:
        assert members.remove_job(key)
    assert not members._exclusive_jobs
    assert members.remove_job(keys[0]) is None


def opening(of: Pod) -> OpenGate:
    return OpenGate(Ungating(of, {}), "podgroup-g", "gate")


def test_news_of_a_pod_settle_its_write_and_end_its_pause() -> None:
    members = Members(Clock(now=lambda: 0.0))
    members.set_pod(pod("a"))
    pause = NO_FAILURE.after_failure(0.0, "why")
    members.update(A, write=opening(pod("a")), unanswered=True, back_off=pause)
    assert members.opening == members.unanswered == {("default", "podgroup-g"): {A: None}}
    members.set_pod(replace(pod("a"), priority=1))
    assert members.unanswered, "it is of the revision that the write is based on"
    members.set_pod(replace(pod("a"), revision="2"))
    assert members.state(A) == IDLE
    assert not members.opening | members.unanswered


def test_a_pod_that_leaves_its_group_is_no_more_elsewhere_than_its_place() -> None:
    members = Members(Clock(now=lambda: 0.0))
    members.set_pod_group(GANG)
    members.set_pod(pod("a"))
    members.update(A, elsewhere=True)
    members.set_pod(pod("a"))
    assert members.elsewhere == {("default", "podgroup-g"): {A: None}}
    members.remove_pod_group(("default", "g"))
    members.set_pod(pod("a"))
    assert not members.elsewhere


def test_what_is_wrong_with_a_pod_is_news_once() -> None:
    members = Members(Clock(now=lambda: 0.0))
    assert not members.say(A, "of a pod that is not there")
    members.set_pod(pod("a"))
    assert members.say(A, "no label")
    assert not members.say(A, "no label")
    members.remove_pod(A)
    members.set_pod(pod("a"))
    assert members.say(A, "no label")


@pytest.mark.parametrize(
    "changed",
    [
        {"unanswered": True},
        {"unanswered": True, "write": DeletePod(pod("a"), "g", "", "")},
        {"elsewhere": True},
    ],
)
def test_a_record_that_contradicts_itself_is_not_stored(changed: dict[str, Any]) -> None:
    members = Members(Clock(now=lambda: 0.0))
    members.set_pod(pod("a"))
    with pytest.raises(AssertionError):
        members.update(A, **changed)
