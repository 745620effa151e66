"""Reading a live cluster: one list of each kind, like the lists in files."""

from __future__ import annotations

from http.client import FORBIDDEN, NOT_FOUND

from nri_policy.cluster.cluster_files import ClusterFiles
from nri_policy.cluster.service.kinds import (
    BUDGETS,
    CLASSES,
    DEVICES,
    GROUPS,
    JOB_SETS,
    OLD_TOPOLOGIES,
    PLACEMENT,
    PLACEMENTS,
    TOPOLOGIES,
    WORKLOADS,
    ZONES,
)
from nri_policy.kube.client import NODES, PODS, Client
from nri_policy.kube.errors import APIError

_OF_GROUPS = [
    ("groups", [GROUPS]),
    ("topologies", [TOPOLOGIES, OLD_TOPOLOGIES]),
    ("workloads", [WORKLOADS]),
]


async def list_cluster(
    client: Client, *, groups: bool = True, budgets: bool = False, devices: bool = False
) -> ClusterFiles:
    """Return the objects of a cluster; raises APIError. A kind that it lacks gives an empty list.

    Without *groups*, kinds about groups may be forbidden. PriorityClasses and JobSets may always be
    forbidden, and are listed with groups; so are PodDisruptionBudgets with *budgets*, and the
    objects about *devices* with these.
    """
    given = ClusterFiles()
    for key, kinds in (
        ("nodes", [NODES]),
        ("pods", [PODS]),
        ("zones", [ZONES]),
        *_OF_GROUPS,
        *([("classes", [CLASSES]), ("jobsets", [JOB_SETS])] if groups else []),
        *([("budgets", [BUDGETS])] if budgets else []),
        *([(kind.plural, [kind]) for kind in DEVICES] if devices else []),
    ):
        for kind in kinds:
            try:
                given.cluster[key] = (await client.list(kind)).items
                break
            except APIError as error:
                of_groups = (key, kinds) in _OF_GROUPS
                passed_over = [NOT_FOUND] * (kind not in (NODES, PODS))
                if kind in (CLASSES, JOB_SETS, *DEVICES) or (of_groups and not groups):
                    passed_over.append(FORBIDDEN)
                if error.code not in passed_over:
                    raise
    try:  # a list, as the service reads them: its account has no right to get one
        settings = (await client.list(PLACEMENTS)).items
    except APIError as error:
        if error.code != NOT_FOUND:
            raise
        settings = []
    named = (each for each in settings if each["metadata"]["name"] == PLACEMENT)
    given.settings = next(named, None)
    return given
