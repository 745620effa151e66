"""What the plugin asks beside the runtime: the kubelet, the API server, the host."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping

from msgspec import Struct

from nri_policy.classes import Equipment
from nri_policy.delivery.host_cgroups import HostCgroups
from nri_policy.engine.event import StoredGrant
from nri_policy.hardware.locality import Locator
from nri_policy.node import Placed
from nri_policy.plugin.pods import AssignmentSource, ClaimedDeviceSource, PodObjectSource


async def _wait_for_none(placed: Placed) -> None:
    del placed


class Sources(Struct, frozen=True, kw_only=True):
    """What else is asked about containers."""

    locator: Locator | None = None  # None: devices and mounts are no hints
    assignments: AssignmentSource | None = None  # None: the kubelet is not asked
    claims: ClaimedDeviceSource | None = (
        None  # None: the cluster is not asked about resource claims
    )
    objects: PodObjectSource | None = None  # None: nor about what containers ask for
    cgroups: HostCgroups | None = None  # None: only the runtime's events say what is in force
    held: Callable[[], Mapping[str, StoredGrant]] = dict  # what an earlier daemon granted, by id
    # what claims hold by their CDI files, where the store is lost
    recorded: Callable[[], Iterable[StoredGrant]] = tuple
    equipment: Callable[[], Equipment] = Equipment  # of the host, whatever the runtime
    # waits, for a bounded time, for the kernel tunables that a container needs at its start
    tuned: Callable[[Placed], Awaitable[None]] = _wait_for_none
