"""Amounts of pods: the sum that a pod's containers ask for, through resizes; §3.1, §3.3.

The sandbox has it at the start. Runtimes report a later resize of the pod before or after those of
its containers, and older ones never. So it is also derived from the containers. Rule 1: a pod that
asked for the sum of its containers still does. Rule 2: a pod that asked for more, for containers
that ended or do not exist yet, asks at least for the sum. Rule 3: the amounts of a pod with
pod-level resources are never derived. Rule 4: the memory of such a pod is booked once (§3.2): with
its first container that has the pod's limit, less what the others book themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from msgspec.structs import replace

from nri_policy.engine.state.state import State
from nri_policy.manifests.quality_of_service import QoS
from nri_policy.workload.pod import Container, Resources, shares_of
from nri_policy.workload.request import Request

_PERIOD = 100_000  # µs; the kubelet's


def amounts_with(state: State, before: Container, after: Container) -> Resources | None:
    """Return the amounts of the pod of *after*, which was *before* until now; None: unknown.

    `after.pod.amounts` has the amounts until now.
    """
    pod, amounts = after.pod, after.pod.amounts
    if amounts is None or after.pod_level:
        return amounts
    others = [state.placed[each].container for each in state.of_pod(pod.id) if each != after.id]
    had, has = ([each.resources for each in (one, *others)] for one in (before, after))
    limit = _follow(amounts.cpu_limit or 0, had, has, lambda each: each.cpu_limit or 0)
    memory = _follow(amounts.memory_limit, had, has, lambda each: each.memory_limit)
    if pod.qos is QoS.GUARANTEED:
        shares = shares_of(limit) if limit else amounts.cpu_shares
    else:
        asked = _follow(amounts.cpu_request, had, has, lambda each: each.cpu_request)
        shares = amounts.cpu_shares if asked == amounts.cpu_request else shares_of(asked)
    if limit != (amounts.cpu_limit or 0):
        amounts = replace(amounts, cpu_quota=limit * _PERIOD // 1000, cpu_period=_PERIOD)
    return replace(amounts, cpu_shares=shares, memory_limit=memory)


def _follow(
    whole: int,
    had: Sequence[Resources],
    has: Sequence[Resources],
    amount: Callable[[Resources], int],
) -> int:
    """Return a pod's amount after its containers changed from *had* to *has*; 0 means none."""
    before, now = (sum(map(amount, each)) for each in (had, has))
    if not whole:
        return 0
    return whole + now - before if whole <= before else max(whole, now)


def share_amounts(state: State, pod_id: str, whole: Resources | None) -> list[Container]:
    """Set the pod's amounts to *whole* in all its containers.

    If that changes a container's request, the container is still to be resized; or it was resized
    already to the memory that its pod shrinks to. Return the latter, updated.
    """
    shrunk: list[Container] = []
    if whole is None:
        return shrunk
    for each in [*state.of_pod(pod_id)]:
        placed = state.placed[each]
        if placed.container.pod.amounts == whole:
            continue
        container = _of_pod(placed.container, whole)
        _, before, _ = state.layout.requests.read_admitted(placed.container)
        _, after, _ = state.layout.requests.read_admitted(container)
        if before.entitlement == after.entitlement:
            state.enter(replace(placed, container=container))
        elif after.pod_memory > before.pod_memory:
            shrunk.append(container)
    return shrunk


def _of_pod(container: Container, whole: Resources) -> Container:
    """Return *container* of a pod that asks for *whole*.

    A memory limit equal to the pod's counts as the pod's: both are booked alike.
    """
    container = replace(container, pod=replace(container.pod, amounts=whole))
    known = container.requirements
    if known is None or not container.pod_level or known.memory_limit != whole.memory_limit:
        return container
    return replace(container, requirements=replace(known, memory_limit=None))


def share_memory(state: State, coming: Container, request: Request) -> Request:
    """Book a pod's memory once, with one more container; return that container's request."""
    pod_id = coming.pod.id
    if pod_id in state.rooms:  # booked with the room
        return replace(request, memory=0) if request.pod_memory else request
    if not request.pod_memory and pod_id not in state.pod_memory:
        return request
    return _share(state, pod_id, (coming, request)) or request


def settle_memory(state: State, pod_ids: Iterable[str]) -> None:
    """Book the memory of each of these pods once, after containers have changed or gone."""
    for pod_id in pod_ids:
        if pod_id in state.pod_memory:
            _share(state, pod_id, None)


def _share(state: State, pod_id: str, coming: tuple[Container, Request] | None) -> Request | None:
    asked = {
        each: (state.placed[each].container.created, state.placed[each].request)
        for each in state.of_pod(pod_id)
    }
    if coming is not None:
        asked[coming[0].id] = coming[0].created, coming[1]
    whole = max(request.pod_memory for _, request in asked.values())
    own = sum(request.memory for _, request in asked.values() if not request.pod_memory)
    left = max(0, whole - own)
    result = None
    for each, (_, request) in sorted(asked.items(), key=lambda item: (item[1][0], item[0])):
        if not request.pod_memory:
            continue
        amount, left = left, 0
        if coming is not None and each == coming[0].id:
            result = replace(request, memory=amount)
        elif request.memory != amount:
            state.book_memory(each, amount)
    return result
