"""The amounts of a pod during a resize in place, by its status (KEP-1287).

kube-scheduler counts of each container the largest of what it requests, what the kubelet allocated
and what the runtime has. Of a resize that the node can never do, the request does not count.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from nri_policy.cluster.objects.document import Amounts, Wire, convert, join, parse_amounts

PENDING, IN_PROGRESS = "PodResizePending", "PodResizeInProgress"  # conditions of a pod
INFEASIBLE = "Infeasible"  # the reason of PENDING
POD = ""  # the pod itself, among its containers

_Quantities = dict[str, Wire]


class _Resources(Struct, gc=False):
    requests: _Quantities | None = None


class _Holder(Struct, rename="camel", gc=False):
    name: str = POD
    allocated_resources: _Quantities | None = None
    resources: _Resources | None = None


class _Status(_Holder, rename="camel", gc=False):
    container_statuses: list[_Holder] | None = None
    init_container_statuses: list[_Holder] | None = None


class _Pod(Struct, gc=False):
    status: _Status


def read_held(value: object, path: str) -> dict[str, Amounts]:
    """Return what the status of a Pod object says that its containers, and the pod itself, have.

    Containers that the status does not describe are left out. Raises DocumentError.
    """
    status = convert(value, _Pod, path).status
    place = join(path, "status")
    found = {}
    for each in (
        status,
        *(status.container_statuses or ()),
        *(status.init_container_statuses or ()),
    ):
        running = each.resources.requests if each.resources else None
        if running or each.allocated_resources:
            found[each.name] = larger(
                parse_amounts(running, place), parse_amounts(each.allocated_resources, place)
            )
    return found


def count_held(
    requests: Amounts, limits: Amounts, held: Amounts | None, *, infeasible: bool
) -> Mapping[str, Amounts]:
    """Return the `requests` and `limits` that count of one that has *held* amounts.

    A limit that was the request stays the request: a resize keeps the QoS class.
    """
    if held is None:
        return {}
    counted = held if infeasible else larger(requests, held)
    return {
        "requests": counted,
        "limits": {
            name: counted.get(name, limit) if requests.get(name) == limit else limit
            for name, limit in limits.items()
        },
    }


def larger(one: Amounts, other: Amounts) -> Amounts:
    """Return of each resource the larger amount."""
    return {name: max(one.get(name, 0), other.get(name, 0)) for name in {**one, **other}}
