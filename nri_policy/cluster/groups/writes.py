"""What the controller of placement groups wants written: values, carried out by others.

Each write carries the revision that it is based on: the API server refuses it after another
change, and repeating it is safe.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from nri_policy.cluster.groups.ungating import Ungating
from nri_policy.cluster.objects.document import CPU, Amounts, Object
from nri_policy.cluster.objects.metadata import Key, OwnerReference
from nri_policy.cluster.objects.pod import Container, Pod, PodSpec
from nri_policy.cluster.requests.annotations import ZONE_ANNOTATION
from nri_policy.cluster.requests.group import (
    API_VERSION,
    GROUP_LABEL,
    JOBSET_UID,
    KIND,
    MADE,
    PlacementGroup,
    PodSet,
    write_status,
)

NODE_FAILED = "NodeFailed"  # reason of what happens to a group's pods


class CreateGroup(Struct, frozen=True):
    """A PlacementGroup that is not there yet."""

    group: PlacementGroup
    owners: tuple[OwnerReference, ...]

    def object(self) -> Object:
        """Return the object to create."""
        owners = [
            {"apiVersion": each.api_version, "kind": each.kind, "name": each.name, "uid": each.uid}
            for each in self.owners
        ]
        of_job_set = {JOBSET_UID: self.group.job_set} if self.group.job_set else {}
        return {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": {
                "namespace": self.group.namespace,
                "name": self.group.name,
                "labels": dict([MADE]) | of_job_set,
                "ownerReferences": owners,
            },
            "spec": _spec(self.group),
        }


class WriteSpec(Struct, frozen=True):
    """The `spec` of a PlacementGroup as it was at *revision*: its priority, and its pod sets."""

    group: PlacementGroup
    revision: str
    resized: bool = False  # False: write the priority only

    def patch(self) -> Object:
        """Return the merge patch of the object."""
        spec: Object = {"priority": self.group.priority}
        if self.resized:
            spec = {"together": None, **_spec(self.group)}
        return {"metadata": {"resourceVersion": self.revision}, "spec": spec}


class WriteStatus(Struct, frozen=True):
    """The status of a PlacementGroup as it was at *revision*."""

    group: PlacementGroup
    revision: str
    promised: bool = False  # whether its places count from now on, not once they are seen

    @property
    def key(self) -> Key:
        """The group's namespace and name."""
        return self.group.key

    def patch(self) -> Object:
        """Return the merge patch of its `status`."""
        metadata = {"resourceVersion": self.revision}
        return {"metadata": metadata, "status": write_status(self.group)}


class OpenGate(Struct, frozen=True):
    """The removal of a pod's gate, with its place."""

    opening: Ungating
    group: str
    gate: str

    def patch(self) -> Object:
        """Return the merge patch of the pod: selector, zone, and the gate gone."""
        pod, opening = self.opening.pod, self.opening
        annotations = {GROUP_LABEL: self.group}
        if opening.zone:
            annotations[ZONE_ANNOTATION] = opening.zone
        gates = [{"name": each} for each in pod.gates if each != self.gate]
        return {
            "metadata": _as_seen(pod) | {"annotations": annotations},
            "spec": {"schedulingGates": gates or None, "nodeSelector": opening.selector},
        }


class _EndPod(Struct, frozen=True):
    """A pod must end, so that its owner creates another."""

    pod: Pod
    group: str
    reason: str
    message: str


class FailPod(_EndPod, frozen=True):
    """A pod that was let go to where it can no longer run."""

    def patch(self) -> Object:
        """Return the patch of the pod's `status`, of which nothing was written by a node."""
        status = {
            "phase": "Failed",
            "reason": self.reason,
            "message": self.message,
            "conditions": [_disruption(self.reason, self.message)],
        }
        return {"metadata": _as_seen(self.pod), "status": status}


class DeletePod(_EndPod, frozen=True):
    """A pod of a group that has lost its places."""

    def patch(self) -> Object:
        """Return the patch of the pod's `status` that says why it is deleted, before it is."""
        conditions = [_disruption(self.reason, self.message)]
        return {"metadata": _as_seen(self.pod), "status": {"conditions": conditions}}


class Notice(Struct, frozen=True):
    """What the owner of a group, or of a pod, should know: an Event."""

    about: Key
    reason: str
    message: str
    pod: bool = False  # it is about a pod, not about a group


PodWrite = OpenGate | FailPod | DeletePod
GroupWrite = CreateGroup | WriteSpec | WriteStatus
Write = GroupWrite | PodWrite | Notice


def pod_of(write: PodWrite) -> Pod:
    """Return the pod that a write is about."""
    return write.opening.pod if isinstance(write, OpenGate) else write.pod


def group_of(write: GroupWrite | PodWrite) -> Key:
    """Return the group that a write is for."""
    if isinstance(write, PodWrite):
        return pod_of(write).namespace, write.group
    return write.group.key


def _disruption(reason: str, message: str) -> Object:
    """Return the condition that marks a pod's end as a disruption.

    Failure policies of Jobs may ignore the failures of pods that have it.
    """
    return {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": message}


def _as_seen(pod: Pod) -> Object:
    """Return what refuses a write if the pod is no longer as it was seen."""
    return {"uid": pod.uid, "resourceVersion": pod.revision}


def _spec(group: PlacementGroup) -> Object:
    pod_sets = [_pod_set(each) for each in group.pod_sets]
    together = {} if group.together is None else {"together": msgspec.to_builtins(group.together)}
    return {"podSets": pod_sets, "priority": group.priority, **together}


def _pod_set(pod_set: PodSet) -> Object:
    """Return a pod set for the object; its template has only the fields that placement reads."""
    spec = pod_set.template.spec
    template: Object = {
        "containers": [_container(each) for each in spec.containers],
        "nodeSelector": spec.node_selector,
        "tolerations": msgspec.to_builtins(spec.tolerations),
    }
    if spec.ends:
        template["restartPolicy"] = spec.restart_policy
    if spec.init_containers:
        template["initContainers"] = [_container(each) for each in spec.init_containers]
    if spec.overhead:
        template["overhead"] = _quantities(spec.overhead)
    if spec.requests or spec.limits:
        template["resources"] = _resources(spec)
    if spec.affinity is not None:
        template["affinity"] = {"nodeAffinity": msgspec.to_builtins(spec.affinity)}
    if pod_set.template.claims:
        template["resourceClaims"] = msgspec.to_builtins(pod_set.template.claims)
    made: Object = {
        "name": pod_set.name,
        "count": pod_set.count,
        "template": {"metadata": {"labels": pod_set.template.labels}, "spec": template},
    }
    if pod_set.request is not None:
        made["request"] = msgspec.to_builtins(pod_set.request)
    return made


def _container(container: Container) -> Object:
    made: Object = {"name": container.name, "resources": _resources(container)}
    return made | ({"restartPolicy": "Always"} if container.sidecar else {})


def _resources(asking: Container | PodSpec) -> Object:
    """Return what a container, or the pod itself, asks for: by its limits zones are its own."""
    amounts = {"requests": asking.requests, "limits": asking.limits}
    return {name: _quantities(each) for name, each in amounts.items() if each}


def _quantities(amounts: Amounts) -> dict[str, str]:
    return {name: f"{amount}m" if name == CPU else str(amount) for name, amount in amounts.items()}
