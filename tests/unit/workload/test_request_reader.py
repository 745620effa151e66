"""Cached requests: equal containers share one."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from nri_policy.engine.state.layout import Layout, layout_of
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.manifests.quality_of_service import QoS
from nri_policy.workload import request_reader
from nri_policy.workload.annotation_values import HintKind
from nri_policy.workload.hints import Hint
from nri_policy.workload.pod import Container
from nri_policy.workload.requirements import Requirements
from tests.support import nodes


def layout(**spec: object) -> Layout:
    return layout_of(nodes.machine(), nodes.settings(**spec))


def variants() -> dict[str, Container]:
    """Return containers of which each differs from the first in one thing that counts."""
    first = nodes.container(3000, name="main")
    more = replace(first.resources, cpu_quota=400_000)  # as another plugin may set it
    changed = replace(first, resources=more, pod=replace(first.pod, amounts=first.resources))
    near = Hint(source="disk", kind=HintKind.MOUNTS, cpus=CPUSet([1]), nodes=CPUSet())
    return {
        "first": first,
        "amounts": replace(first, resources=nodes.resources(1000, 1000)),
        "namespace": replace(first, pod=replace(first.pod, namespace="kube-system")),
        "qos": replace(first, pod=replace(first.pod, qos=QoS.BURSTABLE)),
        "pod level": replace(
            first, pod_level=True, pod=replace(first.pod, amounts=first.resources)
        ),
        "pod's amounts": replace(first, pod_level=True, pod=replace(first.pod, amounts=None)),
        "requirements": replace(first, requirements=Requirements(cpu_request=700)),
        "another's quota": changed,
        "a quota of its own, after a resize": replace(changed, resized=True),
        "hints": replace(first, hints=(near,)),
        "annotations": replace(
            first,
            pod=replace(
                first.pod, annotations={"prefer-shared-cpus.resource-policy.nri.io/pod": "true"}
            ),
        ),
    }


def test_what_is_kept_of_one_container_is_not_taken_for_another() -> None:
    shared = layout()
    for _ in range(2):
        for name, container in variants().items():
            assert shared.requests.read(container) == layout().requests.read(container), name
    found = {str(shared.requests.read(each)) for each in variants().values()}
    assert len(found) == len(variants()) - 1, "each counts, but without amounts of the pod"


def test_containers_that_are_alike_have_one_request() -> None:
    at = layout()
    one, other = nodes.container(2500, name="main"), nodes.container(2500, name="side")
    other = replace(
        other, labels={"a": "b"}, pod=replace(other.pod, annotations={"example.com/at": "noon"})
    )
    assert one.pod.name != other.pod.name
    assert at.requests.read(one)[0] is at.requests.read(other)[0]


def test_affinities_that_settings_imply_are_each_containers_own() -> None:
    at = layout(colocatePods=True)
    one, other = nodes.container(2500), nodes.container(2500)
    scopes = [at.requests.read(each)[0].steering.affinities for each in (one, other)]
    assert scopes[0] != scopes[1]


def test_no_more_than_so_many_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_reader, "MAX_SHAPES", 3)
    at = layout()
    for milli in range(100, 1100, 100):
        request, _ = at.requests.read(nodes.container(milli))
        assert request.milli == milli
        assert len(at.requests._known) <= 3
