"""Resource claims for CPUs, and containers that use them."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from nri_policy.workload.claim import ClaimPart
from nri_policy.workload.pod import Container
from tests.support import nodes


def part(milli: int, node: int = 0, *, claim: str = "cpus", request: str = "cpu") -> ClaimPart:
    """Return what a claim of that name was allocated of a NUMA node."""
    return ClaimPart(
        claim=f"uid-{claim}",
        namespace="default",
        name=claim,
        request=request,
        device=f"numa{node}",
        pool=f"NUMA node #{node}",
        milli=milli,
    )


def user(*parts: ClaimPart, milli: int = 0, **options: Any) -> Container:
    """Return a container that uses these parts of claims and requests *milli* milli-CPU."""
    plain = nodes.container(milli, **options) if milli else nodes.best_effort(**options)
    return replace(plain, claims=tuple(each.id for each in parts))
