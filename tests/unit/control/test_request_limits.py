"""What is held of what callers send, however much of it they send at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from nri_policy.control import request_limits
from nri_policy.control.endpoint import MAX_BYTES
from nri_policy.control.request_limits import MAX_READ, MAX_REQUEST, RequestLimiter
from tests.unit.control.serving import listening

Ask = Callable[[bytes], Any]


class Held:
    """Counts what is held at once."""

    def __init__(self) -> None:
        self.now = self.most = 0

    def one_more(self) -> None:
        self.now += 1
        self.most = max(self.most, self.now)


@asynccontextmanager
async def serving(folder: Path, held: Held, large: Collection[str] = ()) -> AsyncIterator[Ask]:
    """Serve a method that returns how long its request is; yield what asks it."""

    async def answer(request: bytes, _context: object) -> bytes:
        held.one_more()
        await asyncio.sleep(0.01)
        held.now -= 1
        return str(len(request)).encode()

    method: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(answer)
    served = grpc.method_handlers_generic_handler("length", {"Of": method})
    path = folder / "control.sock"
    async with (
        listening(path, [served], large=large),
        grpc.aio.insecure_channel(f"unix:{path}") as channel,
    ):
        method_there: Any = channel.unary_unary("/length/Of")
        yield method_there


async def refused(call: Any) -> grpc.StatusCode:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await call
    return error.value.code()


async def test_a_request_that_no_method_needs_is_refused_before_it_is_read(tmp_path: Path) -> None:
    held = Held()
    async with serving(tmp_path, held) as ask:
        assert await ask(bytes(MAX_REQUEST)) == str(MAX_REQUEST).encode()
        for size in (MAX_REQUEST + 1, MAX_BYTES, MAX_BYTES + 1, 4 << 20):
            assert await refused(ask(bytes(size))) is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert held.most == 1


async def test_methods_that_may_be_asked_at_length_answer_one_after_the_other(
    tmp_path: Path,
) -> None:
    held = Held()
    async with serving(tmp_path, held, large=["/length/Of"]) as ask:
        calls = [ask(bytes(MAX_BYTES)) for _ in range(6)]
        assert [await each for each in calls] == [str(MAX_BYTES).encode()] * 6
        assert await refused(ask(bytes(MAX_BYTES + 1))) is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert held.most == 1


async def test_other_methods_answer_at_once(tmp_path: Path) -> None:
    held = Held()
    async with serving(tmp_path, held) as ask:
        calls = [ask(b"") for _ in range(6)]
        assert [await each for each in calls] == [b"0"] * 6
    assert held.most > 1


class Context:
    """Of a call whose caller sends what the test lets through."""

    def __init__(self) -> None:
        self.status: grpc.StatusCode | None = None

    async def abort(self, status: grpc.StatusCode, _text: str) -> None:
        self.status = status
        raise grpc.aio.AbortError


async def test_few_are_read_at_a_time_and_none_is_waited_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(request_limits, "ARRIVAL", 0.01)
    held = Held()

    async def never() -> AsyncIterator[bytes]:
        held.one_more()
        try:
            await asyncio.Event().wait()
        finally:
            held.now -= 1
        yield b""

    async def length(request: bytes, _context: object) -> bytes:
        return request

    async def found(_details: object) -> object:
        return grpc.unary_unary_rpc_method_handler(length)

    details: Any = type("Details", (), {"method": "/length/Of"})
    handler = await RequestLimiter([]).intercept_service(found, details)
    contexts = [Context() for _ in range(3 * MAX_READ)]

    async def call(context: Context) -> None:
        with pytest.raises(grpc.aio.AbortError):
            await anext(handler.stream_stream(never(), context))

    await asyncio.gather(*map(call, contexts))
    assert held.most == MAX_READ
    assert {each.status for each in contexts} == {grpc.StatusCode.DEADLINE_EXCEEDED}
