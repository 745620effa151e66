"""The taint and condition of a Node that show whether its daemon works, and its Lease.

Owns their names and how they are written, for the daemon, which is alive, and for the cluster's
service, which notices a dead one. Rule: other taints and conditions are never changed. Taints are
one list, so a write names the revision that it was made from, and is repeated after a conflict.

A Lease shows that a daemon lives, because no other object does: a NodeResourceTopology object that
is applied unchanged causes no event, and a Node is large and watched by all kubelets, proxies and
schedulers. For the same reason the kubelet has a Lease.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from http.client import CONFLICT
from typing import Any

from nri_policy.kube.client import NODES, Client, Object
from nri_policy.kube.errors import APIError

TAINT = "nri-policy.io/not-ready"
EFFECT = "NoSchedule"  # not NoExecute: it never evicts
CONDITION = "NRIPolicyReady"

NAMESPACE = "nri-policy-nodes"  # has only the Leases, one per Node, with its name
WHILE_AWAY = "nri-policy.io/while-away"  # annotation of a Lease: what to mark if it expires
RENEW = 20.0  # seconds between two renewals
SILENT = 60.0  # seconds without a renewal after which a daemon counts as dead

_ATTEMPTS = 5  # of a write to a Node that others write at the same time


def has_taint(node: Object) -> bool:
    """Return whether a Node has our taint."""
    return any(map(_is_ours, _taints(node)))


async def set_taint(client: Client, name: str, *, present: bool) -> bool:
    """Add or remove our taint of a Node; return whether it changed. Raises APIError."""
    for attempt in range(1, _ATTEMPTS + 1):
        node = await client.get(NODES, name)
        if has_taint(node) is present:
            return False
        taints = [each for each in _taints(node) if not _is_ours(each)]
        if present:
            taints.append({"key": TAINT, "effect": EFFECT})
        patch = {
            "metadata": {"resourceVersion": node["metadata"]["resourceVersion"]},
            "spec": {"taints": taints or None},
        }
        try:
            await client.merge(NODES, name, patch)
        except APIError as error:
            if error.code != CONFLICT or attempt == _ATTEMPTS:
                raise
        else:
            break
    return True


def condition_of(node: Object) -> Mapping[str, Any]:
    """Return our condition of a Node, empty if it has none."""
    conditions = (node.get("status") or {}).get("conditions") or []
    return next((each for each in conditions if each.get("type") == CONDITION), {})


async def set_condition(  # noqa: PLR0913 - keywords: the fields of a condition
    client: Client, node: Object, *, status: str, reason: str, message: str, now: float
) -> bool:
    """Write our condition of *node* if it differs; return whether it changed.

    *now* is in seconds since the epoch. Raises APIError.
    """
    known = condition_of(node)
    new = {"type": CONDITION, "status": status, "reason": reason, "message": message}
    if all(known.get(key) == value for key, value in new.items()):
        return False
    stamp = datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    since = known.get("lastTransitionTime", stamp) if known.get("status") == status else stamp
    new |= {"lastHeartbeatTime": stamp, "lastTransitionTime": since}
    patch = {"status": {"conditions": [new]}}
    await client.merge(NODES, node["metadata"]["name"], patch, part="status", by_key=True)
    return True


def _taints(node: Object) -> list[Object]:
    return (node.get("spec") or {}).get("taints") or []


def _is_ours(taint: Object) -> bool:
    """Return whether a taint is ours, with any value; the effect must match."""
    return (taint.get("key"), taint.get("effect")) == (TAINT, EFFECT)
