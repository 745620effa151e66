from __future__ import annotations

import itertools

import pytest

from nri_policy.nri import mux
from nri_policy.nri.mux import Conn
from nri_policy.nri.ttrpc import HEADER, RESPONSE
from nri_policy.simulation.goreader import GoMessage, GoTrunk

READ = 1 << 18  # bytes that a socket gives at once


def message(size: int, stream: int = 1) -> bytes:
    return HEADER.pack(size, stream, RESPONSE, 0) + bytes(size)


def frames(data: bytes, *cuts: int, conn: int = Conn.PLUGIN) -> bytes:
    edges = [0, *cuts, len(data)]
    parts = [data[a:b] for a, b in itertools.pairwise(edges)]
    return b"".join(mux.HEADER.pack(conn, len(part)) + part for part in parts)


def read(trunk: GoTrunk, wire: bytes) -> list[GoMessage]:
    return [
        message
        for start in range(0, len(wire), READ)
        if not trunk.fatal
        for message in trunk.receive_data(wire[start : start + READ])
    ]


def every(size: int, data: bytes) -> range:
    return range(size, len(data), size)


@pytest.mark.parametrize("size", [0, 1, 4086, 4087, 5000, 8182, 8183, 3_000_000, 4 << 20])
def test_what_our_codec_sends_is_read(size: int) -> None:
    trunk = GoTrunk()
    wire = mux.send(Conn.PLUGIN, message(size)) + mux.send(Conn.RUNTIME, message(size, 3))
    received = read(trunk, wire)
    assert [(m.conn, m.stream, len(m.body)) for m in received] == [
        (Conn.PLUGIN, 1, size),
        (Conn.RUNTIME, 3, size),
    ]
    assert not trunk.fatal
    assert not trunk.deaf


# The outcomes that were measured with a real runtime (spec: NRI on the wire, 1.3).
@pytest.mark.parametrize(
    ("size", "cuts", "outcome"),
    [
        (5000, (10,), "read"),
        (3_000_000, (10,), "read"),
        (5000, every(4096, message(5000)), "read"),
        (3_000_000, every(4096, message(3_000_000)), "read"),
        (5000, (), "ENOMEM"),
        (3_000_000, (), "ENOMEM"),
        (3_000_000, every(65536, message(3_000_000)), "ENOMEM"),
        (5000, every(100, message(5000)), "read"),
        (3_000_000, every(100, message(3_000_000)), "queue"),
    ],
)
def test_cuts_fail_as_measured(size: int, cuts: tuple[int, ...], outcome: str) -> None:
    trunk = GoTrunk()
    received = read(trunk, frames(message(size), *cuts))
    assert [len(m.body) for m in received] == ([size] if outcome == "read" else [])
    assert bool(trunk.fatal) == (outcome != "read")
    assert outcome == "read" or outcome in trunk.fatal


def test_two_messages_may_share_a_small_frame() -> None:
    trunk = GoTrunk()
    assert len(read(trunk, frames(message(100) + message(200)))) == 2


def test_two_messages_sharing_a_large_frame_are_refused() -> None:
    trunk = GoTrunk()
    data = message(9000) + message(10)
    assert read(trunk, frames(data, 4096)) == []
    assert "ENOMEM" in trunk.fatal


def test_a_cut_in_the_rest_that_leaves_less_room_than_the_buffer_is_read_through_it() -> None:
    data = message(6000)
    trunk = GoTrunk()
    assert len(read(trunk, frames(data, 4096, 5000) + frames(message(1)))) == 2


def test_bytes_may_arrive_one_by_one() -> None:
    trunk = GoTrunk()
    wire = mux.send(Conn.PLUGIN, message(5000))
    received = [m for i in range(len(wire)) for m in trunk.receive_data(wire[i : i + 1])]
    assert [len(m.body) for m in received] == [5000]


def test_the_same_mistake_on_the_runtime_connection_only_makes_it_deaf() -> None:
    trunk = GoTrunk()
    wire = frames(message(10), conn=2) + frames(message(5000), conn=2) + frames(message(1), conn=2)
    assert [len(m.body) for m in read(trunk, wire)] == [10]
    assert "ENOMEM" in trunk.deaf
    assert not trunk.fatal
    assert [m.conn for m in read(trunk, frames(message(1)) * 2)] == [Conn.PLUGIN, Conn.PLUGIN]


def test_frames_to_a_deaf_connection_fill_its_queue_and_then_close_the_socket() -> None:
    trunk = GoTrunk()
    read(trunk, frames(message(5000), conn=2))
    for _ in range(256):
        trunk.receive_data(frames(b"x", conn=2))
    assert not trunk.fatal
    trunk.receive_data(frames(b"x", conn=2))
    assert "queue" in trunk.fatal


@pytest.mark.parametrize("conn", list(Conn))
def test_a_body_over_4_mib_closes_the_socket(conn: Conn) -> None:
    trunk = GoTrunk()
    assert read(trunk, frames(HEADER.pack((4 << 20) + 1, 1, 2, 0), conn=conn)) == []
    assert "4194305" in trunk.fatal


def test_frames_of_unknown_connections_are_dropped() -> None:
    trunk = GoTrunk()
    assert len(read(trunk, frames(message(9000), conn=7) + frames(message(1)))) == 1
    assert not trunk.fatal


def test_a_frame_of_an_absurd_length_closes_the_socket() -> None:
    trunk = GoTrunk()
    assert read(trunk, mux.HEADER.pack(1, 0xFFFFFFFF)) == []
    assert trunk.fatal
