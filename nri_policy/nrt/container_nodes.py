"""Which NUMA node each container is on that `numaplacement` lists; spec nrt.md §1.6.

Schedulers count the containers of Guaranteed pods with any CPU amount, because their memory is
exclusive too (scheduler-plugins' `IsExclusive`). The format has one node for each container, and a
reader rejects it if a container is missing: so there is nothing to list if one is on several nodes.
"""

from __future__ import annotations

from collections.abc import Collection

from nri_policy.foundation.cpuset import CPUSet
from nri_policy.manifests.quality_of_service import QoS
from nri_policy.node import NodeView
from nri_policy.nrt.numaplacement import ContainerName
from nri_policy.nrt.pending_pods import PodName
from nri_policy.nrt.zones import zone_cpus


def numa_nodes(view: NodeView, pods: Collection[PodName]) -> dict[ContainerName, int] | None:
    """Return the NUMA node of each container of *pods*, the pods that schedulers count.

    None if a container has CPUs or memory of several nodes, or if a pod is not Guaranteed: of such
    a pod schedulers count the containers with devices, and this module does not know the devices.
    """
    tree, found = view.layout.tree, dict[ContainerName, int]()
    zones = [
        (number, cpus, CPUSet.union(tree.around(cpus).memory.values()))
        for number, cpus in enumerate(zone_cpus(view.layout.machine))
        if cpus
    ]
    for placed in view.placed.values():
        container, mems = placed.container, placed.grant.mems
        pod = container.pod
        if (pod.namespace, pod.name) not in pods:
            continue
        cpus = view.cpus(placed)
        node = next((n for n, own, near in zones if cpus <= own and mems <= near), None)
        if node is None or not cpus or pod.qos is not QoS.GUARANTEED:
            return None
        found[pod.namespace, pod.name, container.name] = node
    return found
