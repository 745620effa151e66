"""The object in the cluster, written by server-side apply.

Owns what the API server's answers mean for the object, and the list of its other field managers.

The first apply is without force, so a conflict names the other managers of the zones; the second
one forces. Every write except the one that creates the object names the uid and resourceVersion
that it replaces. So a late write that we gave up cannot overwrite a newer one, and an object that
was deleted with its Node is not created again for that Node.

If the role lacks `patch`, as the role of nri-plugins does, the object is created or replaced
instead. Fields that others wrote then stay, and other managers of the zones remain unknown.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import FORBIDDEN

from msgspec import Struct
from msgspec.structs import replace

from nri_policy.foundation.wording import quoted
from nri_policy.kube.client import NODES, Client, ObjectKind
from nri_policy.kube.errors import APIError
from nri_policy.nrt.publisher import PublishError, Trouble, WriteResult
from nri_policy.nrt.reading import GROUP, KIND, VERSION, Object

MANAGER = "nri-policy"
_PLURAL = "noderesourcetopologies"
_OLD_VERSION = "v1alpha1"

_TROUBLES = {
    401: Trouble.UNAUTHORIZED,
    403: Trouble.FORBIDDEN,
    409: Trouble.CONFLICT,
    429: Trouble.THROTTLED,
}
_REMEDIES = {
    Trouble.FORBIDDEN: "configs/kubernetes/rbac.yaml has what is needed",
    Trouble.NO_CRD: "configs/kubernetes/crd.yaml defines it",
    Trouble.NO_NODE: "--node-name or NODE_NAME must be the node's name in the cluster",
}


class _Known(Struct, frozen=True, kw_only=True):
    """Facts about the cluster and the object that a write needs."""

    owner: Object  # reference to our Node
    version: str  # API version that the cluster serves
    uid: str = ""  # of the object; empty if it does not exist
    revision: str = ""  # of the object


class ClusterSink:
    """A sink for publishers."""

    def __init__(self, client: Client, node: str) -> None:
        self.name = "the cluster"
        self._client = client
        self._node = node
        self._known: _Known | None = None

    async def put(self, new: Object, *, fresh: bool) -> WriteResult:
        """Apply an object; *fresh*: look up its owner, version and revision again."""
        with _translate_errors():
            if self._known is not None and not fresh:
                try:
                    return await self._write(new, self._known)
                except APIError as error:
                    if error.code not in {404, 409}:
                        raise
                    # another client changed or deleted the object, or the kind is gone
            return await self._write(new, await self._look_up())

    async def is_gone(self) -> bool:
        """Return whether the object that we wrote no longer exists."""
        if self._known is None:
            return False
        with _translate_errors():
            try:
                await self._client.get(_kind(self._known.version), self._node)
            except APIError as error:
                if error.code != 404:
                    raise
                return True
            return False

    async def check_access(self) -> None:
        """Make all requests that a write needs before it, but do not write."""
        with _translate_errors():
            await self._look_up()

    async def remove(self) -> None:
        """Delete the object if it exists."""
        version = self._known.version if self._known else VERSION
        with _translate_errors():
            try:
                await self._client.delete(_kind(version), self._node)
            except APIError as error:
                if error.code != 404:
                    raise
            self._known = None

    async def _look_up(self) -> _Known:
        owner = await self._owner()
        for version in (VERSION, _OLD_VERSION):
            try:
                found = await self._client.get(_kind(version), self._node)
            except APIError as error:
                if error.code != 404:
                    raise
                if error.details.get("name") == self._node:
                    return _Known(owner=owner, version=version)
            else:
                return _merge_known(_Known(owner=owner, version=version), found)
        raise PublishError(
            Trouble.NO_CRD, f"the cluster has no {KIND}; {_REMEDIES[Trouble.NO_CRD]}"
        )

    async def _owner(self) -> Object:
        """Return the reference that makes our Node the object's owner."""
        try:
            node = await self._client.get(NODES, self._node)
        except APIError as error:
            if error.code != 404:
                raise
            text = f"there is no Node {quoted(self._node)}; {_REMEDIES[Trouble.NO_NODE]}"
            raise PublishError(Trouble.NO_NODE, text) from error
        return {
            "apiVersion": "v1",
            "kind": "Node",
            "name": self._node,
            "uid": _metadata(node, "uid"),
        }

    async def _write(self, new: Object, known: _Known) -> WriteResult:
        """Apply an object, or create or replace it if the role does not allow to apply."""
        kind, written_object, rivals = _kind(known.version), _for_cluster(known, new), set[str]()
        try:
            written, rivals = await self._apply(kind, written_object)
        except APIError as error:
            if error.code != FORBIDDEN:
                raise
            try:
                written = await self._replace(kind, written_object)
            except APIError as second:
                raise (error if second.code == FORBIDDEN else second) from error
        self._known = _merge_known(known, written)
        return WriteResult(version=known.version, rivals=tuple(sorted(rivals)))

    async def _apply(self, kind: ObjectKind, written_object: Object) -> tuple[Object, set[str]]:
        """Apply an object, by force after a conflict; return it and the other managers of zones."""
        try:
            return await self._client.apply(
                kind, written_object, manager=MANAGER, force=False
            ), set()
        except APIError as error:
            holders = _holders(error)
            if not holders:
                raise
        rivals = {name for field, name in holders if field.startswith(".zones")} - {MANAGER}
        return await self._client.apply(kind, written_object, manager=MANAGER, force=True), rivals

    async def _replace(self, kind: ObjectKind, written_object: Object) -> Object:
        """Create an object, or replace it and keep the fields that others wrote."""
        ours = written_object["metadata"]
        if "uid" not in ours:
            return await self._client.create(kind, written_object, manager=MANAGER)
        there = await self._client.get(kind, self._node)
        before = there.get("metadata", {})
        labels = {**(before.get("labels") or {}), **ours["labels"]}
        metadata = {**before, **ours, "labels": labels}
        return await self._client.replace(
            kind, {**there, **written_object, "metadata": metadata}, manager=MANAGER
        )


def _kind(version: str) -> ObjectKind:
    return ObjectKind(group=GROUP, version=version, plural=_PLURAL)


def _for_cluster(known: _Known, new: Object) -> Object:
    """Return an object with its owner and revision, in the API version that the cluster serves."""
    metadata = {**new["metadata"], "ownerReferences": [known.owner]}
    if known.uid:
        metadata |= {"uid": known.uid, "resourceVersion": known.revision}
    written_object = {**new, "apiVersion": f"{GROUP}/{known.version}", "metadata": metadata}
    if known.version == _OLD_VERSION:  # a required list instead of attributes (nrt.md §1.2)
        attributes = {each["name"]: each["value"] for each in written_object.pop("attributes")}
        aligned = attributes["topologyManagerPolicy"] == "single-numa-node"
        written_object["topologyPolicies"] = ["SingleNUMANodeContainerLevel" if aligned else "None"]
    return written_object


def _merge_known(known: _Known, found: Object) -> _Known:
    return replace(known, uid=_metadata(found, "uid"), revision=_metadata(found, "resourceVersion"))


def _metadata(found: Object, field: str) -> str:
    try:
        return str(found["metadata"][field])
    except (KeyError, TypeError) as error:
        raise APIError(f"the answer is malformed: it has no metadata.{field}") from error


def _holders(error: APIError) -> list[tuple[str, str]]:
    """Return the conflicting fields of an API error, each with its manager."""
    return [
        (cause.get("field", ""), found[1] if found else "unknown")
        for cause in error.details.get("causes") or []
        if cause.get("reason") == "FieldManagerConflict"
        for found in [re.search(r'"([^"]*)"', cause.get("message", ""))]
    ]


@contextmanager
def _translate_errors() -> Iterator[None]:
    """Turn errors of requests into PublishErrors."""
    try:
        yield
    except APIError as error:
        trouble = _TROUBLES.get(error.code)
        if trouble is None:
            answered = Trouble.SERVER_ERROR if error.code >= 500 else Trouble.REFUSED
            trouble = answered if error.code else Trouble.UNREACHABLE
        remedy = f"; {_REMEDIES[trouble]}" if trouble in _REMEDIES else ""
        raise PublishError(trouble, f"{error}{remedy}", wait=error.wait) from error
