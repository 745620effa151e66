from __future__ import annotations

import pytest

from nri_policy.systemd.message import (
    MAX_MESSAGE,
    PREFIX,
    BusMessage,
    MessageError,
    MethodCall,
    Type,
    decode,
    encode,
    encode_properties,
    length_of,
)
from tests.unit.systemd.bus import recorded

CALL = MethodCall(destination="org.a", path="/a", interface="org.a.B", member="C")


def messages(data: bytes) -> list[BusMessage]:
    """Return the messages that follow one another."""
    found = []
    while data:
        length = length_of(data[:PREFIX])
        found.append(decode(data[:length]))
        data = data[length:]
    return found


def test_a_call_has_its_fields_at_their_places() -> None:
    assert encode(CALL, 7) == b"".join(
        [
            b"l\x01\0\x01\0\0\0\0\x07\0\0\0\x3a\0\0\0",
            b"\x01\x01o\0\x02\0\0\0/a\0\0\0\0\0\0",
            b"\x06\x01s\0\x05\0\0\0org.a\0\0\0",
            b"\x02\x01s\0\x07\0\0\0org.a.B\0",
            b"\x03\x01s\0\x01\0\0\0C\0\0\0\0\0\0\0",
        ]
    )


def test_the_arguments_are_a_unit_true_and_properties_of_bytes() -> None:
    assert encode_properties("a.scope", {"B": b"\x01", "C": b""}) == b"".join(
        [
            b"\x07\0\0\0a.scope\0\x01\0\0\0\x28\0\0\0\0\0\0\0",
            b"\x01\0\0\0B\0\x02ay\0\0\0\x01\0\0\0\x01\0\0\0\0\0\0\0",
            b"\x01\0\0\0C\0\x02ay\0\0\0\0\0\0\0",
        ]
    )


def test_an_answer_of_systemd_is_read() -> None:
    assert messages(recorded("own-answered")[1]) == [BusMessage(type=Type.ANSWER, reply_to=2)]


def test_an_error_of_systemd_is_read_with_its_text_and_the_signals_after_it() -> None:
    error, *signals = messages(recorded("own-gone")[1])
    assert error == BusMessage(
        type=Type.ERROR,
        reply_to=2,
        error="org.freedesktop.systemd1.NoSuchUnit",
        text="Unit cri-containerd-gone.scope not found.",
    )
    assert [each.type for each in signals] == [Type.SIGNAL, Type.SIGNAL]


def test_the_system_bus_answers_hello_first() -> None:
    hello, signal, answer = messages(recorded("bus-answered")[1])
    assert (hello.type, hello.reply_to, hello.text[:1]) == (Type.ANSWER, 1, ":")
    assert signal.type == Type.SIGNAL
    assert answer == BusMessage(type=Type.ANSWER, reply_to=2)


def test_a_message_in_big_endian_is_read() -> None:
    fields = b"\x05\x01u\0\0\0\0\x02"
    assert decode(b"B\x02\x01\x01" + bytes(8) + b"\0\0\0\x08" + fields) == BusMessage(
        type=Type.ANSWER, reply_to=2
    )


def test_a_message_that_is_too_long_is_refused_by_its_beginning() -> None:
    start = b"l\x02\x01\x01"
    longest = MAX_MESSAGE - PREFIX
    assert length_of(start + longest.to_bytes(4, "little") + bytes(8)) == MAX_MESSAGE
    for body, fields in ((longest + 1, 0), (0, longest + 1), (0xFFFFFFFF, 0xFFFFFFFF)):
        lengths = body.to_bytes(4, "little") + bytes(4) + fields.to_bytes(4, "little")
        with pytest.raises(MessageError, match=r"a message of \d+ bytes"):
            length_of(start + lengths)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "0 bytes"),
        (b"x\x02\x01\x01" + bytes(12), "begins with b'x"),
        (b"l\x02\x01\x02" + bytes(12), "begins with"),
        (b"l\x02\x01\x01" + bytes(8) + b"\x08\0\0\0" + b"\x05\x01v\0\0\0\0\0", "of type 'v'"),
        (b"l\x02\x01\x01" + bytes(8) + b"\x08\0\0\0" + b"\x04\x01u\0\0\0\0\0", "wrong type"),
        (
            b"l\x02\x01\x01" + bytes(8) + b"\x08\0\0\0" + b"\x04\x01s\0\xff\xff\xff\xff",
            "ends within",
        ),
    ],
)
def test_what_is_no_message_is_refused(data: bytes, problem: str) -> None:
    with pytest.raises(MessageError, match=problem):
        decode(data)
