"""The API server's side of settings from the cluster.

Owns how TopologyAwarePolicy objects are listed, watched and patched, and what a Node's label says.
lightkube and its errors are known here only; it is imported when it is needed, for it is large.

Each object is followed by its name, so that the objects for other nodes cost this one nothing. A
watch that has nothing to say for long is begun anew, for a connection can die in silence.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any

from nri_policy.settings import API_VERSION, KIND
from nri_policy.settings_source.cluster import ClusterError
from nri_policy.settings_source.objects import LABEL, Policy

if TYPE_CHECKING:
    from lightkube import AsyncClient

PATIENCE = 10.0  # seconds for one request
PERIOD = 300  # seconds after which an object is listed again
_PLURAL = "topologyawarepolicies"
_NO_CRD = f"the cluster has no {KIND}; configs/kubernetes/settings-crd.yaml defines it"
_MOST_TEXT = 300  # characters of a server's words


class Kubernetes:
    """The objects in one namespace; *connect* makes the client, and may raise anything."""

    def __init__(self, connect: Callable[[], AsyncClient], namespace: str) -> None:
        self._connect = connect
        self._namespace = namespace
        self._client: AsyncClient | None = None

    async def group(self, node: str) -> str:
        """Return the group that a node's label names, empty for none."""
        from lightkube.resources.core_v1 import Node  # noqa: PLC0415 - see above

        async with self._asking(f"Node {node}") as client, asyncio.timeout(PATIENCE):
            found = await client.get(Node, node)
            if found.metadata is None or found.metadata.name != node:
                raise ValueError("the answer is about something else")
            return str((found.metadata.labels or {}).get(LABEL, ""))

    async def follow(self, name: str, say: Callable[[Policy | None], None]) -> None:
        """Say what an object is, and whatever becomes of it, for some minutes."""
        where: Any = {"namespace": self._namespace, "fields": {"metadata.name": name}}
        async with self._asking(f"{KIND} {name}") as client:
            async with asyncio.timeout(PATIENCE):
                listed = client.list(_resource(), **where)
                try:
                    found = [each async for each in listed]
                except _status_error() as error:
                    if error.response.status_code == 404:
                        raise ValueError(_NO_CRD) from error
                    raise
            say(_policy(found[0], name) if found else None)
            watch: Any = client.watch(
                _resource(), **where, resource_version=listed.resourceVersion, server_timeout=PERIOD
            )
            try:
                async with asyncio.timeout(PERIOD), aclosing(watch):
                    async for kind, changed in watch:
                        if kind != "BOOKMARK":
                            policy = _policy(changed, name)
                            say(None if kind == "DELETED" else policy)
            except TimeoutError:
                return

    async def set_status(self, name: str, node: str, status: Mapping[str, Any] | None) -> None:
        """Write what a node says of an object, None for nothing; one that is gone needs nothing."""
        from lightkube.types import PatchType  # noqa: PLC0415 - see above

        patch = {"status": {"nodes": {node: status}}}
        async with self._asking(f"{KIND} {name}") as client, asyncio.timeout(PATIENCE):
            try:
                await client.patch(
                    _resource().Status,
                    name,
                    patch,
                    namespace=self._namespace,
                    patch_type=PatchType.MERGE,
                )
            except _status_error() as error:
                if error.response.status_code != 404:
                    raise

    async def close(self) -> None:
        """Close the connections."""
        if self._client is not None:
            await self._client.close()

    @asynccontextmanager
    async def _asking(self, what: str) -> AsyncIterator[AsyncClient]:
        """Yield the client; what goes wrong with it becomes a ClusterError."""
        try:
            if self._client is None:
                self._client = await asyncio.to_thread(self._connect)
            yield self._client
        except TimeoutError as error:
            raise ClusterError(f"{what}: no answer within {PATIENCE:g} s") from error
        except Exception as error:  # a garbled answer makes lightkube raise whatever comes
            text = " ".join(str(error).split())[:_MOST_TEXT] or type(error).__name__
            raise ClusterError(f"{what}: {text}") from error


def _resource() -> Any:
    from lightkube.generic_resource import create_namespaced_resource  # noqa: PLC0415 - see above

    group, _, version = API_VERSION.partition("/")
    return create_namespaced_resource(group, version, KIND, _PLURAL)


def _policy(found: Any, name: str) -> Policy:
    if found.metadata.name != name:
        raise ValueError("the answer is about something else")
    nodes = (found.get("status") or {}).get("nodes") or {}
    return Policy(
        name=name,
        generation=found.metadata.generation or 0,
        spec=found.get("spec"),
        nodes=frozenset(nodes),
    )


def _status_error() -> Any:
    """Return what lightkube raises for answers that are errors."""
    from httpx2 import HTTPStatusError  # noqa: PLC0415 - see above

    return HTTPStatusError
