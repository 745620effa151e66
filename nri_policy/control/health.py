"""The standard gRPC health service: SERVING once the daemon has the list of containers.

grpcio-health-checking is not used: it lets any number of clients watch, and each watcher takes one
of the calls that the endpoint serves at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from typing import Any

import grpc

from nri_policy.foundation.grpc_services import service_handler
from nri_policy.proto import health_pb2
from nri_policy.proto.health_pb2 import HealthCheckRequest, HealthCheckResponse

SERVICE = health_pb2.DESCRIPTOR.services_by_name["Health"]

_MAX_WATCHING = 16  # each takes one of the endpoint's calls

_Context = grpc.aio.ServicerContext[HealthCheckRequest, HealthCheckResponse]


class Health:
    """Serving once *ready* is set; the same for all *services* and the whole server."""

    def __init__(self, ready: asyncio.Event, services: Collection[str]) -> None:
        self._ready = ready
        self._known = {"", *services}
        self._watching = 0

    def handler(self) -> grpc.GenericRpcHandler:
        """Return the handler for a server."""
        methods: dict[str, Callable[..., Any]] = {"Check": self.check, "Watch": self.watch}
        return service_handler(SERVICE, methods)

    async def check(self, request: HealthCheckRequest, context: _Context) -> HealthCheckResponse:
        """Return the present status."""
        if request.service not in self._known:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such service")
        return self._status()

    async def watch(
        self, request: HealthCheckRequest, context: _Context
    ) -> AsyncIterator[HealthCheckResponse]:
        """Yield the status now and after each change, until the caller ends the call."""
        if self._watching == _MAX_WATCHING:
            text = f"{_MAX_WATCHING} others watch already"
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, text)
        self._watching += 1
        try:
            if request.service not in self._known:
                yield HealthCheckResponse(status=HealthCheckResponse.SERVICE_UNKNOWN)
            else:
                yield self._status()
                if not self._ready.is_set():
                    await self._ready.wait()
                    yield self._status()
            await asyncio.Event().wait()
        finally:
            self._watching -= 1

    def _status(self) -> HealthCheckResponse:
        serving = self._ready.is_set()
        return HealthCheckResponse(
            status=HealthCheckResponse.SERVING if serving else HealthCheckResponse.NOT_SERVING
        )
