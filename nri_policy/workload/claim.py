"""Claims: what a resource claim (DRA) was allocated of our own devices; spec dra.md §2.3.

Values only. A claim's CPUs belong to the claim: containers that name it use them while they live.
"""

from __future__ import annotations

import re
from functools import lru_cache

from msgspec import Struct

DRIVER = "placement.nri"  # the name of our driver
CDI_KIND = f"{DRIVER}/claim"
VARIABLE = "PLACEMENT_NRI_CLAIM_"  # what the names of all variables that show a claim begin with


class ClaimPart(Struct, frozen=True, kw_only=True):
    """The part of a claim that was allocated from one device."""

    claim: str  # uid
    namespace: str
    name: str
    request: str  # in the claim; with a subrequest: `request/subrequest`
    device: str  # as it is published
    pool: str  # name of the pool that the device stands for
    milli: int  # whole CPUs are its own, a fraction is shared
    share: str = ""  # the scheduler's id of this share of the device
    pods: tuple[str, ...] = ()  # uids of the pods that the claim is reserved for
    beside: tuple[str, ...] = ()  # what else the claim has, as `driver device`

    @property
    def id(self) -> str:
        """The id of its holder; no container or pod has such an id."""
        return f"claim:{self.claim}:{self.request}:{self.device}"

    @property
    def full_name(self) -> str:
        """`claim namespace/name (request)`, as people and messages name it."""
        return f"claim {self.namespace}/{self.name} ({self.request})"

    @property
    def allocated(self) -> tuple[str, str, str, int, str]:
        """What the scheduler has allocated: two that are equal here are the same part."""
        return self.claim, self.request, self.device, self.milli, self.share


def cdi_device(part: ClaimPart) -> str:
    """Return the CDI device that the runtime is given for a claim's request."""
    return f"{CDI_KIND}={part.claim}.{part.request.replace('/', '_')}"


def variable(part: ClaimPart) -> str:
    """Return the environment variable that shows a container's use of a claim's request.

    Names of requests have no capitals, so `a/b` and `a-b` of one claim have two variables.
    """
    return _variable(part.claim, part.request)


@lru_cache(1024)  # every container that shows a claim is compared with all claims of the node
def _variable(claim: str, request: str) -> str:
    request = request.replace("/", "_OR_")
    name = re.sub(r"[^0-9A-Za-z]", "_", f"{claim}_{request}")
    return f"{VARIABLE}{name}"
