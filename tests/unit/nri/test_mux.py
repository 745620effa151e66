from __future__ import annotations

import pytest

from nri_policy.nri import mux
from nri_policy.nri.errors import LocalProtocolError, RemoteProtocolError
from nri_policy.nri.mux import Conn, Mux, Payload


def lengths(frames: bytes) -> list[int]:
    found = []
    while frames:
        _, length = mux.HEADER.unpack_from(frames)
        found.append(length)
        frames = frames[mux.HEADER.size + length :]
    return found


def test_a_frame_names_its_connection_and_length() -> None:
    assert mux.send(Conn.RUNTIME, b"hello") == b"\0\0\0\2\0\0\0\5hello"


@pytest.mark.parametrize(
    ("size", "frames"),
    [
        (10, [10]),
        (4096, [4096]),
        (4097, [4096, 1]),
        (6209, [4096, 2113]),  # the Synchronize of spec 1.7
        (mux.MAX_SENT_PAYLOAD, [4096, mux.MAX_SENT_PAYLOAD - 4096]),
    ],
)
def test_a_message_is_cut_once_where_the_go_reader_takes_it(size: int, frames: list[int]) -> None:
    message = bytes(index % 251 for index in range(size))
    sent = mux.send(Conn.PLUGIN, message)
    assert lengths(sent) == frames
    assert b"".join(payload.data for payload in Mux().receive_data(sent)) == message


def test_a_message_that_fits_no_frame_is_refused_before_it_is_sent() -> None:
    with pytest.raises(LocalProtocolError, match="does not fit"):
        mux.send(Conn.PLUGIN, bytes(mux.MAX_SENT_PAYLOAD + 1))


def test_frames_of_connections_that_do_not_exist_are_dropped() -> None:
    frames = b"\0\0\0\0\0\0\0\1a" + mux.send(Conn.PLUGIN, b"b") + b"\0\0\0\3\0\0\0\1c"
    assert Mux().receive_data(frames) == [Payload(conn=Conn.PLUGIN, data=b"b")]


def test_an_empty_frame_is_a_frame() -> None:
    assert Mux().receive_data(b"\0\0\0\1\0\0\0\0") == [Payload(conn=Conn.PLUGIN, data=b"")]


def test_an_absurd_length_is_an_error_at_once_and_stays_one() -> None:
    receiver = Mux()
    with pytest.raises(RemoteProtocolError, match="mux frame announces 4294967295 bytes"):
        receiver.receive_data(mux.send(Conn.PLUGIN, b"fine") + b"\0\0\0\1\xff\xff\xff\xff")
    with pytest.raises(RemoteProtocolError):
        receiver.receive_data(mux.send(Conn.PLUGIN, b"fine"))
