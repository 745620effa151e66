"""Pods with a sandbox but not all of their containers: their resources count as used already.

A sandbox is created before the containers, long before them if an image must be pulled. It has
the sum of a Guaranteed pod's requests, but not each container's. So a fork of the engine places the
pod as one container. A pod that does not fit as a whole is skipped: its containers may still fit
one by one.
"""

from __future__ import annotations

from collections import Counter

from msgspec.structs import replace

from nri_policy.engine.engine import Engine
from nri_policy.engine.event import Created
from nri_policy.foundation.refusal import Refused
from nri_policy.manifests.quality_of_service import QoS
from nri_policy.node import Node, NodeView, view_of
from nri_policy.workload.pod import Resources, shares_of

PodName = tuple[str, str]  # namespace and name

_PERIOD = 100_000  # µs


def with_pending_pods(node: Node) -> tuple[NodeView, frozenset[PodName]]:
    """Return the node as if all pods had their containers, and the pods that it counts in full.

    The part of a Guaranteed pod's requests that its containers do not have yet is placed as one
    container. Nothing is placed for a pod with a resized container unless the pod's own amounts are
    `resized` too: the sandbox's first amounts are stale, and older runtimes do not send new ones.
    Nor for a pod with pod-level resources: its containers may never request all of them.
    """
    milli, memory = Counter[str](), Counter[str]()
    resized, as_a_whole = set[str](), set[str]()
    for placed in node.view.placed.values():
        container = placed.container
        milli[container.pod.id] += _milli(container.resources)
        memory[container.pod.id] += container.resources.memory_limit
        if container.resized:
            resized.add(container.pod.id)
        if container.pod_level:
            as_a_whole.add(container.pod.id)
    trial: Engine | None = None
    no_room = set[str]()
    for pod in filter(None, [each.whole for each in node.view.pods.values()]):
        if (pod.pod.id in resized and not pod.resized) or pod.pod.id in as_a_whole:
            continue
        if pod.pod.id in node.view.rooms:
            continue
        rest = _rest(pod.resources, milli[pod.pod.id], memory[pod.pod.id])
        if rest is not None:
            trial = trial or node.fork()
            try:
                trial.handle(Created(container=replace(pod, resources=rest)))
            except Refused:
                no_room.add(pod.pod.id)
    view = node.view if trial is None else view_of(trial)
    holders = (each.container.pod for each in (*view.placed.values(), *view.rooms.values()))
    return view, frozenset(
        (pod.namespace, pod.name)
        for pod in holders
        if pod.qos is not QoS.BEST_EFFORT and pod.id not in no_room
    )


def _rest(asked: Resources, milli: int, memory: int) -> Resources | None:
    """Return the requests beyond *milli* and *memory*; None if there are none."""
    milli = _milli(asked) - milli
    memory = asked.memory_limit - memory
    if milli <= 0:
        return None
    return Resources(
        cpu_shares=shares_of(milli),
        cpu_quota=milli * _PERIOD // 1000,
        cpu_period=_PERIOD,
        memory_limit=max(0, memory),
    )


def _milli(asked: Resources) -> int:
    return asked.cpu_limit or asked.cpu_request
