"""Where containers are to be, by an engine's state, as an audit wants to know it."""

from __future__ import annotations

from collections.abc import Collection

from nri_policy.audit.comparison import Decided
from nri_policy.engine.state import State
from nri_policy.workload.pod import State as Life


def decisions(state: State, untold: Collection[str]) -> tuple[Decided, ...]:
    """Return where each running container is to be that is pinned to anything.

    *untold* are the ids of those that the runtime has not heard the latest of.
    """
    return tuple(
        Decided(
            container_id=container_id,
            name=placed.container.full_name,
            cgroup=placed.container.cgroup,
            cpus=cpus,
            mems=mems,
            told=container_id not in untold,
        )
        for container_id, placed in state.placed.items()
        for cpus, mems in [state.told[container_id]]
        if (cpus or mems) and placed.container.state is Life.RUNNING
    )
