"""Events: what can happen to a node. Values only.

The tag of an event is its name in documents, metrics and the journal: a class may be renamed, a tag
may not. A `match` distinguishes events, and mypy checks it against the union.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import get_args

from msgspec import Struct, field

from nri_policy.classes import Classes, Equipment
from nri_policy.engine.grant import Grant
from nri_policy.hardware.machine import Machine
from nri_policy.settings import Settings
from nri_policy.workload.claim import ClaimPart
from nri_policy.workload.pod import Container, Pod, Resources
from nri_policy.workload.request import Entitlement
from nri_policy.workload.requirements import PodRequirements, Requirements


class Created(Struct, frozen=True, kw_only=True, omit_defaults=True, tag="created"):
    """A container is about to be created."""

    container: Container
    admitted: bool = False  # the runtime continues anyway: it cannot be refused
    unheard: bool = False  # and settings that only a creation can bring are not sent


class Started(Struct, frozen=True, kw_only=True, tag="started"):
    """A container starts."""

    container_id: str
    now: float  # seconds since the epoch


class Elapsed(Struct, frozen=True, kw_only=True, tag="elapsed"):
    """Time has advanced to *now*; handle expired deadlines."""

    now: float  # seconds since the epoch


class Resized(Struct, frozen=True, kw_only=True, tag="resized"):
    """A container or a pod will get other resources; 0 and "" in them mean: unchanged.

    Unless this is *certain*, ResizeEnded has the result.
    """

    container_id: str
    resources: Resources
    certain: bool = True
    pod: Resources | None = None  # new amounts of the whole pod; None: unchanged


class Described(Struct, frozen=True, kw_only=True, tag="described"):
    """The API server has the object of a pod, with the requests of its containers."""

    pod_id: str
    said: PodRequirements


class ResizeEnded(Struct, frozen=True, kw_only=True, tag="resize-ended"):
    """A container has its new resources, or the runtime has *refused* them."""

    container_id: str
    refused: bool = False


class Stopped(Struct, frozen=True, kw_only=True, omit_defaults=True, tag="stopped"):
    """A container has stopped, or is gone."""

    container_id: str
    keeps: bool = False  # its grant, until this event comes again with False


class PodStopped(Struct, frozen=True, kw_only=True, tag="pod-stopped"):
    """A pod and all its containers have stopped, or are gone; some may keep their grants."""

    pod_id: str


class Prepared(Struct, frozen=True, kw_only=True, tag="prepared"):
    """The kubelet asks for all our devices that were allocated to a resource claim."""

    parts: tuple[ClaimPart, ...]  # of one claim


class Unprepared(Struct, frozen=True, kw_only=True, tag="unprepared"):
    """The kubelet wants a claim to be given back."""

    claim: str  # uid


class StoredGrant(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A grant of an earlier engine, with enough about its holder to recognize that again."""

    pod_uid: str
    full_name: str  # namespace/pod/container, namespace/pod of a room, or a claim's
    resized: bool  # its resources are newer than its pod's annotations
    entitlement: Entitlement = field(name="request")  # what the grant is for
    pool: str  # name: ids are another tree's
    grant: Grant
    deadline: float | None  # end of its cold start, seconds since the epoch
    resources: Resources  # at that time
    created: int = 0  # ns since the epoch, or later than all before it; 0: unknown
    classes: Classes | None = None  # what it has by them
    home: str | None = None  # the name of the pool that the grant's home is
    requirements: Requirements | None = None  # by its pod's object
    pod_level: bool | None = None  # whether its pod has resources as a whole
    pod_amounts: Resources | None = None
    part: ClaimPart | None = None  # of a claim

    @property
    def of_room(self) -> bool:
        """Whether it is the grant of a room."""
        return self.part is None and self.full_name.count("/") == 1

    @property
    def of_container(self) -> bool:
        """Whether it is the grant of a container."""
        return self.part is None and not self.of_room


class Synchronized(Struct, frozen=True, kw_only=True, tag="synchronized"):
    """The runtime has listed its containers; others only exist if they have stopped."""

    containers: tuple[Container, ...]
    pods: tuple[Pod, ...] = ()  # existing pods without a container
    held: Mapping[str, StoredGrant] = field(default_factory=dict)  # by container id
    now: float = 0.0  # seconds since the epoch
    latest: int = 0  # of a picture: `Container.created` of the youngest there ever was
    equipment: Equipment | None = None  # of the node; None: as before


class Equipped(Struct, frozen=True, kw_only=True, tag="equipped"):
    """The node can do other things now, or has other disks."""

    equipment: Equipment


class Reconfigured(Struct, frozen=True, kw_only=True, tag="reconfigured"):
    """The settings, or the machine, are others now; None: as before.

    A machine alone is what it has become, and cannot be refused; with settings it can.
    """

    settings: Settings | None = None
    machine: Machine | None = None


class Drifted(Struct, frozen=True, kw_only=True, tag="drifted"):
    """Containers run on other CPUs or nodes than were sent; the runtime may not know that."""

    container_ids: tuple[str, ...]


Event = (
    Created
    | Started
    | Elapsed
    | Resized
    | ResizeEnded
    | Stopped
    | PodStopped
    | Synchronized
    | Reconfigured
    | Drifted
    | Equipped
    | Described
    | Prepared
    | Unprepared
)


#: What sorts of events there are, in the words of documents and of the journal.
KINDS: tuple[str, ...] = tuple(each.__struct_config__.tag for each in get_args(Event))


def kind(event: Event) -> str:
    """Return the kind of an event, one of KINDS."""
    return str(event.__struct_config__.tag)
