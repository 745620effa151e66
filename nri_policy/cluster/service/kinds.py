"""The kinds of objects that the service and the commands read, as the API's paths name them."""

from __future__ import annotations

from nri_policy.cluster.objects.device_claims import PLURALS
from nri_policy.cluster.workloads import kueue
from nri_policy.cluster.workloads.membership import POD_GROUP_API
from nri_policy.cluster.workloads.replica_kinds import FOLLOWED
from nri_policy.kube.client import NODES, PODS, ObjectKind

ZONES = ObjectKind(
    group="topology.node.k8s.io", version="v1alpha2", plural="noderesourcetopologies"
)
PLACEMENTS = ObjectKind(group="config.nri", version="v1alpha1", plural="clusterplacements")
PLACEMENT = "default"  # name of the ClusterPlacement that counts
GROUPS = ObjectKind(group="placement.nri", version="v1alpha1", plural="placementgroups")
JOBS = ObjectKind(group="batch", plural="jobs")
POD_GROUPS = ObjectKind(group=POD_GROUP_API[0], version=POD_GROUP_API[1], plural="podgroups")
JOB_SETS = ObjectKind(group="jobset.x-k8s.io", version="v1alpha2", plural="jobsets")
LEADER_WORKERS = ObjectKind(group="leaderworkerset.x-k8s.io", plural="leaderworkersets")
OWNERS = {
    kind: ObjectKind(group=group, version=version, plural=plural)
    for (api, kind), plural in FOLLOWED.items()
    for group, version in [api.split("/")]
}
BUDGETS = ObjectKind(group="policy", plural="poddisruptionbudgets")
CLASSES = ObjectKind(group="scheduling.k8s.io", plural="priorityclasses")
DEVICES = [ObjectKind(group="resource.k8s.io", plural=plural) for plural in PLURALS.values()]
WORKLOADS, CHECKS, FLAVORS, TOPOLOGIES = (
    ObjectKind(group=kueue.API[0], version=kueue.API[1], plural=plural)
    for plural in ("workloads", "admissionchecks", "resourceflavors", "topologies")
)
OLD_TOPOLOGIES = ObjectKind(group=kueue.API[0], version="v1beta1", plural="topologies")

OF_EXTENDER = (NODES, PODS, ZONES, PLACEMENTS)  # what its answers rest on
OF_GROUPS = (*OF_EXTENDER, JOBS, POD_GROUPS, *OWNERS.values(), JOB_SETS, LEADER_WORKERS, GROUPS)
OF_KUEUE = (WORKLOADS, CHECKS, FLAVORS)
