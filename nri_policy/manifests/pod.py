"""Kubernetes Pod manifests, as far as they matter to a container runtime.

Owns reading and validating a manifest as the API server would: required fields, names, quantities,
requests defaulted from limits, a pod's own from its containers' (KEP-2837). Must not know of NRI or
cgroups.
Fields that say nothing about placement are not looked at, but for mistyped names; a value that
exists is valid.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec

from nri_policy.foundation.wording import quoted
from nri_policy.manifests.fields import mistyped
from nri_policy.manifests.quality_of_service import QoS
from nri_policy.manifests.resources import (
    Amounts,
    Label,
    ManifestError,
    PodResources,
    ResourceChange,
    ResourceRequirements,
    Subdomain,
    Texts,
    read_part,
)


class _Struct(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A part of a manifest; unknown fields are skipped."""


class EnvVar(_Struct, frozen=True):
    """An environment variable; one that comes from elsewhere (`valueFrom`) is empty here."""

    name: str
    value: str = ""


class VolumeMount(_Struct, frozen=True):
    """Where a container mounts a volume of its pod."""

    name: str
    mount_path: str
    read_only: bool = False


class HostPath(_Struct, frozen=True):
    """A folder or device of the host."""

    path: str


class VolumeClaim(_Struct, frozen=True):
    """A persistent volume, by the claim to it."""

    claim_name: Subdomain


class Volume(_Struct, frozen=True):
    """A volume of a pod: one of its kinds, or an empty folder."""

    name: Label
    host_path: HostPath | None = None
    persistent_volume_claim: VolumeClaim | None = None
    config_map: dict[str, Any] | None = None
    secret: dict[str, Any] | None = None
    projected: dict[str, Any] | None = None
    downward_api: dict[str, Any] | None = msgspec.field(name="downwardAPI", default=None)


class ContainerManifest(_Struct, frozen=True):
    """One container; its restart policy, if given, overrides that of its pod (KEP-5307)."""

    name: Label
    image: str = ""
    command: list[str] = []
    args: list[str] = []
    env: list[EnvVar] = []
    volume_mounts: list[VolumeMount] = []
    resources: ResourceRequirements = ResourceRequirements()
    restart_policy: Literal["Always", "OnFailure", "Never"] | None = None
    restart_policy_rules: list[dict[str, Any]] = []

    def __post_init__(self) -> None:
        if self.restart_policy_rules and self.restart_policy is None:
            raise ValueError("restartPolicyRules need a restartPolicy of the same container")

    @property
    def sidecar(self) -> bool:
        """True for an init container that keeps running beside the others (KEP-753)."""
        return False


class InitContainerManifest(ContainerManifest, frozen=True):
    """One init container, started before the main containers."""

    @property
    def sidecar(self) -> bool:
        """True where it keeps running beside the others."""
        return self.restart_policy == "Always"


class PodClaim(_Struct, frozen=True):
    """A resource claim of a pod: an object that there is, or one that is made for the pod."""

    name: Label
    resource_claim_name: Subdomain | None = None
    resource_claim_template_name: Subdomain | None = None

    def __post_init__(self) -> None:
        if (self.resource_claim_name is None) == (self.resource_claim_template_name is None):
            raise ValueError(
                f"claim {quoted(self.name)} needs resourceClaimName or resourceClaimTemplateName"
            )


class Metadata(_Struct, frozen=True):
    """Identity of a pod."""

    name: Subdomain
    namespace: Label = "default"
    uid: str = ""
    labels: Texts = Texts()
    annotations: Texts = Texts()


class PodSpec(_Struct, frozen=True):
    """Containers of a pod and what they share."""

    containers: Annotated[list[ContainerManifest], msgspec.Meta(min_length=1)]
    init_containers: list[InitContainerManifest] = []
    volumes: list[Volume] = []
    resource_claims: list[PodClaim] = []
    overhead: Amounts = Amounts()
    priority_class_name: str = ""
    runtime_class_name: str = ""
    termination_grace_period_seconds: int = 30
    resources: PodResources | None = None

    def __post_init__(self) -> None:
        if self.resources is not None:
            resources = self._as_a_whole(self.resources)
            msgspec.structs.force_setattr(self, "resources", resources)
        names = [container.name for container in self.every_container]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two containers are named {quoted(name)}")
        volumes = {volume.name for volume in self.volumes}
        claims = {claim.name for claim in self.resource_claims}
        for container in self.every_container:
            for claim in container.resources.claims:
                if claim.name not in claims:
                    raise ValueError(
                        f"container {quoted(container.name)} uses the claim {quoted(claim.name)}, "
                        "which is not in spec.resourceClaims"
                    )
            for mount in container.volume_mounts:
                if mount.name not in volumes:
                    raise ValueError(
                        f"container {quoted(container.name)} mounts {quoted(mount.name)}, which is "
                        "not in spec.volumes"
                    )

    @property
    def every_container(self) -> list[ContainerManifest]:
        """Init containers and then the others, in the order in which kubelet starts them."""
        return [*self.init_containers, *self.containers]

    def total(self, part: Literal["requests", "limits"]) -> Amounts:
        """Return the most CPU and memory that the containers have in use at one time.

        Init containers run one by one, before the others and beside the sidecars that are already
        up (k8s.io/component-helpers/resource). Only what any container names.
        """
        totals = Amounts()
        for name in ("cpu", "memory"):
            sidecars = peak = 0
            for init in self.init_containers:
                own = getattr(init.resources, part).get(name, 0)
                peak = max(peak, sidecars + own)
                sidecars += own if init.sidecar else 0
            main = sum(getattr(each.resources, part).get(name, 0) for each in self.containers)
            if any(name in getattr(each.resources, part) for each in self.every_container):
                totals[name] = max(peak, sidecars + main)
        return totals

    def limit(self, container: ContainerManifest, name: str) -> int:
        """Return a container's limit: its own, or else that of the pod as a whole; 0 for none."""
        whole = Amounts() if self.resources is None else self.resources.limits
        return container.resources.limits.get(name, 0) or whole.get(name, 0)

    def _as_a_whole(self, whole: PodResources) -> PodResources:
        """Return what the pod has as a whole, with its defaults; ValueError where that cannot be.

        Requests are the containers' where they have any, or else the pod's limits; without limits
        nothing is defaulted (pkg/apis/core/v1/defaults.go, defaultPodRequests).
        """
        total = self.total("requests")
        requests = whole.requests
        if whole.limits:
            requests = Amounts(whole.limits | total | whole.requests)
        for name, requested in requests.items():
            if requested < total.get(name, 0):
                raise ValueError(f"resources: the containers request more {name} than the pod")
            if requested > whole.limits.get(name, requested):
                raise ValueError(f"resources: the request of {name} is more than its limit")
        for container in self.containers:
            for name, limit in container.resources.limits.items():
                if limit > whole.limits.get(name, limit):
                    raise ValueError(
                        f"resources: container {quoted(container.name)} has a higher limit of"
                        f" {name} than the pod"
                    )
        return PodResources(requests=requests, limits=whole.limits)


class PodManifest(_Struct, frozen=True):
    """A Pod object."""

    metadata: Metadata
    spec: PodSpec

    @property
    def key(self) -> str:
        """`namespace/name`."""
        return f"{self.metadata.namespace}/{self.metadata.name}"

    def runs_to_end(self, name: str) -> bool:
        """Whether the container *name* ends before the main ones start."""
        return any(each.name == name and not each.sidecar for each in self.spec.init_containers)

    def claim_name(self, claim: PodClaim) -> str:
        """Return the name of a claim's object, of one that is made for the pod as far as known."""
        return claim.resource_claim_name or f"{self.metadata.name}-{claim.name}"

    @property
    def qos(self) -> QoS:
        """Quality of service class by the rules of Kubernetes, init containers included.

        Of a pod that has resources as a whole these alone count.
        """
        everything: list[ResourceChange] = [each.resources for each in self.spec.every_container]
        if self.spec.resources is not None:
            everything = [self.spec.resources]
        amounts = [
            resources.requests.get(name, 0) or resources.limits.get(name, 0)
            for resources in everything
            for name in ("cpu", "memory")
        ]
        if not any(amounts):
            return QoS.BEST_EFFORT
        guaranteed = all(
            0 < resources.limits.get(name, 0) == resources.requests.get(name, 0)
            for resources in everything
            for name in ("cpu", "memory")
        )
        return QoS.GUARANTEED if guaranteed else QoS.BURSTABLE

    def container(self, name: str) -> ContainerManifest:
        """Return the container called *name*. Raises KeyError if there is none."""
        for container in self.spec.every_container:
            if container.name == name:
                return container
        raise KeyError(name)

    def resized(self, name: str, change: ResourceChange) -> PodManifest:
        """Return this pod with the resources of one container changed, like a resize would.

        Raises ManifestError if the API server would refuse that, KeyError for an unknown container.
        """
        old = self.container(name)
        try:
            new = msgspec.structs.replace(old, resources=old.resources.changed(change))
        except ValueError as error:
            raise ManifestError(f"pod {self.key}: container {name}: {error}") from error
        containers = {
            part: [new if container is old else container for container in getattr(self.spec, part)]
            for part in ("init_containers", "containers")
        }
        return self._changed(f"container {name}", **containers)

    def resized_as_a_whole(self, change: ResourceChange) -> PodManifest:
        """Return this pod with what it has as a whole changed, like a resize would (KEP-5419).

        Raises ManifestError if the API server would refuse that.
        """
        old = self.spec.resources
        if old is None:
            raise ManifestError(
                f"pod {self.key}: it has no resources as a whole, and cannot get any"
            )
        new = PodResources(
            requests=Amounts(old.requests | change.requests),
            limits=Amounts(old.limits | change.limits),
        )
        return self._changed("resources", resources=new)

    def _changed(self, what: str, **fields: Any) -> PodManifest:
        try:
            spec = msgspec.structs.replace(self.spec, **fields)
        except ValueError as error:
            raise ManifestError(f"pod {self.key}: {what}: {error}") from error
        pod = msgspec.structs.replace(self, spec=spec)
        if pod.qos != self.qos:
            raise ManifestError(
                f"pod {self.key}: {what}: a resize must leave the pod {self.qos}, "
                f"this one would make it {pod.qos}"
            )
        return pod


def read_pod(manifest: object) -> PodManifest:
    """Return the pod that *manifest* (what a YAML reader made of it) describes.

    Raises ManifestError.
    """
    if not isinstance(manifest, Mapping):
        raise ManifestError(f"a Pod manifest is a mapping, not {quoted(manifest)}")
    for field, wanted in (("apiVersion", "v1"), ("kind", "Pod")):
        if manifest.get(field) != wanted:
            raise ManifestError(f"{field}: {quoted(manifest.get(field))} is not {wanted}")
    metadata = manifest.get("metadata")
    name = metadata.get("name") if isinstance(metadata, Mapping) else None
    if name is None and isinstance(metadata, Mapping) and "generateName" in metadata:
        stem = quoted(metadata["generateName"])
        raise ManifestError(f"metadata: name is missing; generateName {stem} makes none here")
    whose = f"pod {quoted(name)}: " if name else ""
    if problem := mistyped(manifest):
        raise ManifestError(whose + problem)
    try:
        return read_part(manifest, PodManifest)
    except ManifestError as error:
        raise ManifestError(f"{whose}{error}") from error
