"""Which pods a node's report counts, by what the report itself says of them (spec nrt.md §1.5).

| the report has | it counts |
|---|---|
| `nri-policy/pods` | the pods with these hashes |
| a fingerprint of the method `all`, or of none | those of the bound pods whose fingerprint it is |
| one of `with-exclusive-resources` | the same, of pods with resources of its zones to themselves |
| neither | unknown |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from msgspec import Struct

from nri_policy.cluster.objects.document import CPU
from nri_policy.cluster.objects.metadata import Key
from nri_policy.cluster.objects.pod import PodSpec
from nri_policy.cluster.zones.numa_node import zone_id
from nri_policy.cluster.zones.numa_request import GUARANTEED, is_shared, qos_class
from nri_policy.cluster.zones.zone import NodeZones
from nri_policy.nrt.fingerprint import EXCLUSIVE, FINGERPRINT, METHOD, PODS, fingerprint, pod_hash
from nri_policy.nrt.numaplacement import METADATA, decode


class BoundPod(Struct, frozen=True, gc=False):
    """A pod on a node: what it has to itself there, what it asks, and the zone it was sent to."""

    own: frozenset[str]
    spec: PodSpec
    zone: int | None


def find_own_resources(spec: PodSpec) -> frozenset[str]:
    """Return the resources that a pod has to itself where its node aligns it."""
    guaranteed = qos_class(spec) == GUARANTEED
    lasting = [*spec.containers, *(each for each in spec.init_containers if each.sidecar)]
    return _shared(
        frozenset(
            name
            for each in lasting
            for name, amount in each.requests.items()
            if amount and (guaranteed or not is_shared(name))
        )
    )


@lru_cache(maxsize=1024)  # equal sets are held once
def _shared(names: frozenset[str]) -> frozenset[str]:
    return names


def lists_pods(report: NodeZones) -> bool:
    """Return whether a report lists the pods that it counts, as our daemon's does."""
    return any(name == PODS for name, _ in report.attributes)


def omits_pod(report: NodeZones, pod: Key) -> bool:
    """Return whether a report lists its pods, and *pod* is none of them."""
    return lists_pods(report) and not select_counted(report, {}, [pod])


def select_counted(
    report: NodeZones, bound: Mapping[Key, BoundPod], waiting: Sequence[Key]
) -> Sequence[Key] | None:
    """Return which of the *waiting* pods the report includes; None if it cannot be known.

    *bound* are the pods of its node; *waiting* are the latest of them, in the order of binding,
    which is the order in which a node starts pods.
    """
    attributes = dict(report.attributes)
    listed = attributes.get(PODS)
    if listed is not None:
        hashes = {*listed.split()}
        return [pod for pod in waiting if f"{pod_hash(*pod):016x}" in hashes]
    printed = attributes.get(FINGERPRINT)
    if printed is None:
        return None
    counted = {*bound}
    if attributes.get(METHOD) == EXCLUSIVE:
        here = {name for zone in report.zones for name in zone.free}
        counted = {pod for pod, each in bound.items() if not each.own.isdisjoint(here)}
    waiting = [pod for pod in waiting if pod in counted]
    for arrived in range(len(waiting), -1, -1):
        if fingerprint(counted.difference(waiting[arrived:])) == printed:
            return waiting[:arrived]
    return []


def zones_by_pod(report: NodeZones, bound: Mapping[Key, BoundPod]) -> dict[Key, tuple[int, ...]]:
    """Return the NUMA nodes of the containers of *bound* pods, in their order, by `numaplacement`.

    These are the pods that the report counts. Sidecars come first. Nothing if it does not say.
    """
    metadata = dict(report.attributes).get(METADATA)
    if metadata is None:
        return {}
    pods = {
        key: [
            (*key, container.name)
            for container in (
                *(one for one in each.spec.init_containers if one.sidecar),
                *each.spec.containers,
            )
        ]
        for key, each in bound.items()
        if CPU in each.own
    }
    vectors = {
        number: zone.containers
        for zone in report.zones
        if zone.containers and (number := zone_id(zone.name)) is not None
    }
    every = (container for containers in pods.values() for container in containers)
    found = decode(metadata, vectors, every)
    if found is None:
        return {}
    return {key: tuple(found[each] for each in containers) for key, containers in pods.items()}
