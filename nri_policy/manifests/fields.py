"""Mistyped fields of pods and workloads, which a reader of some fields would ignore in silence.

A name unknown to Kubernetes 1.36 is refused if it resembles a known one; in `resources`, with its
three fields, every unknown name is refused. So fields of later versions pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

from nri_policy.foundation.wording import did_you_mean

_RESOURCES = ("requests", "limits", "claims")
_NATIVE = ("cpu", "memory", "ephemeral-storage")  # and hugepages of each size
_NAMES = {
    "container": """
        args command env envFrom image imagePullPolicy lifecycle livenessProbe name ports
        readinessProbe resizePolicy resources restartPolicy restartPolicyRules securityContext
        startupProbe stdin stdinOnce terminationMessagePath terminationMessagePolicy tty
        volumeDevices volumeMounts workingDir
    """,
    "metadata": """
        annotations creationTimestamp deletionGracePeriodSeconds deletionTimestamp finalizers
        generateName generation labels managedFields name namespace ownerReferences resourceVersion
        selfLink uid
    """,
    "spec": """
        activeDeadlineSeconds affinity automountServiceAccountToken containers dnsConfig dnsPolicy
        enableServiceLinks ephemeralContainers hostAliases hostIPC hostNetwork hostPID hostUsers
        hostname hostnameOverride imagePullSecrets initContainers nodeName nodeSelector os overhead
        preemptionPolicy priority priorityClassName readinessGates resourceClaims resources
        restartPolicy runtimeClassName schedulerName schedulingGates schedulingGroup
        securityContext serviceAccount serviceAccountName setHostnameAsFQDN shareProcessNamespace
        subdomain terminationGracePeriodSeconds tolerations topologySpreadConstraints volumes
        workloadRef
    """,
}
_CONTAINER, _METADATA, _SPEC = (_NAMES[k].split() for k in ("container", "metadata", "spec"))

# The fields of the `spec` of what makes pods, or groups them, by kind; templates are looked at as
# pods are.
_WORKLOADS = {
    "DaemonSet": "minReadySeconds revisionHistoryLimit selector template updateStrategy",
    "Deployment": """
        minReadySeconds paused progressDeadlineSeconds replicas revisionHistoryLimit selector
        strategy template
    """,
    "Job": """
        activeDeadlineSeconds backoffLimit backoffLimitPerIndex completionMode completions managedBy
        manualSelector maxFailedIndexes parallelism podFailurePolicy podReplacementPolicy selector
        successPolicy suspend template ttlSecondsAfterFinished
    """,
    "JobSet": """
        coordinator failurePolicy managedBy network replicatedJobs startupPolicy successPolicy
        suspend ttlSecondsAfterFinished volumeClaimPolicies
    """,
    "LeaderWorkerSet": """
        leaderWorkerTemplate networkConfig replicas rolloutStrategy startupPolicy
    """,
    "PodGroup": """
        disruptionMode podGroupTemplateRef priority priorityClassName resourceClaims
        schedulingConstraints schedulingPolicy
    """,
    "ReplicaSet": "minReadySeconds replicas selector template",
    "StatefulSet": """
        minReadySeconds ordinals persistentVolumeClaimRetentionPolicy podManagementPolicy replicas
        revisionHistoryLimit selector serviceName template updateStrategy volumeClaimTemplates
    """,
}
_REPLICATED_JOB = ("dependsOn", "groupName", "name", "replicas", "template")
_LEADER_WORKER_TEMPLATE = """
    leaderTemplate resourceClaimTemplates restartPolicy size subGroupPolicy volumeClaimTemplates
    workerTemplate
"""


def mistyped(pod: object) -> str:
    """Return the path of the first mistyped field of a pod or template, and what it is meant to be.

    Empty where there is none; a value of the wrong type is left to its reader.
    """
    given = _mapping(pod)
    return next(chain(_in_metadata(given), _in_spec(_mapping(given.get("spec")))), "")


def mistyped_workload(workload: Mapping[str, object]) -> str:
    """Return the same for a workload, without the pod templates in it."""
    kind = str(workload.get("kind"))
    if kind not in _WORKLOADS:
        return ""
    spec = _mapping(workload.get("spec"))
    return next(chain(_in_metadata(workload), _in_workload(kind, spec)), "")


def _in_metadata(given: Mapping[str, object]) -> Iterator[str]:
    return _among(_mapping(given.get("metadata")), _METADATA, "metadata")


def _in_workload(kind: str, spec: Mapping[str, object]) -> Iterator[str]:
    yield from _among(spec, _WORKLOADS[kind].split(), "spec")
    of_workers = _mapping(spec.get("leaderWorkerTemplate"))
    yield from _among(of_workers, _LEADER_WORKER_TEMPLATE.split(), "spec.leaderWorkerTemplate")
    jobs = spec.get("replicatedJobs")
    for number, each in enumerate(jobs if isinstance(jobs, list) else ()):
        path, job = f"spec.replicatedJobs[{number}]", _mapping(each)
        yield from _among(job, _REPLICATED_JOB, path)
        made = _mapping(_mapping(job.get("template")).get("spec"))
        yield from _among(made, _WORKLOADS["Job"].split(), f"{path}.template.spec")


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}


def _in_spec(spec: Mapping[str, object]) -> Iterator[str]:
    yield from _among(spec, _SPEC, "spec")
    yield from _in_resources(spec, "spec")
    for part in ("initContainers", "containers"):
        containers = spec.get(part)
        for number, each in enumerate(containers if isinstance(containers, list) else ()):
            if isinstance(each, Mapping):
                yield from _among(each, _CONTAINER, f"spec.{part}[{number}]")
                yield from _in_resources(each, f"spec.{part}[{number}]")


def _in_resources(holder: Mapping[str, object], path: str) -> Iterator[str]:
    resources = _mapping(holder.get("resources"))
    for name in resources:
        if name not in _RESOURCES:
            hint = did_you_mean(str(name), _RESOURCES) or f"; there are: {', '.join(_RESOURCES)}"
            yield f"{path}.resources.{name}: no such field{hint}"
    for part in ("requests", "limits"):
        for name in map(str, _mapping(resources.get(part))):
            if name not in _NATIVE and (hint := did_you_mean(name, _NATIVE)):
                yield f"{path}.resources.{part}.{name}: no such resource{hint}"


def _among(given: Mapping[str, object], known: Sequence[str], path: str) -> Iterator[str]:
    for name in given:
        if name not in known and (hint := did_you_mean(str(name), known)):
            yield f"{path}.{name}: no such field{hint}"
