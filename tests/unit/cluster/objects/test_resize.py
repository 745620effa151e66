"""What counts of a pod while it is resized in place."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from nri_policy.cluster.objects.document import DocumentError
from nri_policy.cluster.objects.pod import Pod, read_pod, template_of
from nri_policy.cluster.zones.numa_request import GUARANTEED, qos_class

Object = dict[str, Any]
PENDING = {"type": "PodResizePending", "status": "True", "reason": "Deferred"}
INFEASIBLE = {**PENDING, "reason": "Infeasible"}
IN_PROGRESS = {"type": "PodResizeInProgress", "status": "True"}
READY = {"type": "Ready", "status": "True"}


def asks(name: str, cpu: str) -> Object:
    amounts = {"cpu": cpu, "memory": "1Gi"}
    return {"name": name, "resources": {"requests": amounts, "limits": amounts}}


def has(name: str, allocated: str = "", running: str = "") -> Object:
    """The status of a container."""
    found: Object = {"name": name}
    if allocated:
        found["allocatedResources"] = {"cpu": allocated, "memory": "1Gi"}
    if running:
        found["resources"] = {"requests": {"cpu": running, "memory": "1Gi"}}
    return found


def made(*conditions: Object, status: Object, generation: int = 0, **spec: Any) -> Pod:
    """Return a pod whose container `c` asks for 4 CPUs."""
    value = {
        "metadata": {"name": "p", "generation": generation},
        "spec": {"nodeName": "n", "containers": [asks("c", "4")], **spec},
        "status": {"phase": "Running", "conditions": [READY, *conditions], **status},
    }
    found = read_pod(value, "")
    assert read_pod(msgspec.Raw(json.dumps(value).encode()), "") == found
    return found


def cpus(pod: Pod) -> int:
    return pod.spec.effective()["cpu"] // 1000


@pytest.mark.parametrize(
    ("condition", "allocated", "running", "counted"),
    [
        (PENDING, "2", "2", 4),  # grows later
        (INFEASIBLE, "2", "2", 2),  # never grows
        (INFEASIBLE, "2", "6", 6),  # an earlier shrink is under way
        (INFEASIBLE, "2", "", 2),
        (INFEASIBLE, "", "", 4),  # of an older kubelet
        (IN_PROGRESS, "4", "2", 4),  # grows
        (IN_PROGRESS, "4", "6", 6),  # shrinks
        (PENDING, "6", "6", 6),
    ],
)
def test_the_larger_amount_counts_during_a_resize(
    condition: Object, allocated: str, running: str, counted: int
) -> None:
    pod = made(condition, status={"containerStatuses": [has("c", allocated, running)]})
    assert cpus(pod) == counted


def test_an_infeasible_resize_counts_for_a_sidecar_and_its_pod() -> None:
    sidecar = {**asks("s", "8"), "restartPolicy": "Always"}
    status = {"containerStatuses": [has("c", "4", "4")], "initContainerStatuses": [has("s", "1")]}
    pod = made(INFEASIBLE, status=status, initContainers=[sidecar])
    assert cpus(pod) == 5


def test_amounts_of_the_pod_itself_count_while_they_are_resized() -> None:
    own = {"requests": {"cpu": "6"}}
    pod = made(IN_PROGRESS, status={"allocatedResources": {"cpu": "8"}}, resources=own)
    assert cpus(pod) == 8
    assert cpus(made(INFEASIBLE, status={"resources": {"requests": {"cpu": "5"}}})) == 4
    assert cpus(made(INFEASIBLE, status={"allocatedResources": {"cpu": "5"}}, resources=own)) == 5


@pytest.mark.parametrize(("observed", "counted"), [(1, 6), (2, 4), (0, 4)])
def test_a_shrink_that_the_kubelet_has_not_seen_frees_nothing(observed: int, counted: int) -> None:
    """It has set no condition yet; without the difference the status is not looked at."""
    status = {"observedGeneration": observed, "containerStatuses": [has("c", "6", "6")]}
    assert cpus(made(status=status, generation=2)) == counted


def test_a_resize_keeps_the_qos_class_and_the_template() -> None:
    status = {"containerStatuses": [has("c", "4", "6")]}
    pod, still = made(IN_PROGRESS, status=status), made(status={})
    assert qos_class(pod.spec) == qos_class(still.spec) == GUARANTEED
    assert template_of(pod) == template_of(still)
    assert pod.written is still.spec


def test_a_pod_whose_status_agrees_is_not_resized() -> None:
    pod = made(IN_PROGRESS, status={"containerStatuses": [has("c", "4", "4")]})
    assert pod.resized is None
    assert pod.spec is made(status={}).spec


def test_amounts_that_are_none_are_refused() -> None:
    with pytest.raises(DocumentError, match="status"):
        made(IN_PROGRESS, status={"containerStatuses": [has("c", "many")]})
