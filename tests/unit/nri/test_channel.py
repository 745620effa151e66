from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple

import pytest

from nri_policy.foundation.clock import Clock
from nri_policy.nri import channel as channel_module
from nri_policy.nri import ttrpc
from nri_policy.nri.channel import Channel
from nri_policy.nri.errors import CallRefused, Code, LocalProtocolError, RemoteProtocolError
from nri_policy.nri.mux import Conn
from nri_policy.nri.ttrpc import IncomingCall, Response
from nri_policy.proto import nri_pb2 as pb
from tests.unit.nri.peer import FakeTime, Peer


class Taken(NamedTuple):
    """A request, and how to answer it."""

    request: IncomingCall
    received: float
    answer: Callable[[bytes | CallRefused], None]


class Ends(NamedTuple):
    """Both ends of a socket, and what has come to ours."""

    channel: Channel
    peer: Peer
    taken: asyncio.Queue[Taken]


@asynccontextmanager
async def connected(time: FakeTime | None = None) -> AsyncIterator[Ends]:
    ours, theirs = socket.socketpair()
    taken: asyncio.Queue[Taken] = asyncio.Queue()
    _, channel = await asyncio.get_running_loop().create_unix_connection(
        lambda: Channel(
            Conn.PLUGIN,
            time.clock if time else Clock(),
            lambda *each: taken.put_nowait(Taken(*each)),
        ),
        sock=ours,
    )
    peer = Peer(*await asyncio.open_unix_connection(sock=theirs))
    yield Ends(channel, peer, taken)
    channel.close()
    peer.close()
    await channel.wait_closed()


async def test_answers_come_to_their_calls_in_any_order() -> None:
    async with connected() as (channel, peer, _):
        calls = [
            asyncio.create_task(channel.call(method, pb.Empty(), budget=60))
            for method in ("First", "Second")
        ]
        first, second = await peer.request("First"), await peer.request("Second")
        assert first.timeout_nano == 60_000_000_000
        peer.respond(second, pb.RegisterPluginRequest(plugin_name="two"))
        peer.refuse(first, Code.UNKNOWN, "no", payload=b"which")
        assert [await call for call in calls] == [
            Response(stream=1, payload=b"which", code=Code.UNKNOWN, message="no"),
            Response(stream=3, payload=b"\n\3two", code=Code.OK, message=""),
        ]
        peer.close()
        await channel.ended


async def test_a_call_that_is_not_answered_in_time_is_given_up() -> None:
    time = FakeTime()
    async with connected(time) as (channel, peer, _):
        call = asyncio.create_task(channel.call("Method", pb.Empty(), budget=30))
        request = await peer.request("Method")
        time.advance(30)
        with pytest.raises(TimeoutError, match="Method was not answered within 30 seconds"):
            await call
        peer.respond(request)  # too late, and no harm
        peer.close()
        await channel.ended


async def test_calls_end_with_their_connection() -> None:
    async with connected() as (channel, peer, _):
        call = asyncio.create_task(channel.call("Method", pb.Empty(), budget=30))
        await peer.request("Method")
        peer.close()
        with pytest.raises(ConnectionError, match="before Method was answered"):
            await call
        await channel.ended
        with pytest.raises(ConnectionError, match="connection closed"):
            await channel.call("Method", pb.Empty(), budget=30)


async def test_a_response_too_large_for_the_peer_becomes_a_failure() -> None:
    async with connected() as (channel, peer, taken):
        peer.send("Synchronize", pb.SynchronizeRequest())
        (await taken.get()).answer(bytes(ttrpc.MAX_SENT_BODY))
        response = await peer.event()
        assert isinstance(response, Response)
        assert response.code == Code.RESOURCE_EXHAUSTED
        assert "Synchronize response: ttrpc body of 4194309 bytes" in response.message
        peer.close()
        await channel.ended


async def test_a_call_too_large_for_the_peer_is_refused_here() -> None:
    async with connected() as (channel, _, _):
        request = pb.RegisterPluginRequest(plugin_name="x" * ttrpc.MAX_SENT_BODY)
        with pytest.raises(LocalProtocolError):
            await channel.call("RegisterPlugin", request, budget=30)


async def test_requests_come_in_order_with_the_time_when_they_came() -> None:
    time = FakeTime()
    async with connected(time) as (channel, peer, taken):
        for method in ("A", "B"):
            peer.send(method, pb.Empty())
        peer.close()
        await channel.ended
        came = [taken.get_nowait() for _ in range(2)]
        assert [(each.request.method, each.received) for each in came] == [("A", 100), ("B", 100)]


async def test_a_request_with_a_bad_stream_id_is_refused_at_once() -> None:
    async with connected() as (channel, peer, _):
        peer.send("A", pb.Empty())
        peer.connection._client._next_stream = 1
        peer.send("B", pb.Empty())
        response = await peer.event()
        assert isinstance(response, Response)
        assert response.code == Code.INVALID_ARGUMENT
        peer.close()
        await channel.ended


async def test_a_peer_that_breaks_the_rules_ends_the_reading() -> None:
    async with connected() as (channel, peer, _):
        peer.writer.write(b"\xff" * 8)
        with pytest.raises(RemoteProtocolError):
            await channel.ended
        await peer.closed_by_plugin()


async def test_requests_that_nobody_answers_do_not_pile_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(channel_module, "MAX_WAITING", 4000)
    async with connected() as (channel, peer, taken):
        for _ in range(5):  # those that are answered do not count
            assert (await answered(peer, taken)).code == 0
        for _ in range(5):
            peer.send("A", pb.Empty())
        with pytest.raises(RemoteProtocolError, match="wait for us"):
            await channel.ended


async def answered(peer: Peer, taken: asyncio.Queue[Taken]) -> Response:
    """Have the peer call, and answer it."""
    call = asyncio.create_task(peer.call("A", pb.Empty()))
    (await taken.get()).answer(b"")
    return await call


async def test_a_peer_that_does_not_read_is_not_read_from() -> None:
    async with connected() as (_, peer, taken):
        peer.send("A", pb.Empty())
        (await taken.get()).answer(bytes(4_000_000))  # far more than the system buffers
        peer.send("B", pb.Empty())
        for _ in range(50):
            await asyncio.sleep(0)
        assert taken.empty()
        response = await peer.event()
        assert isinstance(response, Response)
        assert len(response.payload) == 4_000_000
        assert (await taken.get()).request.method == "B"


async def test_a_peer_that_does_not_read_cannot_hold_up_the_end() -> None:
    time = FakeTime()
    async with connected(time) as (channel, peer, taken):
        for method in "ABCD":
            peer.send(method, pb.Empty())
        came = [await taken.get() for _ in range(4)]
        for each in came:
            each.answer(bytes(4_000_000))
        channel.close()
        closing = asyncio.create_task(channel.wait_closed())
        await time.asleep.wait()
        assert not closing.done()
        time.advance(1)
        await closing
