"""Handlers and stubs made from descriptors, over a real channel."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from nri_policy.foundation.grpc_services import (
    THREADS,
    require_threads,
    service_handler,
    service_stub,
)
from nri_policy.proto import health_pb2
from nri_policy.proto.health_pb2 import HealthCheckRequest, HealthCheckResponse

SERVICE = health_pb2.DESCRIPTOR.services_by_name["Health"]


async def check(_request: HealthCheckRequest, _context: Any) -> HealthCheckResponse:
    return HealthCheckResponse(status=HealthCheckResponse.SERVING)


async def watch(request: HealthCheckRequest, _context: Any) -> AsyncIterator[HealthCheckResponse]:
    for _ in request.service:
        yield HealthCheckResponse(status=HealthCheckResponse.NOT_SERVING)


async def test_a_stub_calls_the_methods_of_a_handler_and_others_are_unimplemented(
    tmp_path: Path,
) -> None:
    for methods in ({"Check": check, "Watch": watch}, {"Check": check}):
        path = tmp_path / f"{len(methods)}.sock"
        server = grpc.aio.server()
        server.add_generic_rpc_handlers([service_handler(SERVICE, methods)])
        server.add_insecure_port(f"unix:{path}")
        await server.start()
        async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
            stub = service_stub(channel, SERVICE)
            answer = await stub.Check(HealthCheckRequest())
            assert answer.status == HealthCheckResponse.SERVING
            watching = stub.Watch(HealthCheckRequest(service="abc"))
            if "Watch" in methods:
                assert len([each async for each in watching]) == 3
            else:
                with pytest.raises(grpc.aio.AioRpcError, match="UNIMPLEMENTED"):
                    await anext(aiter(watching))
        await server.stop(None)


def test_a_method_of_another_service_is_an_error() -> None:
    with pytest.raises(AssertionError, match="is not of this service"):
        service_handler(SERVICE, {"Reload": check})


def test_threads_that_cannot_be_started_are_an_os_error_and_none_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = {*threading.enumerate()}
    require_threads()
    assert {*threading.enumerate()} <= before  # those of an earlier test may end
    started: list[threading.Thread] = []
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if len(started) == THREADS - 1:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(OSError, match="no more threads can be started"):
        require_threads()
    assert {*threading.enumerate()} <= before
    assert len(started) == THREADS - 1
