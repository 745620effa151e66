"""Pods' objects: reading the one of a sandbox that there is on this node.

Owns that a namesake is not taken for it, and how many are asked for at once.
"""

from __future__ import annotations

import asyncio

from nri_policy.kube.client import Client, Kind, Object
from nri_policy.workload.pod import Pod

PODS = Kind(plural="pods")
MAX_ASKING = 8  # pods that the API server is asked about at once
_MIRROR = "kubernetes.io/config.mirror"  # of a static pod's object: the uid that its sandbox has


class PodReader:
    """Reads pods of one cluster."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._asking = asyncio.Semaphore(MAX_ASKING)

    async def read(self, pod: Pod) -> Object | None:
        """Return the object of *pod*, None if it is a namesake's; raises APIError."""
        async with self._asking:
            found = await self._client.get(PODS, pod.name, namespace=pod.namespace)
        metadata = found.get("metadata")
        if not isinstance(metadata, dict) or "uid" not in metadata:
            return found  # whoever reads it says what is wrong with it
        annotations = metadata.get("annotations")
        mirrored = annotations.get(_MIRROR) if isinstance(annotations, dict) else None
        return found if pod.uid in {metadata["uid"], mirrored} else None
