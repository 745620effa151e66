"""Interim placement: where a container runs that is admitted before it could be decided on.

Reads a State; changes nothing.
"""

from __future__ import annotations

from msgspec.structs import replace

from nri_policy.engine.choice import plain_grant
from nri_policy.engine.grant import Placement
from nri_policy.engine.state import State
from nri_policy.foundation.cpuset import EMPTY
from nri_policy.workload.request import Request, Sort


def interim_placement(state: State, request: Request) -> Placement:
    """Return the placement of a container before its decision: on CPUs that are not exclusive."""
    cpus = EMPTY
    if state.layout.settings.pin_cpu:
        top = state.layout.tree.top.id
        grant = replace(plain_grant(request, top, EMPTY), shares=request.sort is Sort.NORMAL)
        cpus = state.cpus(grant, request.hide_hyperthreads)
    return Placement(
        cpus=cpus,
        mems=EMPTY,
        shares=None,
        cause="there was no time to decide",
    )
