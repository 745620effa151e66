"""Reading: the node's state at one moment, and the NodeResourceTopology object made from it.

Owns the copied numbers. All numbers of an object come from one view, so they fit together. The
view is read only after the runtime has listed its containers: before, everything seems free. Slower
work is done with the Reading later, on another thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from nri_policy.engine.state.layout import Layout
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.manifests.quality_of_service import QoS
from nri_policy.node import Node, NodeView
from nri_policy.nrt.fingerprint import EXCLUSIVE, FINGERPRINT, METHOD, PODS, fingerprint, pod_hash
from nri_policy.nrt.numaplacement import METADATA, VECTOR, ContainerName, encode
from nri_policy.nrt.pending_pods import PodName, with_pending_pods
from nri_policy.nrt.zones import Devices, ZoneAmounts, measure, named_values, zone_cpus, zones
from nri_policy.report import NamedValue, ObjectName, ResourceTopology, plain
from nri_policy.settings import Alignment, OnExit

GROUP = "topology.node.k8s.io"
VERSION = "v1alpha2"
KIND = "NodeResourceTopology"

GENERATION = "nri-policy/generation"
STOPPED = "nri-policy/stopped"

LABELS = {"app.kubernetes.io/managed-by": "nri-policy"}  # a selector finds all of our objects

Object = dict[str, Any]


class Reading(Struct, frozen=True, kw_only=True):
    """One state of the node."""

    node: str
    layout: Layout
    amounts: ZoneAmounts
    devices: Devices
    pods: frozenset[PodName]  # started pods that schedulers count as having exclusive resources
    counted: frozenset[PodName]  # pods with their requests included in the amounts
    generation: int  # number of decisions before
    numa_nodes: Mapping[ContainerName, int] | None = (
        None  # by container, for `pods`; None: not published
    )

    def equals(self, other: Reading | None) -> bool:
        """Return whether *other* has the same content; the generation may differ."""
        return (
            other is not None
            and self.layout is other.layout
            and (self.amounts, self.devices, self.pods, self.counted, self.numa_nodes)
            == (other.amounts, other.devices, other.pods, other.counted, other.numa_nodes)
        )

    def document(self, *, stopped: bool = False) -> ResourceTopology:
        """Return what to publish; *stopped* marks it as the last one of a daemon."""
        aligned = self.layout.settings.alignment is Alignment.NUMA
        placement = None
        if self.numa_nodes is not None:
            placement = encode(self.numa_nodes, len(self.amounts.numa_milli))
        attributes: Mapping[str, object] = {
            "topologyManagerPolicy": "single-numa-node" if aligned else "none",
            "topologyManagerScope": "container",
            "TopologyPolicy": "topology-aware",
            FINGERPRINT: fingerprint(self.pods),
            METHOD: EXCLUSIVE,
            METADATA: "" if placement is None else placement.metadata,
            GENERATION: self.generation,
            STOPPED: "true" if stopped else "",
        }
        pods = " ".join(sorted(f"{pod_hash(*pod):016x}" for pod in self.counted))
        return ResourceTopology(
            api_version=f"{GROUP}/{VERSION}",
            kind=KIND,
            metadata=ObjectName(name=self.node),
            # also without pods: an empty list says that the amounts count no pod
            attributes=(*named_values(attributes), NamedValue(name=PODS, value=pods)),
            zones=zones(
                self.layout,
                self.amounts,
                self.devices,
                {node: {VECTOR: text} for node, text in placement.vectors.items()}
                if placement
                else {},
            ),
        )

    def object(self, *, stopped: bool = False) -> Object:
        """Return the document as an API object, with our labels."""
        written: Object = plain(self.document(stopped=stopped))
        written["metadata"]["labels"] = LABELS
        return written


class Feed:
    """Reads one node, and notifies publishers when there may be something new.

    *name* is the node's; *devices* returns all and free devices by NUMA node.
    """

    def __init__(
        self,
        node: Node,
        *,
        name: str,
        synchronized: asyncio.Event,
        devices: Callable[[], Devices] = dict,
    ) -> None:
        self.name = name
        self.synchronized = synchronized
        self._node = node
        self._devices = devices
        self.generation = 0  # counts the decisions
        self._followers: list[asyncio.Event] = []

    @property
    def wanted(self) -> bool:
        """Whether the settings in force want the object published."""
        return self._node.view.layout.settings.agent.node_resource_topology

    def stays_after_exit(self) -> bool:
        """Return whether the object stays when the daemon ends."""
        return self._node.view.layout.settings.on_exit is OnExit.KEEP

    def observe(self, *_: object) -> None:
        """Count a decision, as an observer of the node."""
        self.generation += 1
        self.changed()

    def changed(self) -> None:
        """Notify the publishers of a change; cheap."""
        for follower in self._followers:
            follower.set()

    def follow(self) -> asyncio.Event:
        """Return an event that is set now and after each change."""
        follower = asyncio.Event()
        follower.set()
        self._followers.append(follower)
        return follower

    async def read(self) -> Reading:
        """Read the present state."""
        self._node.catch_up()
        now = self._node.view
        view, counted = with_pending_pods(self._node)
        reading = Reading(
            node=self.name,
            layout=view.layout,
            amounts=measure(view),
            devices=self._devices(),
            pods=frozenset(
                (each.namespace, each.name) for each in now.pods.values() if each.counted
            ),
            counted=counted,
            generation=self.generation,
        )
        if now.layout.settings.agent.numa_placement:  # on another thread: it reads all containers
            found = await asyncio.to_thread(numa_nodes, now, reading.pods)
            reading = replace(reading, numa_nodes=found)
        return reading


def numa_nodes(view: NodeView, pods: Collection[PodName]) -> dict[ContainerName, int] | None:
    """Return the NUMA node of each container of *pods*, as schedulers count these; nrt.md §1.6.

    These are the containers of Guaranteed pods with any CPU amount, because their memory is
    exclusive too (scheduler-plugins' `IsExclusive`). The format has one node for each container,
    and a reader rejects it if a container is missing. So the result is None if a container has CPUs
    or memory of several nodes, or if a pod is not Guaranteed: of such a pod schedulers count the
    containers with devices, which are not known here.
    """
    tree, found = view.layout.tree, dict[ContainerName, int]()
    places = [
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
        node = next((n for n, own, near in places if cpus <= own and mems <= near), None)
        if node is None or not cpus or pod.qos is not QoS.GUARANTEED:
            return None
        found[pod.namespace, pod.name, container.name] = node
    return found
