"""Containers with properties that expressions ask for."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from nri_policy.manifests.quality_of_service import QoS
from nri_policy.workload.pod import Container, ContainerState, Pod, Resources


def member(
    full_name: str,
    *,
    number: int = 0,
    qos: QoS = QoS.BURSTABLE,
    labels: Mapping[str, str] | None = None,
    pod_labels: Mapping[str, str] | None = None,
) -> Container:
    """Return the container `namespace/pod/name`, with *number* in its ids."""
    namespace, pod, name = full_name.split("/")
    return Container(
        id=f"ctr-{number}",
        pod=Pod(
            id=f"pod-{pod}-{number}",
            uid=f"uid-{pod}-{number}",
            name=pod,
            namespace=namespace,
            qos=qos,
            labels=pod_labels or {},
            annotations={},
        ),
        name=name,
        state=ContainerState.RUNNING,
        created=number,
        labels=labels or {},
        resources=Resources(),
    )


def annotated(container: Container, text: str, *, anti: bool = False) -> Container:
    """Return *container* with an affinity annotation, or an anti-affinity one."""
    key = f"resource-policy.nri.io/{'anti-' if anti else ''}affinity"
    annotations = {**container.pod.annotations, key: text}
    return replace(container, pod=replace(container.pod, annotations=annotations))
