"""The administration service: the calls that change something; proto/control.proto."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import grpc
from msgspec.structs import asdict

from nri_policy.foundation.grpc_services import service_handler
from nri_policy.proto import control_pb2 as pb
from nri_policy.settings import ReloadResult

SERVICE = pb.DESCRIPTOR.services_by_name["Administration"]


class Administration:
    """Serves the owner of the socket; *reload* reads the settings again, and never raises."""

    def __init__(self, reload: Callable[[], Awaitable[ReloadResult]]) -> None:
        self._reload = reload

    def handler(self) -> grpc.GenericRpcHandler:
        """Return the handler for a server."""
        return service_handler(SERVICE, {"Reload": self.reload})

    async def reload(
        self, request: pb.ReloadRequest, context: grpc.aio.ServicerContext[object, object]
    ) -> pb.Reload:
        """Read the settings again, and return the result.

        A reload goes on if the caller does not wait for its end.
        """
        del request, context
        return pb.Reload(**asdict(await asyncio.shield(self._reload())))
