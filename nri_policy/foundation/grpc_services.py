"""Makes both sides of a gRPC service from its descriptor: a handler and a stub."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import grpc
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message_factory import GetMessageClass

from nri_policy.foundation.threads import start

# gRPC starts about so many for its first server or channel: some, and a pool by the number of CPUs
THREADS = 6 + min(max(4, os.cpu_count() or 1), 16)

# by whether requests and answers are streams
_HANDLERS = {
    (False, False): grpc.unary_unary_rpc_method_handler,
    (False, True): grpc.unary_stream_rpc_method_handler,
    (True, True): grpc.stream_stream_rpc_method_handler,
}
_CALLS = {
    (False, False): "unary_unary",
    (False, True): "unary_stream",
    (True, True): "stream_stream",
}


def require_threads() -> None:
    """Raise OSError if `THREADS` more cannot be started now: gRPC would end the process."""
    tried = threading.Event()
    started: list[threading.Thread] = []
    try:
        for _ in range(THREADS):
            thread = threading.Thread(target=tried.wait, name="trial", daemon=True)
            start(thread)
            started.append(thread)
    finally:
        tried.set()
        for thread in started:
            thread.join()


def service_handler(
    service: ServiceDescriptor, methods: Mapping[str, Callable[..., Any]]
) -> grpc.GenericRpcHandler:
    """Return the handler of *service*, with a coroutine or asynchronous generator per method.

    Methods that are not given are unimplemented.
    """
    assert methods.keys() <= {*service.methods_by_name}, "a method is not of this service"
    handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}
    for method in (service.methods_by_name[name] for name in methods):
        make = _HANDLERS[method.client_streaming, method.server_streaming]
        handlers[method.name] = make(
            methods[method.name],
            request_deserializer=GetMessageClass(method.input_type).FromString,
            response_serializer=GetMessageClass(method.output_type).SerializeToString,
        )
    return grpc.method_handlers_generic_handler(service.full_name, handlers)


def service_stub(
    channel: grpc.Channel | grpc.aio.Channel, service: ServiceDescriptor
) -> SimpleNamespace:
    """Return an object with a callable for each method of *service*, by its name."""
    calls = {}
    for method in service.methods:
        make = getattr(channel, _CALLS[method.client_streaming, method.server_streaming])
        calls[method.name] = make(
            f"/{service.full_name}/{method.name}",
            request_serializer=GetMessageClass(method.input_type).SerializeToString,
            response_deserializer=GetMessageClass(method.output_type).FromString,
        )
    return SimpleNamespace(**calls)
