"""Reads the objects of pods on this node from the API server.

Owns telling a pod from another one of the same name, and the limit of concurrent requests.
"""

from __future__ import annotations

import asyncio

from nri_policy.kube.client import PODS, Client, Object

MAX_REQUESTS = 8  # concurrent requests
_MIRROR = "kubernetes.io/config.mirror"  # annotation of a static pod's object: its sandbox's uid


class PodReader:
    """Reads pods of one cluster."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._asking = asyncio.Semaphore(MAX_REQUESTS)

    async def read(self, namespace: str, name: str, uid: str) -> Object | None:
        """Return the object of a pod; None if it has another *uid*; raises APIError."""
        async with self._asking:
            found = await self._client.get(PODS, name, namespace=namespace)
        metadata = found.get("metadata")
        if not isinstance(metadata, dict) or "uid" not in metadata:
            return found  # malformed: its reader will report that
        annotations = metadata.get("annotations")
        mirrored = annotations.get(_MIRROR) if isinstance(annotations, dict) else None
        return found if uid in {metadata["uid"], mirrored} else None
