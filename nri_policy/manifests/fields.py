"""Mistyped fields of pods and workloads, which a reader of some fields would ignore in silence.

A name that Kubernetes does not have (as of 1.36) is refused if it is like one that it has; in
`resources`, which has three, every other name is. So fields of later versions pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from nri_policy.foundation.wording import did_you_mean

_RESOURCES = ("requests", "limits", "claims")
_NAMES = {
    "container": """
        args command env envFrom image imagePullPolicy lifecycle livenessProbe name ports
        readinessProbe resizePolicy resources restartPolicy restartPolicyRules securityContext
        startupProbe stdin stdinOnce terminationMessagePath terminationMessagePolicy tty
        volumeDevices volumeMounts workingDir
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
_CONTAINER, _SPEC = (_NAMES[kind].split() for kind in ("container", "spec"))

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
    spec = pod.get("spec") if isinstance(pod, Mapping) else None
    return next(_in_spec(spec), "") if isinstance(spec, Mapping) else ""


def mistyped_workload(workload: Mapping[str, object]) -> str:
    """Return the same for the `spec` of a workload, without the pod templates in it."""
    kind = str(workload.get("kind"))
    spec = _mapping(workload.get("spec"))
    return next(_in_workload(kind, spec), "") if kind in _WORKLOADS else ""


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
    resources = holder.get("resources")
    for name in resources if isinstance(resources, Mapping) else ():
        if name not in _RESOURCES:
            hint = did_you_mean(str(name), _RESOURCES) or f"; there are: {', '.join(_RESOURCES)}"
            yield f"{path}.resources.{name}: no such field{hint}"


def _among(given: Mapping[str, object], known: Sequence[str], path: str) -> Iterator[str]:
    for name in given:
        if name not in known and (hint := did_you_mean(str(name), known)):
            yield f"{path}.{name}: no such field{hint}"
