"""The Go reader takes what our codec sends, and nothing that it is given breaks it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nri_policy.nri import mux
from nri_policy.nri.mux import Conn
from nri_policy.nri.ttrpc import HEADER, REQUEST, RESPONSE
from nri_policy.simulation.goreader import GoTrunk

SIZES = st.one_of(
    st.integers(0, 64), st.integers(4070, 4100), st.integers(8170, 8200), st.integers(0, 100_000)
)
MESSAGES = st.lists(st.tuples(st.sampled_from(Conn), SIZES), max_size=20)


@given(MESSAGES, st.data())
def test_what_our_codec_sends_is_read_however_it_arrives(
    sent: list[tuple[Conn, int]], data: st.DataObject
) -> None:
    wire = b"".join(
        mux.send(conn, HEADER.pack(size, stream, REQUEST, 0) + bytes(size))
        for stream, (conn, size) in enumerate(sent)
    )
    cuts = sorted(data.draw(st.lists(st.integers(0, len(wire)), max_size=20)))
    trunk = GoTrunk()
    received = []
    for start, end in zip([0, *cuts], [*cuts, len(wire)], strict=True):
        received += trunk.receive_data(wire[start:end])
    assert sorted((m.stream, m.conn, len(m.body)) for m in received) == [
        (stream, conn, size) for stream, (conn, size) in enumerate(sent)
    ]
    assert not trunk.fatal
    assert not trunk.deaf


FRAMES = st.tuples(st.integers(0, 3), st.binary(max_size=60)).map(
    lambda frame: mux.HEADER.pack(frame[0], len(frame[1])) + frame[1]
)
HEADERS = st.tuples(
    st.sampled_from(Conn), st.integers(0, 300), st.sampled_from([REQUEST, RESPONSE, 3])
).map(lambda m: mux.HEADER.pack(m[0], HEADER.size) + HEADER.pack(m[1], 1, m[2], 0))


@given(st.lists(st.one_of(FRAMES, HEADERS, st.binary(max_size=20)), max_size=50))
def test_garbage_is_read_or_refused(parts: list[bytes]) -> None:
    trunk = GoTrunk()
    for part in parts:
        if not trunk.fatal:
            for message in trunk.receive_data(part):
                assert message.encoded.endswith(message.body)
