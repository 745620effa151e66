"""The object in the cluster, written by server-side apply.

Owns how the API server is reached, what its answers mean, and who else writes the object. lightkube
and its errors are known here only; it is imported when it is needed, for it is large.

The first apply is not forced, so that the API server says who else holds the zones; then it is: all
fields that are sent are ours. Each but the one that makes the object names the revision that it
replaces: a write that was given up, and arrives late, cannot follow a newer one.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nri_policy.nrt.publisher import PublishError, Trouble, Written
from nri_policy.nrt.reading import GROUP, KIND, VERSION, Object
from nri_policy.wording import quoted

if TYPE_CHECKING:
    from lightkube import AsyncClient

MANAGER = "nri-policy"
PATIENCE = 10.0  # seconds for one request
_LONGEST_WAIT = 120.0  # seconds that a server's wish is heeded for
_MOST_TEXT = 300  # characters of a server's words
_PLURAL = "noderesourcetopologies"
_OLD_VERSION = "v1alpha1"
_SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")

_TROUBLES = {
    401: Trouble.UNAUTHORIZED,
    403: Trouble.FORBIDDEN,
    409: Trouble.CONFLICT,
    429: Trouble.THROTTLED,
}
_REMEDIES = {
    Trouble.FORBIDDEN: "configs/kubernetes/rbac.yaml has what is needed",
    Trouble.NO_CRD: "configs/kubernetes/crd.yaml defines it",
    Trouble.NO_NODE: "--node-name or NODE_NAME is to be the node's name in the cluster",
}


class KubeconfigError(Exception):
    """A kubeconfig cannot be used; the text says which, and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """What has to be known of a cluster to write there."""

    owner: Object  # reference to our Node
    version: str  # that is served
    revision: str  # of the object; empty: it is not there


class Cluster:
    """A sink for publishers; *connect* makes the client, may take long, and may raise anything."""

    def __init__(
        self, connect: Callable[[], AsyncClient], node: str, *, patience: float = PATIENCE
    ) -> None:
        self.name = "the cluster"
        self._connect = connect
        self._node = node
        self._patience = patience
        self._client: AsyncClient | None = None
        self._known: _Known | None = None

    async def put(self, new: Object, *, fresh: bool) -> Written:
        """Apply an object; *fresh*: look up its owner, version and revision again."""
        async with self._asking() as client:
            if self._known is not None and not fresh:
                try:
                    return await self._write(client, new, self._known)
                except _status_error() as error:
                    if error.response.status_code not in (404, 409):
                        raise
                    # somebody else has written or removed it since, or its kind
            return await self._write(client, new, await self._look_up(client))

    async def look(self) -> None:
        """Look up all that has to be known for a write, and write nothing."""
        async with self._asking() as client:
            await self._look_up(client)

    async def remove(self) -> None:
        """Delete the object, if it is there."""
        async with self._asking() as client:
            version = self._known.version if self._known else VERSION
            try:
                await client.delete(_resource(version), self._node)
            except _status_error() as error:
                if error.response.status_code != 404:
                    raise
            self._known = None

    async def close(self) -> None:
        """Close the connections."""
        if self._client is not None:
            await self._client.close()

    async def _look_up(self, client: AsyncClient) -> _Known:
        owner = await self._owner(client)
        for version in (VERSION, _OLD_VERSION):
            try:
                found = await client.get(_resource(version), self._node)
            except _status_error() as error:
                if error.response.status_code != 404:
                    raise
                if _missing(error) == self._node:
                    return _Known(owner=owner, version=version, revision="")
            else:
                return _Known(owner=owner, version=version, revision=_revision(found))
        raise PublishError(
            Trouble.NO_CRD, f"the cluster has no {KIND}; {_REMEDIES[Trouble.NO_CRD]}"
        )

    async def _owner(self, client: AsyncClient) -> Object:
        """Return the reference that makes our Node the object's owner."""
        from lightkube.resources.core_v1 import Node  # noqa: PLC0415 - see above

        try:
            node = await client.get(Node, self._node)
        except _status_error() as error:
            if error.response.status_code != 404:
                raise
            text = f"there is no Node {quoted(self._node)}; {_REMEDIES[Trouble.NO_NODE]}"
            raise PublishError(Trouble.NO_NODE, text) from error
        assert node.metadata is not None
        return {"apiVersion": "v1", "kind": "Node", "name": self._node, "uid": node.metadata.uid}

    async def _write(self, client: AsyncClient, new: Object, known: _Known) -> Written:
        """Apply an object, by force if others hold parts of it."""
        shown, rivals = _as(known, new), set()
        try:
            applied = await self._apply(client, shown, known, force=False)
        except _status_error() as error:
            causes = _causes(error)
            if not causes:
                raise
            rivals = {name for field, name in causes if field.startswith(".zones")}
            applied = await self._apply(client, shown, known, force=True)
        self._known = replace(known, revision=_revision(applied))
        return Written(version=known.version, rivals=tuple(sorted(rivals)))

    async def _apply(self, client: AsyncClient, new: Object, known: _Known, *, force: bool) -> Any:
        from lightkube.types import PatchType  # noqa: PLC0415 - see above

        return await client.patch(
            _resource(known.version),
            self._node,
            new,
            patch_type=PatchType.APPLY,
            field_manager=MANAGER,
            force=force,
        )

    @asynccontextmanager
    async def _asking(self) -> AsyncIterator[AsyncClient]:
        """Yield the client; what goes wrong with it becomes a PublishError."""
        try:
            if self._client is None:
                self._client = await asyncio.to_thread(self._connect)
            async with asyncio.timeout(self._patience):
                yield self._client
        except PublishError:
            raise
        except TimeoutError as error:
            text = f"no answer within {self._patience:g} s"
            raise PublishError(Trouble.UNREACHABLE, text) from error
        except Exception as error:  # a garbled answer makes lightkube raise whatever comes
            raise _translated(error) from error


def access(kubeconfig: Path | None) -> Callable[[], AsyncClient] | None:
    """Return what makes a client of the cluster, None where none is known.

    KubeconfigError where a *kubeconfig* was named and cannot be used.
    """
    if kubeconfig is not None:
        client = _client(kubeconfig)
        return lambda: client
    if "KUBERNETES_SERVICE_HOST" in os.environ and (_SERVICE_ACCOUNT / "token").exists():
        return lambda: _client(None)
    return None


def _client(kubeconfig: Path | None) -> AsyncClient:
    from lightkube import AsyncClient, KubeConfig  # noqa: PLC0415 - see above

    requests = logging.getLogger("httpx2")  # which has a line of INFO for each
    if requests.level == logging.NOTSET:
        requests.setLevel(logging.WARNING)
    if kubeconfig is None:
        return AsyncClient(config=KubeConfig.from_service_account(_SERVICE_ACCOUNT))
    try:
        return AsyncClient(config=KubeConfig.from_file(kubeconfig))
    except Exception as error:  # whatever its parts lead lightkube, ssl and httpx to
        text = str(error) or type(error).__name__
        raise KubeconfigError(f"--kubeconfig {kubeconfig}: {_short(text)}") from error


def _resource(version: str) -> Any:
    from lightkube.generic_resource import create_global_resource  # noqa: PLC0415 - see above

    return create_global_resource(GROUP, version, KIND, _PLURAL)


def _as(known: _Known, new: Object) -> Object:
    """Return an object as it is written where this is *known*."""
    metadata = {**new["metadata"], "ownerReferences": [known.owner]}
    if known.revision:
        metadata["resourceVersion"] = known.revision
    shown = {**new, "apiVersion": f"{GROUP}/{known.version}", "metadata": metadata}
    if known.version == _OLD_VERSION:  # no attributes, a required list in their place (nrt.md §1.2)
        attributes = {each["name"]: each["value"] for each in shown.pop("attributes")}
        aligned = attributes["topologyManagerPolicy"] == "single-numa-node"
        shown["topologyPolicies"] = ["SingleNUMANodeContainerLevel" if aligned else "None"]
    return shown


def _revision(found: Any) -> str:
    return str(found.metadata.resourceVersion)


def _status_error() -> Any:
    """Return what lightkube raises for answers that are errors."""
    from httpx2 import HTTPStatusError  # noqa: PLC0415 - see above

    return HTTPStatusError


def _missing(error: Any) -> str:
    """Return the name of the object that is said to be missing; "" where it is its whole kind."""
    details = getattr(getattr(error, "status", None), "details", None)
    return (details.name if details else None) or ""


def _causes(error: Any) -> list[tuple[str, str]]:
    """Return the fields that others hold, with their holders, of an answer that says so."""
    if error.response.status_code != 409:
        return []
    causes = error.response.json().get("details", {}).get("causes", [])
    return [
        (cause.get("field", ""), found[1] if found else "unknown")
        for cause in causes
        if cause.get("reason") == "FieldManagerConflict"
        for found in [re.search(r'"([^"]*)"', cause.get("message", ""))]
    ]


def _translated(error: Exception) -> PublishError:
    text = _short(str(error)) or type(error).__name__
    if not isinstance(error, _status_error()):
        return PublishError(Trouble.UNREACHABLE, text)
    code = error.response.status_code
    trouble = _TROUBLES.get(code) or (Trouble.SERVER_ERROR if code >= 500 else Trouble.REFUSED)
    remedy = f"; {_REMEDIES[trouble]}" if trouble in _REMEDIES else ""
    after = error.response.headers.get("Retry-After", "")
    wait = min(float(after), _LONGEST_WAIT) if after.isdecimal() else 0.0
    return PublishError(trouble, f"{code}: {text}{remedy}", wait=wait)


def _short(text: str) -> str:
    return " ".join(text.split())[:_MOST_TEXT]
