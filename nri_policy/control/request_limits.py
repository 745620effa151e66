"""Limits how much of the callers' requests is in memory at a time.

gRPC hands a method its whole request, and makes several copies of it. So only a few requests are
read at once, and one that is larger than MAX_REQUEST is refused before it is parsed. Methods that
accept large requests serve them one after the other.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection
from contextlib import aclosing, nullcontext
from typing import Any

import grpc

MAX_READ = 4  # requests at a time
MAX_REQUEST = 64 << 10  # bytes of a request
ARRIVAL = 2.0  # seconds; clients are on this host

_Requests = AsyncIterator[bytes]
_Context = grpc.aio.ServicerContext[Any, Any]


class RequestLimiter(grpc.aio.ServerInterceptor):
    """Reads the requests to a server's methods; *large* are methods that accept large ones."""

    def __init__(self, large: Collection[str]) -> None:
        self._reading = asyncio.Semaphore(MAX_READ)
        self._large = {method: asyncio.Lock() for method in large}

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Return the method's handler, wrapped: requests are read here first."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        alone = self._large.get(handler_call_details.method)

        async def answers(requests: _Requests, context: _Context) -> AsyncIterator[Any]:
            async with alone or nullcontext():
                asked = self._read(
                    requests, context, handler.request_deserializer, large=alone is not None
                )
                async with aclosing(_answers(handler, asked, context)) as answering:
                    async for each in answering:
                        yield each

        return grpc.stream_stream_rpc_method_handler(
            answers, response_serializer=handler.response_serializer
        )

    async def _read(
        self,
        requests: _Requests,
        context: _Context,
        parse: Callable[[bytes], Any] | None,
        *,
        large: bool,
    ) -> AsyncIterator[Any]:
        while True:
            async with self._reading:
                try:
                    async with asyncio.timeout(ARRIVAL):
                        request = await anext(requests, None)
                except TimeoutError:
                    text = f"no request came within {ARRIVAL:g} s"
                    await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, text)
                if request is None:
                    return
                if (size := len(request)) > MAX_REQUEST and not large:
                    del request  # else the error would keep it in memory
                    text = f"a request of {size} bytes is too large; at most {MAX_REQUEST}"
                    await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, text)
                parsed = parse(request) if parse else request
            yield parsed


async def _answers(
    handler: Any, asked: AsyncIterator[Any], context: _Context
) -> AsyncGenerator[Any]:
    """Yield the answers of a method of any kind."""
    if handler.request_streaming:
        async for each in handler.stream_stream(asked, context):
            yield each
        return
    async for request in asked:
        if handler.response_streaming:
            async for each in handler.unary_stream(request, context):
                yield each
        else:
            yield await handler.unary_unary(request, context)
        return
    await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "no request came")
