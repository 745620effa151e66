"""How many pods of a group nobody makes any more."""

from __future__ import annotations

from nri_policy.cluster.groups.assembly import Member
from nri_policy.cluster.groups.place_claims import count_spared
from nri_policy.cluster.objects.metadata import OwnerReference
from nri_policy.cluster.objects.pod import Pod, PodSpec
from nri_policy.cluster.workloads.membership import Job, Membership


def member(name: str, phase: str, job: str = "") -> Member:
    owners = (OwnerReference(kind="Job", name=job, controller=True),) if job else ()
    pod = Pod(namespace="default", name=name, spec=PodSpec(), phase=phase, owners=owners)
    return Member(pod, Membership(("default", "g"), 4))


def test_a_job_spares_what_its_completions_do_not_need_and_others_what_succeeded() -> None:
    job = Job("default", "j", pods=2, completions=4)
    of_job = [member(f"j-{at}", "Succeeded", "j") for at in range(3)]
    others = [member("a", "Succeeded"), member("b", "Failed"), member("c", "Running")]
    assert count_spared(of_job[:2], {("default", "j"): job}.get) == 0
    assert count_spared(of_job, {("default", "j"): job}.get) == 1
    assert count_spared([*of_job, *others], {("default", "j"): job}.get) == 2
    assert count_spared([*of_job, *others], lambda _: None) == 4
