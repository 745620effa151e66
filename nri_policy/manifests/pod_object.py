"""A Pod as the API server has it: what its containers request, and the claims that they use.

The API server has checked it: amounts are not read here, and names are taken as they are.
"""

from __future__ import annotations

from typing import Any

from msgspec import field

from nri_policy.manifests.api_object import Part


class UsedClaim(Part, frozen=True):
    """A resource claim that a container uses: the whole claim, or one *request* of it."""

    name: str
    request: str = ""


class RequestedResources(Part, frozen=True):
    """The amounts and claims of a container, or the amounts of a pod as a whole."""

    requests: dict[str, Any] = field(default_factory=dict)
    limits: dict[str, Any] = field(default_factory=dict)
    claims: list[UsedClaim] = field(default_factory=list)


class ContainerObject(Part, frozen=True):
    """A container of a pod."""

    name: str
    resources: RequestedResources = RequestedResources()


class ClaimOfPod(Part, frozen=True):
    """A claim of a pod, with the name of its object; None while there is no object."""

    name: str
    resource_claim_name: str | None = None


class PodObjectSpec(Part, frozen=True):
    """The containers of a pod, and what they share."""

    containers: list[ContainerObject]
    init_containers: list[ContainerObject] = field(default_factory=list)
    resources: RequestedResources | None = None  # of the pod as a whole
    resource_claims: list[ClaimOfPod] = field(default_factory=list)

    @property
    def every_container(self) -> list[ContainerObject]:
        """Init containers, and then the others."""
        return [*self.init_containers, *self.containers]


class RequestMapping(Part, frozen=True):
    """The request of a claim that serves an extended resource of a container."""

    container_name: str
    request_name: str


class ExtendedResourceClaim(Part, frozen=True):
    """The claim for the extended resources of a pod that a driver serves (KEP-5004)."""

    resource_claim_name: str
    request_mappings: list[RequestMapping] = field(default_factory=list)


class PodObjectStatus(Part, frozen=True):
    """The claims that were made for a pod."""

    resource_claim_statuses: list[ClaimOfPod] = field(default_factory=list)
    extended: ExtendedResourceClaim | None = field(name="extendedResourceClaimStatus", default=None)


class PodObject(Part, frozen=True):
    """A Pod object."""

    spec: PodObjectSpec
    status: PodObjectStatus = PodObjectStatus()
