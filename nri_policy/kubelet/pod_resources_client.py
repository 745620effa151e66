"""The kubelet's PodResources API over gRPC; imported, with gRPC, at the first query."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.message import Message

from nri_policy.foundation.clock import SYSTEM_CLOCK, Clock
from nri_policy.foundation.grpc_services import require_threads, service_stub
from nri_policy.foundation.wording import problem_of
from nri_policy.kubelet.errors import KubeletError
from nri_policy.proto.podresources_pb2 import (
    DESCRIPTOR,
    AllocatableResourcesRequest,
    AllocatableResourcesResponse,
    GetPodResourcesRequest,
    ListPodResourcesRequest,
    PodResources,
)

BACKOFF = 0.2  # seconds until the second try; the kubelet allows 20 more calls in that time

_OPTIONS = (
    ("grpc.max_receive_message_length", 16 << 20),  # bytes; as in the kubelet's own clients
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),  # to reach a restarted kubelet soon
)
# The codes of kubelets without Get: the call is unknown, or disabled. The latter
# code is shared with unknown pods; only the text differs, and it varies between versions.
_NO_GET = (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.UNKNOWN)


class PodResourcesClient:
    """A connection to the kubelet. All queries raise KubeletError."""

    def __init__(self, socket: Path, clock: Clock = SYSTEM_CLOCK) -> None:
        """Take the kubelet's socket, which need not exist yet; KubeletError without threads."""
        self._clock = clock
        try:
            require_threads()
        except OSError as error:
            raise KubeletError("RESOURCE_EXHAUSTED", problem_of(error)) from error
        self._channel = grpc.aio.insecure_channel(f"unix:{socket}", options=_OPTIONS)
        self._stub = service_stub(self._channel, DESCRIPTOR.services_by_name["PodResourcesLister"])

    async def close(self) -> None:
        """Cancel all queries and close the connection."""
        await self._channel.close()

    async def get(self, namespace: str, name: str) -> PodResources | None:
        """Return the resources of a pod; None if the kubelet does not know the pod, or Get."""
        request = GetPodResourcesRequest(pod_namespace=namespace, pod_name=name)
        try:
            response = await self._call(self._stub.Get, request)
        except grpc.aio.AioRpcError as error:
            if error.code() in _NO_GET:
                return None
            raise _translate(error) from error
        return response.pod_resources  # type: ignore[no-any-return]

    async def list(self) -> Sequence[PodResources]:
        """Return the resources of all pods."""
        try:
            response = await self._call(self._stub.List, ListPodResourcesRequest())
        except grpc.aio.AioRpcError as error:
            raise _translate(error) from error
        return response.pod_resources  # type: ignore[no-any-return]

    async def allocatable(self) -> AllocatableResourcesResponse:
        """Return all assignable resources."""
        method = self._stub.GetAllocatableResources
        try:
            response: AllocatableResourcesResponse = await self._call(
                method, AllocatableResourcesRequest()
            )
        except grpc.aio.AioRpcError as error:
            raise _translate(error) from error
        return response

    async def _call(self, method: Callable[[Any], Awaitable[Any]], request: Message) -> Any:
        """Call *method*; if it was called too often, once more after a pause."""
        try:
            return await method(request)
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
                raise
        await self._clock.sleep(BACKOFF)
        return await method(request)


def _translate(error: grpc.aio.AioRpcError) -> KubeletError:
    return KubeletError(error.code().name, error.details() or "")
