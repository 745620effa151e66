"""What a Node says of the daemon on it: a taint, a condition, and the Lease that it renews.

Owns their names and how they are written, for the daemon, which is alive, and for the cluster's
service, which sees that one is not. Rule: of a Node's taints and conditions nobody else's are ever
touched. Taints are one list, so a write names the revision that it was made from, and is tried
again where somebody else was faster.

Why a Lease shows that a daemon lives, and nothing that is written anyway: a NodeResourceTopology
object that is applied unchanged stays as it is, so no one sees it; and a Node is large and followed
by all kubelets, proxies and schedulers. That is why the kubelet has a Lease for this, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from http.client import CONFLICT
from typing import Any

from nri_policy.kube.client import NODES, Client, Object
from nri_policy.kube.errors import APIError

TAINT = "nri-policy.io/not-ready"
EFFECT = "NoSchedule"  # it never evicts
CONDITION = "NRIPolicyReady"

NAMESPACE = "nri-policy-nodes"  # of the Leases, one a node, of its name, and no others
WHILE_AWAY = "nri-policy.io/while-away"  # of a Lease: what is to be written; an annotation
RENEW = 20.0  # seconds between two renewals
SILENT = 60.0  # seconds without one after which a daemon is taken for dead

_ATTEMPTS = 5  # to write a Node that others write at the same time


def has_taint(node: Object) -> bool:
    """Return whether a Node has our taint."""
    return any(map(_is_ours, _taints(node)))


async def set_taint(client: Client, name: str, *, present: bool) -> bool:
    """Have a Node bear our taint, or not; return whether it was otherwise. Raises APIError."""
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
    """Return our condition of a Node, empty where it has none."""
    conditions = (node.get("status") or {}).get("conditions") or []
    return next((each for each in conditions if each.get("type") == CONDITION), {})


async def set_condition(  # noqa: PLR0913 - keywords: the fields of a condition
    client: Client, node: Object, *, status: str, reason: str, message: str, now: float
) -> bool:
    """Write our condition of *node* unless it is so; return whether it was otherwise.

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
    """Whether a taint is ours, whatever its value; one of another effect is not."""
    return (taint.get("key"), taint.get("effect")) == (TAINT, EFFECT)
