"""ResourceClaims and their templates (resource.k8s.io/v1): what they request and were allocated.

Read from manifests and from the API server alike.
"""

from __future__ import annotations

from msgspec import field

from nri_policy.manifests.api_object import APIObject, Part


class CELExpression(Part, frozen=True):
    """An expression in CEL."""

    expression: str = ""


class DeviceSelector(Part, frozen=True):
    """A condition on devices."""

    cel: CELExpression = CELExpression()


class RequestedCapacity(Part, frozen=True):
    """The amounts that are consumed of each device."""

    requests: dict[str, str | int] = field(default_factory=dict)


class WantedDevices(Part, frozen=True):
    """Devices of one class that a request, or one of its alternatives, names, and their number."""

    device_class_name: str
    name: str = ""  # of a subrequest
    allocation_mode: str = "ExactCount"
    count: int = 1
    capacity: RequestedCapacity = RequestedCapacity()
    selectors: list[DeviceSelector] = field(default_factory=list)


class DeviceRequest(Part, frozen=True):
    """A request of a claim."""

    name: str
    exactly: WantedDevices | None = None
    first_available: list[WantedDevices] = field(default_factory=list)

    @property
    def alternatives(self) -> dict[str, WantedDevices]:
        """The alternatives of the request, by their names in results."""
        if self.exactly is not None:
            return {self.name: self.exactly}
        return {f"{self.name}/{each.name}": each for each in self.first_available}


class DeviceConstraint(Part, frozen=True):
    """A condition on the devices of several requests."""

    requests: list[str] = field(default_factory=list)  # none: all
    match_attribute: str | None = None
    distinct_attribute: str | None = None

    def concerns(self, request: str) -> bool:
        """Whether the constraint holds for this request or subrequest."""
        return not self.requests or bool({request, request.partition("/")[0]} & {*self.requests})


class RequestedDevices(Part, frozen=True):
    """The requests of a claim, and conditions on all of their devices."""

    requests: list[DeviceRequest] = field(default_factory=list)
    constraints: list[DeviceConstraint] = field(default_factory=list)


class ClaimSpec(Part, frozen=True):
    """What a claim requests."""

    devices: RequestedDevices = RequestedDevices()


class AllocationResult(Part, frozen=True):
    """A device that a claim was allocated."""

    request: str  # with a subrequest: `request/subrequest`
    driver: str
    pool: str
    device: str
    admin_access: bool | None = None
    share: str | None = field(name="shareID", default=None)
    consumed: dict[str, str | int] = field(name="consumedCapacity", default_factory=dict)


class OpaqueConfig(Part, frozen=True):
    """A configuration that only its driver can read."""

    driver: str


class DeviceConfig(Part, frozen=True):
    """A configuration of devices."""

    opaque: OpaqueConfig | None = None


class AllocatedDevices(Part, frozen=True):
    """The devices of a claim, and how they are configured."""

    results: list[AllocationResult] = field(default_factory=list)
    config: list[DeviceConfig] = field(default_factory=list)


class Allocation(Part, frozen=True):
    """What a scheduler has allocated."""

    devices: AllocatedDevices = AllocatedDevices()


class ClaimConsumer(Part, frozen=True):
    """An object that a claim is reserved for."""

    resource: str
    name: str
    uid: str


class ClaimStatus(Part, frozen=True):
    """The devices that were allocated to a claim, and the objects that it is reserved for."""

    allocation: Allocation | None = None
    reserved_for: list[ClaimConsumer] = field(default_factory=list)


class ResourceClaim(APIObject, frozen=True):
    """A ResourceClaim object."""

    spec: ClaimSpec = ClaimSpec()
    status: ClaimStatus = ClaimStatus()


class ClaimTemplateSpec(Part, frozen=True):
    """The claims that are made from a template."""

    spec: ClaimSpec = ClaimSpec()


class ResourceClaimTemplate(APIObject, frozen=True):
    """A ResourceClaimTemplate object."""

    spec: ClaimTemplateSpec = ClaimTemplateSpec()
