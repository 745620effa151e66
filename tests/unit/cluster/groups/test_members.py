"""Which pods are in which group, as Jobs and PodGroups come and go."""

from __future__ import annotations

from nri_policy.cluster.groups.members import Members
from nri_policy.cluster.objects.membership import PodGroup
from nri_policy.cluster.objects.pod import Pod, PodSpec

GANG = PodGroup("default", "g", least=2, uid="u")


def pod(name: str) -> Pod:
    return Pod(namespace="default", name=name, spec=PodSpec(), pod_group="g")


def test_a_pod_waits_for_its_pod_group_also_after_that_went() -> None:
    members = Members()
    assert members.set_pod(pod("a")).group is None
    assert members.set_pod_group(GANG) == [pod("a")]
    assert members.set_pod(pod("a")).group == ("default", "podgroup-g")
    members.remove_pod_group(("default", "g"))
    assert members.set_pod(pod("b")).group is None


def test_pods_that_went_are_not_taken_in_again_with_their_pod_group() -> None:
    members = Members()
    members.set_pod(pod("a"))
    members.set_pod(pod("b"))
    members.remove_pod(("default", "a"))
    assert members.set_pod_group(GANG) == [pod("b")]
