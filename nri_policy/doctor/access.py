"""What the cluster grants: whether it is reached, knows our kinds, and lets us use them.

Asks only: an access review is answered and kept nowhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from http.client import NOT_FOUND
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from nri_policy.foundation.units import parse_bytes, parse_cpu
from nri_policy.kube.client import NODES, Client, Object, ObjectKind
from nri_policy.kube.connection import access
from nri_policy.kube.errors import APIError, KubeconfigError
from nri_policy.kube.readiness import NAMESPACE, condition_of, has_taint
from nri_policy.nrt.cluster_object import ClusterSink
from nri_policy.nrt.publisher import PublishError, Trouble
from nri_policy.nrt.reading import GROUP
from nri_policy.workload.claim import DRIVER

# What configs/kubernetes/rbac.yaml gives: namespace, group, resource, verbs
NEEDED = (
    ("", "", "nodes", ("get",)),
    ("", GROUP, "noderesourcetopologies", ("get", "create", "patch", "delete")),
    ("", "", "events", ("create",)),
    ("", "resource.k8s.io", "resourceslices", ("get", "list", "watch")),
    ("", "resource.k8s.io", "resourceclaims", ("get",)),
    ("", "", "pods", ("get",)),
    ("kube-system", "config.nri", "topologyawarepolicies", ("list", "watch")),
    ("kube-system", "config.nri", "topologyawarepolicies/status", ("patch",)),
)
# And configs/kustomize/readiness
NEEDED_FOR_READINESS = (
    ("", "", "nodes", ("patch",)),
    ("", "", "nodes/status", ("patch",)),
    (NAMESPACE, "coordination.k8s.io", "leases", ("create", "patch", "delete")),
)
# And configs/kustomize/dra
NEEDED_FOR_DRA = (
    (
        "",
        "resource.k8s.io",
        "resourceslices",
        ("get", "list", "watch", "create", "patch", "delete"),
    ),
    ("", "resource.k8s.io", "resourceclaims", ("get",)),
    ("", "resource.k8s.io", "deviceclasses", ("get",)),  # for us alone
)
# And configs/kustomize/explanations
NEEDED_FOR_EXPLANATIONS = (("", "", "pods", ("patch",)),)
# What nri-plugins' role has instead, and we then do
_INSTEAD = {("noderesourcetopologies", "patch"): "update"}
DEVICE_CLASS = f"cpu.{DRIVER}"
_CLASSES = ObjectKind(group="resource.k8s.io", version="v1", plural="deviceclasses")
_REVIEWS = ObjectKind(group="authorization.k8s.io", version="v1", plural="selfsubjectaccessreviews")
_PATIENCE = 3.0  # seconds for a request


class Access(Struct, frozen=True, kw_only=True):
    """How it is with the cluster."""

    trouble: Trouble | None = None  # of looking up our Node and its topology
    error: str = ""  # the same in words
    denied: tuple[str, ...] = ()  # "patch noderesourcetopologies"
    denied_readiness: tuple[str, ...] = ()  # of what the setting `readiness` needs
    denied_dra: tuple[str, ...] = ()  # of what the setting `dra` needs
    denied_explanations: tuple[str, ...] = ()  # of what the setting `podExplanations` needs
    no_class: str = ""  # why no claim can name our devices; empty: one can, or we may not know
    tainted: bool = False  # whether our Node has our taint
    condition: str = ""  # the status of our condition of our Node; empty: it has none
    allocatable_milli: int | None = None  # milli-CPU that our Node promises to pods
    allocatable_memory: int | None = None  # bytes


def access_to(kubeconfig: Path | None, node: str) -> Access | None:
    """Return how it is with the cluster of a *kubeconfig* or of our pod, None for neither."""
    try:
        connect = access(kubeconfig)
    except KubeconfigError as error:
        return Access(trouble=Trouble.REFUSED, error=str(error))
    if connect is None:
        return None

    async def ask() -> Access:
        client = Client(connect, patience=_PATIENCE)
        try:
            return await _ask_access(client, node)
        finally:
            await client.close()

    return asyncio.run(ask())


async def _ask_access(client: Client, node: str) -> Access:
    trouble, error = None, ""
    try:
        await ClusterSink(client, node).check_access()
    except PublishError as refused:
        trouble, error = refused.trouble, str(refused)
    if trouble in {Trouble.UNREACHABLE, Trouble.UNAUTHORIZED}:
        return Access(trouble=trouble, error=error)
    shown = await _node(client, node)
    promised = _allocatable(shown)
    found = Access(
        trouble=trouble,
        error=error,
        allocatable_milli=_read(parse_cpu, promised.get("cpu")),
        allocatable_memory=_read(parse_bytes, promised.get("memory")),
        tainted=has_taint(shown),
        condition=str(condition_of(shown).get("status", "")),
    )
    try:
        denied, denied_readiness, denied_dra, denied_explanations = [
            tuple(
                [
                    f"{verb} {resource}"
                    for namespace, group, resource, verbs in needed
                    for verb in verbs
                    if not await _may(client, namespace, group, resource, verb)
                    and not await _may_instead(client, namespace, group, resource, verb)
                ]
            )
            for needed in (
                NEEDED,
                NEEDED_FOR_READINESS,
                NEEDED_FOR_DRA,
                NEEDED_FOR_EXPLANATIONS,
            )
        ]
    except APIError as refused:
        return replace(found, trouble=trouble or Trouble.REFUSED, error=error or str(refused))
    return replace(
        found,
        denied=denied,
        denied_readiness=denied_readiness,
        denied_dra=denied_dra,
        denied_explanations=denied_explanations,
        no_class=await _missing_class(client),
    )


async def _missing_class(client: Client) -> str:
    """Return why the cluster has no class of our devices."""
    try:
        await client.get(_CLASSES, DEVICE_CLASS)
    except APIError as error:
        if error.code != NOT_FOUND:
            return ""
        if error.details.get("name") == DEVICE_CLASS:
            return f"the cluster has no DeviceClass {DEVICE_CLASS}"
        return "the cluster does not serve resource.k8s.io/v1"
    return ""


async def _node(client: Client, name: str) -> Object:
    """Return our Node, empty where it cannot be read."""
    try:
        return await client.get(NODES, name)
    except APIError:
        return {}


def _allocatable(node: Object) -> Object:
    """Return the allocatable amounts of a Node; empty if it has none."""
    try:
        return dict(node["status"]["allocatable"])
    except (KeyError, TypeError, ValueError):
        return {}


def _read(parse: Callable[[Any], int], amount: Any) -> int | None:
    try:
        return parse(amount)
    except ValueError:
        return None


async def _may_instead(
    client: Client, namespace: str, group: str, resource: str, verb: str
) -> bool:
    """Return whether we may do something else that comes to the same."""
    other = _INSTEAD.get((resource, verb))
    return other is not None and await _may(client, namespace, group, resource, other)


async def _may(client: Client, namespace: str, group: str, resource: str, verb: str) -> bool:
    """Ask for an access review; an answer without a verdict counts as allowed."""
    kind, _, part = resource.partition("/")
    asked = {
        "namespace": namespace,
        "group": group,
        "resource": kind,
        "subresource": part,
        "verb": verb,
    }
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": asked},
    }
    answer = await client.create(_REVIEWS, review)
    return bool((answer.get("status") or {}).get("allowed", True))
