"""The Plugin service over gRPC, for runtimes and tools that do not speak ttrpc.

Same methods, deadlines and failures as in a session: both are a `PluginService` behind a transport,
and share the plugin's turn.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable

import grpc

from nri_policy.nri.connection import SERVICES
from nri_policy.nri.errors import CallRefused
from nri_policy.nri.mux import Conn
from nri_policy.nri.service import METHODS, PluginService

MAX_STATUS_TEXT = 512  # characters; percent-encoded, they must fit gRPC's 8 KiB of headers

#: What gRPC calls the methods.
PATHS = [f"/{SERVICES[Conn.PLUGIN]}/{method}" for method in METHODS]

_STATUS = {status.value[0]: status for status in grpc.StatusCode}


def plugin_handler(service: PluginService) -> grpc.GenericRpcHandler:
    """Return what a gRPC server needs to offer *service*."""
    handlers = {method: _handler(service, method) for method in METHODS}
    return grpc.method_handlers_generic_handler(SERVICES[Conn.PLUGIN], handlers)


def _handler(service: PluginService, method: str) -> grpc.RpcMethodHandler[bytes, bytes]:
    # Without serializers, gRPC hands over the bytes as they came.
    return grpc.unary_unary_rpc_method_handler(_answerer(service, method))


def _answerer(
    service: PluginService, method: str
) -> Callable[[bytes, grpc.aio.ServicerContext[bytes, bytes]], Awaitable[bytes]]:
    async def answer(payload: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        left = context.time_remaining()
        budget = math.inf if left is None else left
        try:
            return await service.answer(method, payload, budget=budget)
        except CallRefused as refusal:
            status = _STATUS.get(refusal.code, grpc.StatusCode.UNKNOWN)
            await context.abort(status, refusal.message[:MAX_STATUS_TEXT])

    return answer
