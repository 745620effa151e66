"""JobSets in documents, of which all steps are tried at once: each as if its turn had come."""

from __future__ import annotations

from collections.abc import Iterable

from nri_policy.cluster.engine.engine import Engine
from nri_policy.cluster.engine.state.cluster_state import ClusterState
from nri_policy.cluster.requests.group import PlacementGroup
from nri_policy.cluster.workloads.job_sets import find_steps_at_once


def expect_steps(state: ClusterState, groups: Iterable[PlacementGroup]) -> None:
    """Have a *state* know which of *groups*, from documents, are steps of a JobSet to come."""
    for steps in find_steps_at_once(groups):
        state.usages.plan(steps[0].key, (steps,))


def without_ended_steps(engine: Engine, group: PlacementGroup) -> Engine:
    """Return *engine* without steps of a group's JobSet that are complete before the group starts.

    They have left their places by then.
    """
    ended = [
        key
        for key, each in engine.state.groups.items()
        if each.job_set == group.job_set
        and each.namespace == group.namespace
        and group.after.issuperset(one.name for one in each.pod_sets)
    ]
    if not (group.after and ended):
        return engine
    made = engine.fork()
    made.state.take_out({*made.state.usages.out, *ended})
    return made
