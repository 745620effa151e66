"""Placing, fitting and spreading without a cluster: plain values in, plain values out.

`cluster` is a dict of lists of Kubernetes objects as plain dicts, every key optional:

| key | |
|---|---|
| `nodes`, `pods` | Node and Pod objects |
| `zones` | NodeResourceTopology objects |
| `groups` | PlacementGroup objects; their assignments are in use |
| `jobsets` | JobSet objects: a step goes where later ones that share its domain fit, too |
| `topologies` | Kueue's Topology objects; those of the settings win by name |
| `budgets` | PodDisruptionBudget objects, for plans of moves |
| `classes` | PriorityClass objects, for pods that name them |
| `failures` | node name -> recent failures of the service asked about |
| `stale` | names of the nodes whose zones are not to be trusted |

`settings` is a ClusterPlacement object, or None for the defaults. All raise DocumentError, a
ValueError with the path of what is wrong.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial

import msgspec
from msgspec.structs import replace

from nri_policy.cluster.engine.engine import Engine
from nri_policy.cluster.groups.ungating import find_pods_without_place
from nri_policy.cluster.numa.fit import reason_of
from nri_policy.cluster.numa.promises import LiveZones
from nri_policy.cluster.numa.report import live_zones
from nri_policy.cluster.numa.zone_limits import ZoneLimits
from nri_policy.cluster.objects.document import DocumentError, Object
from nri_policy.cluster.objects.metadata import Key
from nri_policy.cluster.objects.pod import Pod, read_pod
from nri_policy.cluster.objects.settings import ClusterSettings, read_settings, with_topologies
from nri_policy.cluster.requests.group import named_group, places_by_pod_set, read_group
from nri_policy.cluster.snapshot import ClusterSnapshot, read_snapshot
from nri_policy.cluster.view import Cluster
from nri_policy.cluster.workloads.kueue import assigned_group, group_of
from nri_policy.foundation.clock import Clock
from nri_policy.foundation.wording import quoted
from nri_policy.native._numa_fit import FITS


def place(cluster: Object, group: Object, settings: Object | None = None) -> Object:
    """Return the status of the PlacementGroup *group* if it were placed now.

    It has `state`, `message`, `assignments`; refused is `Unplaceable` with the reason and none.
    A group with `status.assignments` and `status.unhealthyNodes` asks for a replacement.
    """
    with _text_errors():
        asked, snapshot = read_group(group), read_snapshot(cluster)
        if asked.status.assignments:  # which count, not those of the same group in the cluster
            others = (each for each in snapshot.groups if each.key != asked.key)
            snapshot = replace(snapshot, groups=(*others, asked))
        status = engine_of(snapshot, read_settings(settings)).place(asked)
    return {
        "state": status.state,
        "message": status.message,
        "assignments": msgspec.to_builtins(status.assignments),
    }


def fit(cluster: Object, pod: Object, settings: Object | None = None) -> dict[str, Object]:
    """Return, by node name, `fits`, `reason` (empty where it fits) and `score` (0 to 100)."""
    with _text_errors():
        view = cluster_of(read_snapshot(cluster)).view
        asked, extender = read_pod(pod, ""), read_settings(settings).extender
        fits = LiveZones(extender, view, Clock(now=lambda: 0.0)).fits  # nothing is promised
        answer = fits.ask(fits.request(asked))
    return {
        name: {
            "fits": answer.verdicts[slot] == FITS,
            "reason": reason_of(answer.verdicts[slot]),
            "score": answer.scores[slot],
        }
        for name, slot in fits.slots.items()
    }


def spread(cluster: Object, group: Object, settings: Object | None = None) -> dict[str, int]:
    """Return, by node name, the pods of *group* placed there; those not placed under ""."""
    with _text_errors():
        snapshot = read_snapshot(cluster)
        engine = engine_of(snapshot, read_settings(settings))
        return engine.spread(read_group(group), snapshot.failures)


@contextmanager
def _text_errors() -> Iterator[None]:
    """Refuse texts with half a surrogate pair: Python has them, JSON and YAML from files do not."""
    try:
        yield
    except UnicodeEncodeError as error:
        raise DocumentError("", f"{quoted(error.object)} is not Unicode text") from None


def cluster_of(snapshot: ClusterSnapshot) -> Cluster:
    """Return the nodes of *snapshot* and their reports, without stale reports."""
    cluster = Cluster(snapshot.nodes, snapshot.zones)
    for name in snapshot.stale:
        cluster.remove_zones(name, stale=True)
    return cluster


def engine_of(
    snapshot: ClusterSnapshot, settings: ClusterSettings, cluster: Cluster | None = None
) -> Engine:
    """Return an engine with the pods and groups of *snapshot*.

    Pass *cluster*, made by `cluster_of`, to change nodes later.
    """
    view = (cluster or cluster_of(snapshot)).view
    settings = with_topologies(settings, snapshot.topologies)
    zones = cache(partial(live_zones, snapshot, settings))
    engine = Engine(settings, view, partial(ZoneLimits, zones))
    load(engine, snapshot)
    return engine


def load(engine: Engine, snapshot: ClusterSnapshot) -> None:
    """Have an engine take in the pods and the groups of *snapshot*."""
    alone = []
    for pod in snapshot.pods:
        named = assigned_group(pod)
        if named is None:
            named = named_group(pod)
        if named is not None:
            engine.state.set_member(pod, named)
        elif pod.node and not pod.finished:
            alone.append(pod)
    engine.state.add_pods(alone)
    for job_set in snapshot.job_sets:
        engine.state.usages.plan(job_set.key, job_set.together)
    assigned = (group_of(each) for each in snapshot.workloads)
    for group in (*snapshot.groups, *(each for each in assigned if each.status.assignments)):
        engine.state.set_group(group)
    for pod in find_pods_elsewhere(snapshot):
        engine.state.set_member(pod, None)


def count_open_places(snapshot: ClusterSnapshot) -> int:
    """Return how many places groups have, Kueue's too, for pods that are not bound yet."""
    places = Counter[Key]()
    for group in (*snapshot.groups, *map(group_of, snapshot.workloads)):
        places[group.key] = places_by_pod_set(group).total()
    for pod in snapshot.pods if places else ():
        if pod.node and not pod.finished:
            places[pod.namespace, assigned_group(pod) or named_group(pod) or ""] -= 1
    return (+places).total()


def find_pods_elsewhere(snapshot: ClusterSnapshot) -> list[Pod]:
    """Return the pods that run where their group has no place: they count there, beside these."""
    nodes = {each.name: each for each in snapshot.nodes}
    groups = {each.key: each.status.assignments for each in snapshot.groups}
    pods: dict[Key, list[Pod]] = {}
    for pod in snapshot.pods if groups else ():
        key = (pod.namespace, named_group(pod) or "")
        if groups.get(key) and pod.node in nodes and not pod.finished:
            pods.setdefault(key, []).append(pod)
    return [
        pod for key, own in pods.items() for pod in find_pods_without_place(groups[key], own, nodes)
    ]
