"""Reads and patches settings in the API server.

Owns how TopologyAwarePolicy objects are watched and patched, and the label of a Node. It watches
each object by its name, so that this node does not receive the objects of others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from typing import Any

from nri_policy.kube.client import NODES, Client, Object, ObjectKind, Page, decode
from nri_policy.kube.errors import APIError
from nri_policy.kube.list_watch import list_and_watch
from nri_policy.settings import API_VERSION, KIND
from nri_policy.settings_sources.cluster_settings import ClusterError, NoKindError
from nri_policy.settings_sources.policy_objects import PolicyObject

LABEL = "config.nri/group"  # of a Node, names its group
# The label in older versions of nri-plugins, which still read these if the first is missing.
_OLD_LABELS = ("group.config.nri", "resource-policy.nri.io/group")
_GROUP, _, _VERSION = API_VERSION.partition("/")
POLICIES = ObjectKind(group=_GROUP, version=_VERSION, plural="topologyawarepolicies")
_NO_KIND = f"the cluster has no {KIND}; configs/kubernetes/settings-crd.yaml defines it"


class Kubernetes:
    """The TopologyAwarePolicy objects in one namespace."""

    def __init__(self, client: Client, namespace: str, label: str = LABEL) -> None:
        """Take the *label* that names a Node's group."""
        self._client = client
        self._namespace = namespace
        self._labels = (label, *_OLD_LABELS)

    async def group(self, node: str) -> str:
        """Return the group in a node's label, empty for none; older labels count last."""
        with _translate_errors(f"Node {node}"):
            metadata = _metadata(await self._client.get(NODES, node), node)
            labels = metadata.get("labels") or {}
            return next((str(labels[each]) for each in self._labels if labels.get(each)), "")

    async def follow(self, name: str, record: Callable[[PolicyObject | None], None]) -> None:
        """Call *record* with an object, now and after each change, until an error."""
        with _translate_errors(f"{KIND} {name}"):
            selected = f"metadata.name={name}"
            events = list_and_watch(
                self._client, POLICIES, namespace=self._namespace, fields=selected
            )
            try:
                async with aclosing(events):
                    async for event in events:
                        match event:
                            case Page(items=[found, *_]):
                                record(_policy(decode(found), name))
                            case Page() | ("DELETED", _):
                                record(None)
                            case (_, found):
                                record(_policy(decode(found), name))
            except APIError as error:
                if error.code != 404:
                    raise
                raise NoKindError(_NO_KIND) from error

    async def set_status(self, name: str, node: str, status: Mapping[str, Any] | None) -> None:
        """Write a node's status of an object; None removes it. A deleted object is no error."""
        patch = {"status": {"nodes": {node: status}}}
        with _translate_errors(f"{KIND} {name}"):
            try:
                await self._client.merge(
                    POLICIES, name, patch, namespace=self._namespace, part="status"
                )
            except APIError as error:
                if error.code != 404:
                    raise


@contextmanager
def _translate_errors(what: str) -> Iterator[None]:
    """Turn errors of requests into a ClusterError."""
    try:
        yield
    except APIError as error:
        raise ClusterError(f"{what}: {error}") from error


def _metadata(found: Object, name: str) -> Object:
    """Return the metadata of the object; raises APIError if it has another name."""
    metadata = found.get("metadata")
    if not isinstance(metadata, dict) or metadata.get("name") != name:
        raise APIError("the answer is about something else")
    return metadata


def _policy(found: Object, name: str) -> PolicyObject:
    metadata = _metadata(found, name)
    nodes = (found.get("status") or {}).get("nodes") or {}
    return PolicyObject(
        name=name,
        generation=metadata.get("generation") or 0,
        spec=found.get("spec"),
        nodes=frozenset(nodes),
    )
