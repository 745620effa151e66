"""Which NUMA node each container is on, in the form of numaplacement v001; spec nrt.md §1.6.

Owns that encoding. A reader knows the containers from the API server and only needs their nodes.
Containers are sorted by a hash of their names; the metadata names the node with most containers,
and each other node lists the positions of its containers. A reader that knows another number of
containers rejects the whole encoding (numaplacement's `Decoder.Result`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise

from msgspec import Struct

from nri_policy.nrt.fingerprint import xxh64

METADATA = "topology.node.k8s.io/numaplacement-metadata"  # an attribute of the object
VECTOR = "topology.node.k8s.io/numaplacement-vector"  # one of each zone but the busiest

ContainerName = tuple[str, str, str]  # namespace, pod, container

# LEB89: printable characters that JSON needs no escape for; the first 64 end a number.
_ALPHABET = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in '"&<>\\')
_LAST, _MORE = _ALPHABET[:64], _ALPHABET[64:]
_METADATA = re.compile(r"npv0v001::ve=leb89::cc=(\d{1,9})::nn=\d{1,9}::bn=(\d{1,9})", re.ASCII)


class Encoded(Struct, frozen=True, kw_only=True):
    """The attributes of an object and, by NUMA node, of its zones."""

    metadata: str
    vectors: Mapping[int, str]


def encode(containers: Mapping[ContainerName, int], nodes: int) -> Encoded:
    """Return *containers*, each with its NUMA node, for an object with so many *nodes*."""
    hashes = sorted((_hash(*name), node) for name, node in containers.items())
    count = Counter(containers.values())
    busiest = min(count, key=lambda node: (-count[node], node), default=0)
    offsets: dict[int, list[int]] = {}
    for offset, (_, node) in enumerate(hashes):
        offsets.setdefault(node, []).append(offset)
    return Encoded(
        metadata=f"npv0v001::ve=leb89::cc={len(hashes)}::nn={nodes}::bn={busiest}",
        vectors={node: _vector(its) for node, its in offsets.items() if node != busiest},
    )


def decode(
    metadata: str, vectors: Mapping[int, str], containers: Iterable[ContainerName]
) -> dict[ContainerName, int] | None:
    """Return the NUMA node of each of *containers*; None if other ones are encoded."""
    found = _METADATA.fullmatch(metadata)
    order = sorted(containers, key=lambda each: _hash(*each))
    if found is None or int(found[1]) != len(order):
        return None
    nodes = dict.fromkeys(order, int(found[2]))
    try:
        for node, vector in vectors.items():
            for offset in accumulate(_numbers(vector)):
                nodes[order[offset]] = node
    except (ValueError, IndexError):
        return None
    return nodes


@lru_cache(1 << 16)  # a reader knows many nodes
def _hash(namespace: str, pod: str, container: str) -> int:
    return xxh64(f"{namespace}\0{pod}\0{container}".encode())


def _vector(offsets: Sequence[int]) -> str:
    """Encode ascending offsets as the first one and the difference to each next one."""
    return "".join(leb89(after - before) for before, after in pairwise((0, *offsets)))


def leb89(number: int) -> str:
    """Encode a number of at least 0: the last digit in base 64, earlier digits in base 25.

    Alphabet positions from 64 on mark earlier digits, so each number has exactly one form.
    """
    if number < len(_LAST):
        return _LAST[number]
    rest, last = divmod(number - len(_LAST), len(_LAST))
    text = _LAST[last]
    while True:
        rest, digit = divmod(rest, len(_MORE))
        text = _MORE[digit] + text
        if not rest:
            return text


def _numbers(text: str) -> Iterator[int]:
    """Yield the numbers in *text*; raises ValueError."""
    rest: int | None = None
    for letter in text:
        if letter in _MORE:
            rest = (rest or 0) * len(_MORE) + _MORE.index(letter)
        else:
            last = _LAST.index(letter)
            yield last if rest is None else len(_LAST) * (1 + rest) + last
            rest = None
    if rest is not None:
        raise ValueError(text)
