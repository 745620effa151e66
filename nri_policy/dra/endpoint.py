"""The sockets of the driver: the kubelet finds one, asks it, and uses the other; spec dra.md §3.

Owns the order: the service first, its registration last; at the end the registration goes first,
so that the kubelet does not call a driver that is about to leave.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.message import Message

from nri_policy.dra.driver import Driver
from nri_policy.dra.registration import Registration, registration_socket
from nri_policy.foundation.grpc_services import require_threads
from nri_policy.proto import dra_pb2
from nri_policy.proto.pluginregistration_pb2 import (
    InfoRequest,
    PluginInfo,
    RegistrationStatus,
    RegistrationStatusResponse,
)
from nri_policy.workload.claim import DRIVER

log = logging.getLogger(__name__)

VERSIONS = ("v1.DRAPlugin", "v1beta1.DRAPlugin")  # as the kubelet names them
_SERVICES = tuple(f"k8s.io.kubelet.pkg.apis.dra.{each}" for each in VERSIONS)
_REGISTRATION = "pluginregistration.Registration"
MAX_PATH = 107  # bytes; unix(7)
MAX_MESSAGE = 4 << 20  # bytes of a request

_Context = grpc.aio.ServicerContext[Any, Any]


@asynccontextmanager
async def serving(driver: Driver, registration: Registration, kubelet: Path) -> AsyncIterator[None]:
    """Serve the kubelet whose folder is *kubelet*.

    Raises OSError where there can be no socket, or no more threads.
    """
    require_threads()
    service = kubelet / "plugins" / DRIVER / "dra.sock"
    registry = registration_socket(kubelet)
    methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "NodePrepareResources": _method(
            driver.prepare,
            dra_pb2.NodePrepareResourcesRequest,
            dra_pb2.NodePrepareResourcesResponse,
        ),
        "NodeUnprepareResources": _method(
            driver.unprepare,
            dra_pb2.NodeUnprepareResourcesRequest,
            dra_pb2.NodeUnprepareResourcesResponse,
        ),
    }
    handlers = [grpc.method_handlers_generic_handler(each, methods) for each in _SERVICES]
    server = _bound(service, handlers)
    await server.start()
    try:
        announcer = _bound(registry, [_registration(registration, service)])
        await announcer.start()
        try:
            yield
        finally:
            registry.unlink(missing_ok=True)
            registration.registered = False
            await announcer.stop(None)
    finally:
        await server.stop(None)
        service.unlink(missing_ok=True)


def _registration(registration: Registration, service: Path) -> grpc.GenericRpcHandler:
    async def info(_request: InfoRequest) -> PluginInfo:
        return PluginInfo(
            type="DRAPlugin", name=DRIVER, endpoint=str(service), supported_versions=VERSIONS
        )

    async def notify(status: RegistrationStatus) -> RegistrationStatusResponse:
        registration.registered = status.plugin_registered
        registration.error = status.error
        registration.heard()
        if status.plugin_registered:
            log.info("driver-registered", extra={"driver": DRIVER})
        else:
            log.warning("driver-not-registered", extra={"reason": status.error})
        return RegistrationStatusResponse()

    methods = {
        "GetInfo": _method(info, InfoRequest, PluginInfo),
        "NotifyRegistrationStatus": _method(notify, RegistrationStatus, RegistrationStatusResponse),
    }
    return grpc.method_handlers_generic_handler(_REGISTRATION, methods)


def _method(
    call: Callable[[Any], Awaitable[Message]], request: type[Message], response: type[Message]
) -> grpc.RpcMethodHandler[Any, Any]:
    async def answer(asked: Any, _context: _Context) -> Message:
        return await call(asked)

    return grpc.unary_unary_rpc_method_handler(
        answer,
        request_deserializer=request.FromString,
        response_serializer=response.SerializeToString,
    )


def _bound(path: Path, handlers: list[grpc.GenericRpcHandler]) -> grpc.aio.Server:
    """Return a server that listens at *path* in place of an earlier daemon's."""
    if len(bytes(path)) > MAX_PATH:
        raise OSError(f"{path} is longer than the {MAX_PATH} bytes of a socket's path")
    path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    server = grpc.aio.server(options=[("grpc.max_receive_message_length", MAX_MESSAGE)])
    server.add_generic_rpc_handlers(handlers)
    try:
        server.add_insecure_port(f"unix:{path}")
    except RuntimeError as error:
        raise OSError(f"{path}: cannot listen there: {error}") from error
    path.chmod(0o600)
    return server
