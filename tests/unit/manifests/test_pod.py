from __future__ import annotations

from typing import Any

import pytest

from nri_policy.manifests.pod import read_pod
from nri_policy.manifests.quality_of_service import QoS
from nri_policy.manifests.resources import ManifestError, ResourceChange, read_part


def manifest(*containers: dict[str, Any], **spec: Any) -> dict[str, Any]:
    listed = [{"name": f"c{i}"} | container for i, container in enumerate(containers)]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "pod0"},
        "spec": {"containers": listed} | spec,
    }


def resources(requests: Any = None, limits: Any = None) -> dict[str, Any]:
    return {"resources": {"requests": requests or {}, "limits": limits or {}}}


BOTH = {"cpu": 1, "memory": "1Gi"}


@pytest.mark.parametrize(
    ("containers", "qos"),
    [
        ([{}], QoS.BEST_EFFORT),
        ([resources({"cpu": 0})], QoS.BEST_EFFORT),
        ([resources({"example.com/gpu": 1}, {"example.com/gpu": 1})], QoS.BEST_EFFORT),
        ([resources(BOTH, BOTH)], QoS.GUARANTEED),
        ([resources(None, BOTH)], QoS.GUARANTEED),
        ([resources({"cpu": "1000m"}, BOTH)], QoS.GUARANTEED),
        ([resources({"cpu": "500m"}, BOTH)], QoS.BURSTABLE),
        ([resources({"cpu": 0}, BOTH)], QoS.BURSTABLE),
        ([resources(BOTH)], QoS.BURSTABLE),
        ([resources(None, {"cpu": 1})], QoS.BURSTABLE),
        ([resources(BOTH, BOTH), {}], QoS.BURSTABLE),
        ([resources(BOTH, BOTH), resources(None, BOTH)], QoS.GUARANTEED),
    ],
)
def test_the_quality_of_service_follows_kubernetes(
    containers: list[dict[str, Any]], qos: QoS
) -> None:
    assert read_pod(manifest(*containers)).qos is qos


def test_init_containers_count_for_the_quality_of_service() -> None:
    pod = manifest(resources(BOTH, BOTH), initContainers=[{"name": "init"}])
    assert read_pod(pod).qos is QoS.BURSTABLE


@pytest.mark.parametrize(
    ("whole", "containers", "requests", "qos"),
    [
        ({"limits": BOTH}, [{}, {}], {"cpu": 1000, "memory": 1 << 30}, QoS.GUARANTEED),
        ({"requests": BOTH}, [{}], {"cpu": 1000, "memory": 1 << 30}, QoS.BURSTABLE),
        ({"limits": {"cpu": 2}}, [{}], {"cpu": 2000}, QoS.BURSTABLE),
        (  # what containers request comes before what the pod is limited to
            {"limits": BOTH},
            [resources({"cpu": "500m"}), resources(None, {"cpu": "100m"})],
            {"cpu": 600, "memory": 1 << 30},
            QoS.BURSTABLE,
        ),
        (  # without limits nothing is defaulted
            {"requests": {"memory": "1Gi"}},
            [resources({"cpu": 1})],
            {"memory": 1 << 30},
            QoS.BURSTABLE,
        ),
    ],
)
def test_what_a_pod_has_as_a_whole_is_defaulted_and_makes_its_quality_of_service(
    whole: Any, containers: Any, requests: dict[str, int], qos: QoS
) -> None:
    pod = read_pod(manifest(*containers, resources=whole))
    assert pod.spec.resources is not None
    assert pod.spec.resources.requests == requests
    assert pod.qos is qos


def test_a_container_says_itself_when_it_is_started_again() -> None:
    rules = [{"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}}]
    always = {"restartPolicy": "Always"}
    own = {"restartPolicy": "Never", "restartPolicyRules": rules}
    spec = read_pod(manifest(always, own, initContainers=[{"name": "i"} | always])).spec
    assert [each.sidecar for each in spec.every_container] == [True, False, False]


def test_only_init_containers_that_are_no_sidecars_run_to_an_end() -> None:
    inits = [{"name": "first"}, {"name": "side", "restartPolicy": "Always"}]
    pod = read_pod(manifest({"name": "main"}, initContainers=inits))
    assert [pod.runs_to_end(name) for name in ("first", "side", "main")] == [True, False, False]


def test_requests_default_to_limits() -> None:
    container = read_pod(manifest(resources({"memory": "1Gi"}, {"cpu": "1.5", "memory": "2Gi"})))
    assert container.container("c0").resources.requests == {"cpu": 1500, "memory": 1 << 30}


def test_a_pod_without_a_namespace_is_in_default() -> None:
    assert read_pod(manifest({})).key == "default/pod0"


def test_fields_that_do_not_matter_are_skipped() -> None:
    assert read_pod(manifest({"livenessProbe": {"exec": 3}}, nodeName=7)).key == "default/pod0"


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (3, "a Pod manifest is a mapping, not 3"),
        (manifest({}) | {"kind": "Deployment"}, "kind: 'Deployment' is not Pod"),
        (manifest({}) | {"apiVersion": "v2"}, "apiVersion: 'v2' is not v1"),
        (manifest({}) | {"metadata": {}}, "metadata: name is missing"),
        (
            manifest({}) | {"metadata": {"name": "A_b"}},
            "pod 'A_b': metadata.name: 'A_b' is not a name of lower-case letters, digits, '.' and",
        ),
        (
            manifest({}) | {"metadata": {"generateName": "x-"}},
            "metadata: name is missing; generateName 'x-' makes none here",
        ),
        (
            manifest({"name": "Main"}),
            "spec.containers[0].name: 'Main' is not a name of lower-case letters, digits and '-',",
        ),
        (
            manifest(resources({"cpu": "4 cores", "memory": "1Gb"})),
            "cpu: '4 cores' is not a CPU quantity, such as 2, 1.5 or 750m; memory: '1Gb' is not",
        ),
        (manifest({}) | {"spec": {}}, "spec: containers is missing"),
        (manifest(), "spec.containers: "),
        (
            manifest({"name": 3}),
            "pod 'pod0': spec.containers[0].name: expected a string, got a whole number",
        ),
        (manifest({}, {"name": "c0"}), "spec: two containers are named 'c0'"),
        (
            manifest(resources({"cpu": "much"})),
            "spec.containers[0].resources.requests: cpu: 'much' is not a CPU quantity",
        ),
        (manifest(resources({"memory": True})), "requests: memory: true is not a memory quantity"),
        (manifest(resources([1])), "requests: a list (1 entry) is not a map"),
        (
            manifest({}, resources({"cpu": 2}, {"cpu": 1})),
            "spec.containers[1].resources: the request of cpu is more than its limit",
        ),
        (
            manifest(resources({"hugepages-2Mi": "2Mi"}, {"hugepages-2Mi": "4Mi"})),
            "request and limit of hugepages-2Mi must be the same",
        ),
        (manifest(resources({"hugepages-2Mi": "2Mi"})), "hugepages-2Mi needs a limit"),
        (
            manifest({"volumeMounts": [{"name": "data", "mountPath": "/data"}]}),
            "spec: container 'c0' mounts 'data', which is not in spec.volumes",
        ),
        (
            manifest({"resources": {"claims": [{"name": "gpu"}]}}),
            "spec: container 'c0' uses the claim 'gpu', which is not in spec.resourceClaims",
        ),
        (
            manifest({}, resourceClaims=[{"name": "gpu"}]),
            "claim 'gpu' needs resourceClaimName or resourceClaimTemplateName",
        ),
        (manifest({"restartPolicy": "Sometimes"}), "Invalid enum value 'Sometimes'"),
        (manifest({"restartPolicyRules": [{"action": "Restart"}]}), "restartPolicyRules need a"),
        (manifest({}, resources={"limits": {"example.com/gpu": 1}}), "a pod as a whole has cpu"),
        (
            manifest(resources({"cpu": 3}), resources={"requests": {"cpu": 2}}),
            "the containers request more cpu than the pod",
        ),
        (
            manifest({}, resources={"requests": {"cpu": 3}, "limits": {"cpu": 2}}),
            "the request of cpu is more than its limit",
        ),
        (
            manifest(resources(None, {"cpu": 3}), resources={"limits": {"cpu": 2}}),
            "the request of cpu is more than its limit",
        ),
        (
            manifest(resources({"cpu": 1}, {"cpu": 3}), resources={"limits": {"cpu": 2}}),
            "container 'c0' has a higher limit of cpu than the pod",
        ),
        (
            manifest({}) | {"metadata": {"name": "pod0", "annotations": {"yes": True}}},
            "metadata.annotations: yes: true is not a string; put it in quotes",
        ),
    ],
)
def test_an_error_names_the_field(broken: Any, message: str) -> None:
    with pytest.raises(ManifestError) as caught:
        read_pod(broken)
    assert message in str(caught.value)


def part(requests: Any = None, limits: Any = None) -> ResourceChange:
    return read_part(resources(requests, limits)["resources"], ResourceChange)


def test_a_resize_changes_what_it_names() -> None:
    pod = read_pod(manifest(resources(BOTH, BOTH), resources(BOTH, BOTH)))
    resized = pod.resized("c1", part({"cpu": 3}, {"cpu": 3}))
    assert resized.container("c1").resources.limits == {"cpu": 3000, "memory": 1 << 30}
    assert resized.container("c0") == pod.container("c0")
    assert pod.container("c1").resources.limits["cpu"] == 1000


def test_a_resize_leaves_the_claims() -> None:
    used = resources(BOTH, BOTH)
    used["resources"]["claims"] = [{"name": "gpu"}]
    pod = read_pod(manifest(used, resourceClaims=[{"name": "gpu", "resourceClaimName": "x"}]))
    resized = pod.resized("c0", part({"cpu": 3}, {"cpu": 3})).container("c0").resources
    assert [each.name for each in resized.claims] == ["gpu"]


def test_a_resize_of_a_limit_leaves_the_request() -> None:
    pod = read_pod(manifest(resources({"cpu": 1}, {"cpu": 2})))
    resized = pod.resized("c0", part(None, {"cpu": 4})).container("c0").resources
    assert (resized.requests, resized.limits) == ({"cpu": 1000}, {"cpu": 4000})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (part({"cpu": 9}), "container c0: the request of cpu is more than its limit"),
        (part({"cpu": "500m"}), "must leave the pod Guaranteed, this one would make it Burstable"),
    ],
)
def test_a_resize_that_the_api_server_refuses_is_refused(
    change: ResourceChange, message: str
) -> None:
    with pytest.raises(ManifestError) as caught:
        read_pod(manifest(resources(BOTH, BOTH))).resized("c0", change)
    assert message in str(caught.value)
