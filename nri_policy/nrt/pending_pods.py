"""Pods whose containers are still to come: what they will take, set aside before they take it.

A sandbox comes before its containers, and long before them where an image is pulled. What a
Guaranteed pod asks for in all is known with the sandbox; how it is split is not, so it is placed as
one container, by the engine itself, on a copy of what it holds. A pod that has no room as one is
left out: its containers may have it one by one.
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
    """Return the node as it will be with all its pods, and which pods are counted there in full.

    A Guaranteed pod comes as one container. What its own containers ask for already counts once,
    whatever they got for it. After a resize of one nothing is set aside unless the pod's amounts
    are `resized` too: what the sandbox said first holds no longer, and older runtimes do not tell
    what does. Nor once it is known that a pod has resources as a whole: its containers may never
    ask for all of that.
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
    """Return what is *asked* for beyond milli-CPU and bytes that are there; None: nothing."""
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
