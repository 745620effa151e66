"""What the service follows, and which parts get it: the extender, the controller, the settings."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial

from msgspec import Raw, Struct
from msgspec.structs import replace

from nri_policy.cluster.groups.controller import Controller
from nri_policy.cluster.numa.admission import NumaAdmission
from nri_policy.cluster.numa.node_pods import NodePods
from nri_policy.cluster.numa.promised_room import PromisedRoom
from nri_policy.cluster.numa.promises import LiveZones
from nri_policy.cluster.numa.service_spread import ServiceSpread
from nri_policy.cluster.numa.workload_places import WorkloadPlaces
from nri_policy.cluster.objects.budget import read_budget
from nri_policy.cluster.objects.document import convert
from nri_policy.cluster.objects.metadata import Key, ObjectMeta
from nri_policy.cluster.objects.node import read_node
from nri_policy.cluster.objects.pod import read_pod
from nri_policy.cluster.requests.group import read_group
from nri_policy.cluster.service.kinds import (
    BUDGETS,
    CHECKS,
    FLAVORS,
    GROUPS,
    JOB_SETS,
    JOBS,
    LEADER_WORKERS,
    OWNERS,
    PLACEMENTS,
    POD_GROUPS,
    TOPOLOGIES,
    WORKLOADS,
    ZONES,
)
from nri_policy.cluster.service.live_settings import LiveSettings
from nri_policy.cluster.service.watch import WatchedKind
from nri_policy.cluster.view import Cluster
from nri_policy.cluster.workloads.job_sets import read_job_set_steps, read_led_workers
from nri_policy.cluster.workloads.kueue import group_of, read_check, read_flavor, read_workload
from nri_policy.cluster.workloads.membership import read_job, read_pod_group
from nri_policy.cluster.workloads.replica_kinds import read_owner
from nri_policy.cluster.zones.zone import read_zones
from nri_policy.kube.client import NODES, PODS, ObjectKind, decode


class _Identified(Struct):
    metadata: ObjectMeta


def list_sources(  # noqa: PLR0913, PLR0917 - the receivers
    settings: LiveSettings,
    cluster: Cluster,
    zones: LiveZones,
    spread: ServiceSpread,
    pods: NodePods,
    controller: Controller | None,
    room: PromisedRoom | None,
    admission: NumaAdmission | None,
    wake: Callable[[], object],
) -> list[WatchedKind]:
    """Return what is followed: for the extender, for groups where there is a *controller*.

    The *room* of nodes is what is left beside their places. For Kueue where there is its
    *admission* check. *wake* is called after each change.
    """
    also = [] if controller is None else [controller]
    kueue = [] if admission is None else [admission.places]
    found = [
        *_of_settings(settings),
        _nodes(cluster),
        _pods(
            zones,
            [spread, pods, *also, *([] if room is None else [room]), *kueue],
            [zones.pods, *(each.members.pods for each in also), *(each.pods for each in kueue)],
        ),
        _reports(cluster),
        _budgets(pods),
        *(source for each in also for source in _of_groups(each)),
        *([] if admission is None else _of_kueue(admission, controller)),
    ]
    return [_wake_after(each, wake) for each in found]


def _of_settings(settings: LiveSettings) -> list[WatchedKind]:
    return [
        WatchedKind(
            kind=PLACEMENTS,
            take=lambda item: settings.set_object(decode(item)),
            remove=lambda key: settings.remove_object(key[1]),
            known=settings.objects,
            optional=True,  # where the kind is not installed
        ),
        WatchedKind(
            kind=TOPOLOGIES,
            take=lambda item: settings.set_topology(decode(item)),
            remove=lambda key: settings.remove_topology(key[1]),
            known=settings.topologies,
            optional=True,  # where the kind is not installed
        ),
    ]


def _nodes(cluster: Cluster) -> WatchedKind:
    return WatchedKind(
        kind=NODES,
        take=lambda item: cluster.set_node(read_node(item, "")),
        remove=lambda key: cluster.remove_node(key[1]),
        known=lambda: [("", name) for name in cluster.view.nodes],
    )


def _pods(
    zones: LiveZones,
    others: Sequence[ServiceSpread | NodePods | Controller | PromisedRoom | WorkloadPlaces],
    known: Sequence[Callable[[], Collection[Key]]],
) -> WatchedKind:
    def take(item: Raw) -> None:
        pod = read_pod(item, "")
        for each in (zones, *others):
            each.set_pod(pod)

    def remove(key: Key) -> None:
        for each in (zones, *others):
            each.remove_pod(*key)

    return WatchedKind(
        kind=PODS, take=take, remove=remove, known=lambda: {key for each in known for key in each()}
    )


def _budgets(pods: NodePods) -> WatchedKind:
    def take(item: Raw) -> None:
        document = decode(item)
        key = convert(document, _Identified, "").metadata.key("", "a budget")
        pods.set_budget(key, read_budget(document, ""))

    return WatchedKind(
        kind=BUDGETS, take=take, remove=lambda key: pods.set_budget(key, None), known=pods.budgets
    )


def _reports(cluster: Cluster) -> WatchedKind:
    return WatchedKind(
        kind=ZONES,
        take=lambda item: cluster.set_zones(read_zones(item, "")),
        remove=lambda key: cluster.remove_zones(key[1]),
        known=lambda: [("", name) for name in cluster.view.zones.keys() | cluster.view.stale],
        spoiled=lambda key: cluster.remove_zones(key[1], stale=True),
        optional=True,  # a cluster without exporters
    )


def _of_groups(controller: Controller) -> list[WatchedKind]:
    def take_group(item: Raw) -> None:
        metadata = convert(item, _Identified, "").metadata
        owners = frozenset(each.uid for each in metadata.owner_references or ())
        # also for an unreadable object: a new leader waits for its revision
        key = metadata.key("", "a group")
        controller.groups.update(key, revision=metadata.resource_version)
        controller.set_group(read_group(item), metadata.resource_version, owners)

    return [
        WatchedKind(
            kind=JOBS,
            take=lambda item: controller.set_job(read_job(item, "")),
            remove=lambda key: controller.remove_job(*key),
            known=controller.members.jobs,
        ),
        WatchedKind(
            kind=POD_GROUPS,
            take=lambda item: controller.set_pod_group(read_pod_group(item, "")),
            remove=lambda key: controller.remove_pod_group(*key),
            known=controller.members.pod_groups,
            optional=True,  # where Kubernetes does not serve it
            unreadable=partial(controller.set_unreadable, POD_GROUPS.plural),
        ),
        *(_owners(controller, name, kind) for name, kind in OWNERS.items()),
        WatchedKind(
            kind=JOB_SETS,
            take=lambda item: controller.set_job_set(read_job_set_steps(decode(item), "")),
            remove=controller.remove_job_set,
            known=controller.members.job_sets,
            optional=True,  # where the kind is not installed
            unreadable=partial(controller.set_unreadable, JOB_SETS.plural),
        ),
        WatchedKind(
            kind=LEADER_WORKERS,
            take=lambda item: controller.set_leader_workers(*read_led_workers(decode(item), "")),
            remove=lambda key: controller.set_leader_workers(key, None),
            known=controller.members.leader_worker_sets,
            optional=True,  # where the kind is not installed
            unreadable=partial(controller.set_unreadable, LEADER_WORKERS.plural),
        ),
        WatchedKind(
            kind=GROUPS,
            take=take_group,
            remove=lambda key: controller.remove_group(*key),
            known=controller.groups.known,
        ),
    ]


def _owners(controller: Controller, name: str, kind: ObjectKind) -> WatchedKind:
    return WatchedKind(
        kind=kind,
        take=lambda item: controller.set_owner(read_owner(decode(item), name, "")),
        remove=lambda key: controller.members.remove_owner((name, *key)),
        known=lambda: controller.members.owners(name),
        optional=True,  # where the kind is not installed
        unreadable=partial(controller.set_unreadable, kind.plural),
    )


def _of_kueue(admission: NumaAdmission, controller: Controller | None) -> list[WatchedKind]:
    """Return what is followed of Kueue; its topology assignments count as groups, if there are any.

    Where Kueue is not installed, there is nothing.
    """

    def take_workload(item: Raw) -> None:
        workload = read_workload(item, "")
        admission.set_workload(workload)
        if controller is not None:
            controller.set_assigned(group_of(workload))

    def remove_workload(key: Key) -> None:
        admission.remove_workload(key)
        if controller is not None:
            controller.remove_assigned(key)

    return [
        WatchedKind(
            kind=WORKLOADS,
            take=take_workload,
            remove=remove_workload,
            known=admission.workloads.keys,
            optional=True,
        ),
        WatchedKind(
            kind=CHECKS,
            take=lambda item: admission.set_check(read_check(item, "")),
            remove=lambda key: admission.remove_check(key[1]),
            known=lambda: [("", name) for name in admission.checks],
            optional=True,
        ),
        WatchedKind(
            kind=FLAVORS,
            take=lambda item: admission.set_flavor(read_flavor(item, "")),
            remove=lambda key: admission.remove_flavor(key[1]),
            known=lambda: [("", name) for name in admission.flavors],
            optional=True,
        ),
    ]


def _wake_after(source: WatchedKind, wake: Callable[[], object]) -> WatchedKind:
    """Return *source* with *wake* called after each change."""

    def take(item: Raw) -> None:
        source.take(item)
        wake()

    def remove(key: Key) -> None:
        source.remove(key)
        wake()

    def unreadable(why: str) -> None:
        if source.unreadable is not None:
            source.unreadable(why)
            wake()

    woken = replace(source, take=take, remove=remove)
    return woken if source.unreadable is None else replace(woken, unreadable=unreadable)
