"""The fingerprint of the pods on a node: schedulers compare it with the pods that they know.

Owns the algorithm of pod set fingerprints, version v001, and the XXH64 hash that it is made of
(spec nrt.md §1.5). Pods are known by namespace and name alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from struct import iter_unpack, unpack_from

# Attributes of the object that identify the pods in its amounts.
FINGERPRINT = "nodeTopologyPodsFingerprint"
METHOD = "nodeTopologyPodsFingerprintMethod"
EXCLUSIVE = "with-exclusive-resources"  # a method; the other is `all`
PODS = "nri-policy/pods"  # ours: the hashes of the pods, where the fingerprint has only their hash

_P1, _P2, _P3, _P4, _P5 = (  # the primes of XXH64
    0x9E3779B185EBCA87,
    0xC2B2AE3D27D4EB4F,
    0x165667B19E3779F9,
    0x85EBCA77C2B2AE63,
    0x27D4EB2F165667C5,
)
_MASK = (1 << 64) - 1


def fingerprint(pods: Iterable[tuple[str, str]]) -> str:
    """Return the fingerprint of *pods*, each a namespace and a name, in whatever order."""
    hashes = sorted(pod_hash(*pod) for pod in pods)
    digest = xxh64(b"".join(each.to_bytes(8, "little") for each in hashes))
    return f"pfp0v001{digest:016x}"


@lru_cache(4096)
def pod_hash(namespace: str, name: str) -> int:
    """Return the hash of one pod in a fingerprint, 64 bits."""
    return xxh64(name.encode(), xxh64(namespace.encode()))


def xxh64(data: bytes, seed: int = 0) -> int:
    """Return the XXH64 hash of *data*, 64 bits."""
    stripes = len(data) & ~31
    if stripes:
        lanes = [seed + _P1 + _P2, seed + _P2, seed, seed - _P1]
        for words in iter_unpack("<4Q", data[:stripes]):
            lanes = [_round(lane, word) for lane, word in zip(lanes, words, strict=True)]
        state = sum(map(_rotate, lanes, (1, 7, 12, 18)))
        for lane in lanes:
            state = (state ^ _round(0, lane)) * _P1 + _P4
    else:
        state = seed + _P5
    state = _tail(data[stripes:], state + len(data)) & _MASK
    state = ((state ^ state >> 33) * _P2) & _MASK
    state = ((state ^ state >> 29) * _P3) & _MASK
    return state ^ state >> 32


def _tail(data: bytes, state: int) -> int:
    """Hash the bytes after the last whole stripe: words, then half a word, then bytes."""
    at = 0
    while at + 8 <= len(data):
        (word,) = unpack_from("<Q", data, at)
        state = _rotate(state ^ _round(0, word), 27) * _P1 + _P4
        at += 8
    if at + 4 <= len(data):
        (half,) = unpack_from("<I", data, at)
        state = _rotate(state ^ half * _P1, 23) * _P2 + _P3
        at += 4
    for byte in data[at:]:
        state = _rotate(state ^ byte * _P5, 11) * _P1
    return state


def _round(lane: int, word: int) -> int:
    return _rotate(lane + word * _P2, 31) * _P1 & _MASK


def _rotate(value: int, bits: int) -> int:
    value &= _MASK
    return value << bits & _MASK | value >> 64 - bits
