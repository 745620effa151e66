"""The codec of D-Bus against a reading of its own, and against bytes of any kind."""

from __future__ import annotations

import struct
from contextlib import suppress

from hypothesis import given
from hypothesis import strategies as st

from nri_policy.foundation.cpuset import CPUSet
from nri_policy.systemd.message import (
    PREFIX,
    MessageError,
    MethodCall,
    decode,
    encode,
    encode_properties,
    length_of,
)
from nri_policy.systemd.scopes import mask
from tests.unit.systemd.bus import DATA, recorded

names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=40)
RECORDED = [recorded(path.stem)[1] for path in sorted(DATA.iterdir())]


class Reading:
    """The bytes of a message, read as its signature says."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def align(self, size: int) -> None:
        while self.at % size:
            assert self.data[self.at] == 0
            self.at += 1

    def number(self) -> int:
        self.align(4)
        (value,) = struct.unpack_from("<I", self.data, self.at)
        self.at += 4
        return int(value)

    def take(self, count: int) -> bytes:
        taken = self.data[self.at : self.at + count]
        assert len(taken) == count
        self.at += count
        return taken

    def string(self) -> str:
        text = self.take(self.number()).decode()
        assert self.take(1) == b"\0"
        return text

    def signature(self) -> str:
        text = self.take(self.take(1)[0]).decode()
        assert self.take(1) == b"\0"
        return text


@given(unit=names, properties=st.dictionaries(names, st.binary(max_size=40), max_size=4))
def test_what_is_encoded_reads_as_the_same(unit: str, properties: dict[str, bytes]) -> None:
    reading = Reading(encode_properties(unit, properties))
    assert (reading.string(), reading.number()) == (unit, 1)
    length = reading.number()
    reading.align(8)
    end = reading.at + length
    found = {}
    while reading.at < end:
        reading.align(8)
        name = reading.string()
        assert reading.signature() == "ay"
        found[name] = reading.take(reading.number())
    assert (found, reading.at) == (properties, len(reading.data))


@given(values=st.lists(names, min_size=4, max_size=4), body=st.binary(max_size=40))
def test_a_call_reads_as_what_is_called(values: list[str], body: bytes) -> None:
    path, interface, member, destination = values
    call = MethodCall(path=path, interface=interface, member=member, destination=destination)
    data = encode(call, 9, "ay", body)
    assert length_of(data[:PREFIX]) == len(data)
    assert decode(data).type == 1
    reading = Reading(data)
    reading.at = 4
    assert (reading.number(), reading.number()) == (len(body), 9)
    end = reading.number() + PREFIX
    found: dict[int, str] = {}
    while reading.at < end:
        reading.align(8)
        field = reading.take(1)[0]
        found[field] = reading.string() if reading.signature() in "so" else reading.signature()
    reading.align(8)
    assert found == {1: path, 2: interface, 3: member, 6: destination, 8: "ay"}
    assert reading.take(len(body)) == body


@given(ids=st.frozensets(st.integers(0, 8191), max_size=20))
def test_a_mask_has_the_bits_of_its_set_and_no_more_bytes(ids: frozenset[int]) -> None:
    data = mask(CPUSet(ids))
    assert {n for n in range(len(data) * 8) if data[n // 8] >> n % 8 & 1} == ids
    assert not data.endswith(b"\0")


@given(data=st.data())
def test_any_bytes_are_a_message_or_refused(data: st.DataObject) -> None:
    real = bytearray(data.draw(st.sampled_from(RECORDED)))
    for _ in range(data.draw(st.integers(0, 6))):
        real[data.draw(st.integers(0, len(real) - 1))] = data.draw(st.integers(0, 255))
    drawn = data.draw(st.one_of(st.just(bytes(real)), st.binary(max_size=80)))
    with suppress(MessageError):
        decode(drawn[: length_of(drawn[:PREFIX])])
