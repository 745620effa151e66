"""What the service follows, and who is told of it: the extender, and the controller of groups."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nri_policy.cluster.controller import Controller
from nri_policy.cluster.group import read_group
from nri_policy.cluster.membership import read_job
from nri_policy.cluster.node import read_node
from nri_policy.cluster.pod import read_pod
from nri_policy.cluster.promises import LiveZones
from nri_policy.cluster.service_spread import ServiceSpread
from nri_policy.cluster.watch import PODS, ZONES, Key, Source
from nri_policy.cluster.zone import read_zones
from nri_policy.kube.client import NODES, Kind

JOBS = Kind(group="batch", plural="jobs")
GROUPS = Kind(group="placement.nri", version="v1alpha1", plural="placementgroups")

OF_EXTENDER = (NODES, PODS, ZONES)  # what its answers rest on
OF_GROUPS = (NODES, PODS, ZONES, JOBS, GROUPS)

Object = dict[str, Any]


def extender_sources(zones: LiveZones, spread: ServiceSpread) -> list[Source]:
    """Return what the extender follows."""

    def take_node(item: Object) -> None:
        node = read_node(item, "")
        zones.set_node(node)
        spread.set_node(node)

    def remove_node(key: Key) -> None:
        zones.remove_node(key[1])
        spread.remove_node(key[1])

    def take_pod(item: Object) -> None:
        pod = read_pod(item, "")
        zones.set_pod(pod)
        spread.set_pod(pod)

    def remove_pod(key: Key) -> None:
        zones.remove_pod(*key)
        spread.remove_pod(*key)

    return [
        Source(
            kind=NODES,
            take=take_node,
            remove=remove_node,
            known=lambda: [("", name) for name in zones.nodes()],
        ),
        Source(kind=PODS, take=take_pod, remove=remove_pod, known=zones.pods),
        Source(
            kind=ZONES,
            take=lambda item: zones.set_zones(read_zones(item, "")),
            remove=lambda key: zones.remove_zones(key[1]),
            known=lambda: [("", name) for name in zones.reports()],
            spoiled=lambda key: zones.remove_zones(key[1], stale=True),
        ),
    ]


def sources(
    zones: LiveZones, spread: ServiceSpread, controller: Controller, wake: Callable[[], object]
) -> list[Source]:
    """Return what the extender and the controller follow; *wake* is called after each change."""
    nodes, pods, reports = extender_sources(zones, spread)

    def take_node(item: Object) -> None:
        node = read_node(item, "")
        zones.set_node(node)
        spread.set_node(node)
        controller.set_node(node)

    def take_pod(item: Object) -> None:
        pod = read_pod(item, "")
        zones.set_pod(pod)
        spread.set_pod(pod)
        controller.set_pod(pod)

    def take_zones(item: Object) -> None:
        found = read_zones(item, "")
        zones.set_zones(found)
        controller.set_zones(found)

    def take_group(item: Object) -> None:
        metadata = item["metadata"]
        owners = frozenset(each.get("uid", "") for each in metadata.get("ownerReferences") or ())
        controller.set_group(read_group(item), metadata["resourceVersion"], owners)

    def both(first: Callable[[Key], None], second: Callable[[Key], None]) -> Callable[[Key], None]:
        def remove(key: Key) -> None:
            first(key)
            second(key)

        return remove

    found = [
        Source(
            kind=NODES,
            take=take_node,
            remove=both(nodes.remove, lambda key: controller.remove_node(key[1])),
            known=nodes.known,
        ),
        Source(
            kind=PODS,
            take=take_pod,
            remove=both(pods.remove, lambda key: controller.remove_pod(*key)),
            known=lambda: {*zones.pods(), *controller.members.pods()},
        ),
        Source(
            kind=ZONES,
            take=take_zones,
            remove=both(reports.remove, lambda key: controller.remove_zones(key[1])),
            known=reports.known,
            spoiled=reports.spoiled,
        ),
        Source(
            kind=JOBS,
            take=lambda item: controller.set_job(read_job(item, "")),
            remove=lambda key: controller.remove_job(*key),
            known=controller.members.jobs,
        ),
        Source(
            kind=GROUPS,
            take=take_group,
            remove=lambda key: controller.remove_group(*key),
            known=controller.groups,
        ),
    ]
    return [_waking(each, wake) for each in found]


def _waking(source: Source, wake: Callable[[], object]) -> Source:
    """Return *source* with *wake* called after each change."""

    def take(item: Object) -> None:
        source.take(item)
        wake()

    def remove(key: Key) -> None:
        source.remove(key)
        wake()

    return Source(source.kind, take, remove, source.known, source.spoiled)
