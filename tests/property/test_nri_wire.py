from __future__ import annotations

import asyncio
from contextlib import suppress
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from nri_policy.foundation.clock import Clock
from nri_policy.nri import mux, ttrpc
from nri_policy.nri.channel import Channel
from nri_policy.nri.connection import Connection
from nri_policy.nri.errors import RemoteProtocolError
from nri_policy.nri.framing import FrameBuffer
from nri_policy.nri.mux import Conn

payloads = st.binary(max_size=200) | st.integers(4000, 9000).map(bytes)
METHOD = st.text("abc é", max_size=20)


@st.composite
def conversations(draw: st.DrawFn) -> bytes:
    """What a runtime could say: calls, answers, failures and frames that mean nothing to us."""
    runtime, said = Connection(Conn.RUNTIME), b""
    for _ in range(draw(st.integers(0, 6))):
        kind = draw(st.sampled_from(["call", "answer", "failure", "stray"]))
        call = ttrpc.IncomingCall(
            stream=draw(st.integers(0, ttrpc.MAX_STREAM)),
            service="",
            method="",
            payload=b"",
            timeout_nano=0,
        )
        if kind == "call":
            said += runtime.send_request(draw(METHOD), draw(payloads))[1]
        elif kind == "answer":
            said += runtime.send_response(call, draw(payloads))
        elif kind == "failure":
            code = draw(st.integers(1, 16))
            said += runtime.send_status(call, code, draw(METHOD), draw(payloads))
        else:
            stray = draw(payloads)
            conn = draw(st.sampled_from([0, 3, 0xFFFFFFFF]))
            said += mux.HEADER.pack(conn, len(stray)) + stray
    return said


def pieces(data: bytes, draw: st.DataObject) -> list[bytes]:
    cuts = draw.draw(st.lists(st.integers(0, len(data)), max_size=12).map(sorted), label="cuts")
    return [data[start:end] for start, end in pairwise([0, *cuts, len(data)])]


@given(said=conversations(), data=st.data())
def test_any_split_of_a_stream_gives_the_same_events(said: bytes, data: st.DataObject) -> None:
    plugin = Connection(Conn.PLUGIN)
    events = [event for piece in pieces(said, data) for event in plugin.receive_data(piece)]
    assert events == Connection(Conn.PLUGIN).receive_data(said)


@given(said=conversations())
def test_a_stream_that_comes_byte_by_byte_gives_the_same_events(said: bytes) -> None:
    plugin = Connection(Conn.PLUGIN)
    events = [event for byte in said for event in plugin.receive_data(bytes([byte]))]
    assert events == Connection(Conn.PLUGIN).receive_data(said)


@st.composite
def garbage(draw: st.DrawFn) -> bytes:
    """Bytes, and frames with plausible headers around bytes: they reach deeper."""
    message = st.builds(
        lambda stream, kind, body: ttrpc.HEADER.pack(len(body), stream, kind, 0) + body,
        st.integers(0, 5),
        st.integers(0, 4),
        st.binary(max_size=60),
    )
    frame = st.builds(
        lambda conn, payload: mux.HEADER.pack(conn, len(payload)) + payload,
        st.integers(0, 3),
        message | st.binary(max_size=30),
    )
    return b"".join(draw(st.lists(frame | st.binary(max_size=30), max_size=8)))


@given(noise=garbage(), side=st.sampled_from(Conn), data=st.data())
def test_garbage_is_taken_or_is_the_peers_fault(
    noise: bytes, side: Conn, data: st.DataObject
) -> None:
    def verdict(chunks: list[bytes]) -> str:
        connection = Connection(side)
        try:
            for chunk in chunks:
                connection.receive_data(chunk)
        except RemoteProtocolError:
            return "the peer's fault"
        return "taken"

    assert verdict([noise]) == verdict(pieces(noise, data))


@given(noise=garbage(), said=conversations())
def test_a_mutilated_stream_is_taken_or_is_the_peers_fault(noise: bytes, said: bytes) -> None:
    for broken in (said[: len(said) // 2] + noise + said[len(said) // 2 :], said[1:], said[::-1]):
        with suppress(RemoteProtocolError):
            Connection(Conn.PLUGIN).receive_data(broken)


class Wire(asyncio.Transport):
    """Keeps what a channel writes."""

    def __init__(self) -> None:
        self.written = b""
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def close(self) -> None:
        self.closed = True


@given(said=conversations() | garbage(), data=st.data())
def test_a_channel_does_the_same_however_the_bytes_come(said: bytes, data: st.DataObject) -> None:
    async def outcome(chunks: list[bytes]) -> tuple[list[ttrpc.IncomingCall], bytes, bool, str]:
        taken, wire = [], Wire()
        channel = Channel(Conn.PLUGIN, Clock(), lambda request, *_: taken.append(request))
        channel.connection_made(wire)
        for chunk in chunks:
            if not wire.closed:  # as the transport does
                channel.data_received(chunk)
        fault = channel.ended.exception() if channel.ended.done() else None
        assert wire.closed == (fault is not None)
        assert fault is None or isinstance(fault, RemoteProtocolError)
        return taken, wire.written, wire.closed, str(fault)

    whole = asyncio.run(outcome([said]))
    split = asyncio.run(outcome(pieces(said, data)))
    if whole[2]:  # frames before a fault in the same piece are dropped, also another fault
        assert split[2]
    else:
        assert split == whole


@given(noise=st.lists(st.binary(max_size=50), max_size=20))
def test_a_buffer_never_holds_more_than_one_unfinished_frame(noise: list[bytes]) -> None:
    limit = 64
    buffer = FrameBuffer(mux.HEADER, length_field=1, limit=limit, layer="test")
    try:
        for chunk in noise:
            buffer.receive_data(chunk)
            assert len(buffer._pending) < mux.HEADER.size + limit
    except RemoteProtocolError:
        assert len(buffer._pending) < mux.HEADER.size + limit + 50
