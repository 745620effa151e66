"""Mistyped fields of pods and pod templates, which a reader of some fields would ignore in silence.

A name that Kubernetes does not have (as of 1.36) is refused if it is like one that it has; in
`resources`, which has three, every other name is. So fields of later versions pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from nri_policy.wording import did_you_mean

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


def mistyped(pod: object) -> str:
    """Return the path of the first mistyped field of a pod or template, and what it is meant to be.

    Empty where there is none; a value of the wrong type is left to its reader.
    """
    spec = pod.get("spec") if isinstance(pod, Mapping) else None
    return next(_in_spec(spec), "") if isinstance(spec, Mapping) else ""


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
