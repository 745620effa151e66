"""The published vectors of XXH64 and of the pod set fingerprint; nrt.md §1.5."""

from __future__ import annotations

import itertools

import pytest

from nri_policy.nrt.fingerprint import fingerprint, xxh64

PODS = (("ns1", "n1"), ("ns1", "n2"), ("ns2", "n1"), ("ns3", "n1"), ("ns3", "n2"))


def test_nothing_has_the_published_fingerprint() -> None:
    assert fingerprint(()) == "pfp0v001ef46db3751d8e999"


def test_five_pods_have_the_published_fingerprint_in_any_order() -> None:
    for pods in itertools.permutations(PODS):
        assert fingerprint(pods) == "pfp0v001b92008c14168b3a6"


def test_namesakes_in_different_namespaces_are_different_pods() -> None:
    assert fingerprint([("a", "b")]) != fingerprint([("b", "a")])
    assert fingerprint([("a", "bc")]) != fingerprint([("ab", "c")])


@pytest.mark.parametrize(
    ("length", "digest"),  # of bytes 0, 1, 2 …, made with the reference implementation
    [
        (0, 0xAC75FDA2929B17EF),
        (1, 0x5014607643A9B4C3),
        (4, 0xB8F1A51893FA14E6),
        (7, 0x13F31C4A8E5F8252),
        (14, 0x9637A6A8D7711686),
        (31, 0x71969C89A30A986A),
        (32, 0x7181354774E0D600),
        (101, 0xA1C6D4174C37136D),
    ],
)
def test_every_part_of_the_hash_is_as_the_reference_has_it(length: int, digest: int) -> None:
    assert xxh64(bytes(range(length)), seed=0x9E3779B1) == digest


def test_hashes_of_text_are_the_published_ones() -> None:
    assert xxh64(b"a") == 0xD24EC4F1A98C6E5B
    assert xxh64(b"abc") == 0x44BC2CF5AD770999
