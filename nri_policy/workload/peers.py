"""Peers: an index of the containers with a grant, for expressions; spec placement.md §5.

Owns an index from key and value to containers, and the evaluation of expressions as set algebra
over it. A set of containers is an integer with a bit for each, so an expression costs a few
operations on integers, whatever it matches; globs are compared with the distinct values of their
key. A new container is indexed at the next query, so nodes without affinities pay nothing. Knows
pools only as numbers. Invariant: the index only depends on the set of peers, not on their order.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator

from msgspec import Struct, field

from nri_policy.workload.affinity import Affinity
from nri_policy.workload.expression import (
    ANY,
    NEGATIONS,
    Expression,
    Key,
    Operator,
    facts_of,
)
from nri_policy.workload.pod import Container

_JOINT_KEYS = 32  # joint keys with an index; each adds a little work for every new container


class Peer(Struct, frozen=True):
    """A container that holds a grant, and the pool it is booked on."""

    container: Container
    pool: int


class Pull(Struct, frozen=True, kw_only=True):
    """What one peer does to a container."""

    full_name: str  # namespace/pod/container
    pool: int  # that the peer is booked on
    weight: int  # negative where it pushes


class Pulls(Struct, frozen=True):
    """What draws a container where, as things stood when it was asked for."""

    terms: tuple[tuple[int, int], ...]  # weight, and the set of peers with it
    peers: tuple[Peer | None, ...]  # by bit

    def weights(self) -> dict[str, int]:
        """Return W(c, x) of §5 by container id, for every x that is not indifferent."""
        return {peer.container.id: weight for peer, weight in self.strongest()}

    def strongest(self) -> list[tuple[Peer, int]]:
        """Return each peer that pulls or pushes with its weight, the strongest first."""
        weights: dict[int, int] = {}
        for weight, members in self.terms:
            for slot in _slots(members):
                weights[slot] = weights.get(slot, 0) + weight
        found = [
            (peer, weight)
            for slot, weight in weights.items()
            if weight and (peer := self.peers[slot]) is not None
        ]
        return sorted(found, key=_strength)

    def named(self) -> tuple[Pull, ...]:
        """Return what each peer does, the strongest first."""
        return tuple(
            Pull(full_name=peer.container.full_name, pool=peer.pool, weight=weight)
            for peer, weight in self.strongest()
        )


def _strength(pull: tuple[Peer, int]) -> tuple[int, str, str]:
    container = pull[0].container
    return -abs(pull[1]), container.full_name, container.id


class _Column(Struct):
    """The containers with each value of one key."""

    values: dict[str, int] = field(default_factory=dict)
    present: int = 0  # all containers with any value

    def add(self, value: str, bit: int) -> None:
        self.values[value] = self.values.get(value, 0) | bit
        self.present |= bit

    def remove(self, value: str, bit: int) -> None:
        left = self.values[value] & ~bit
        if left:
            self.values[value] = left
        else:
            del self.values[value]
        self.present &= ~bit


class Peers:
    """All containers that hold a grant."""

    def __init__(self) -> None:
        self.pools = array("i")  # by bit: the pool that the peer is booked on, -1 for no peer
        self._peers: list[Peer | None] = []
        self._facts: list[dict[str, str]] = []  # as indexed; empty for bits in `_new`
        self._new: dict[int, None] = {}  # bits that are not indexed yet
        self._slots: dict[str, int] = {}  # container id -> bit
        self._free: list[int] = []
        self._all = 0
        self._columns: dict[str, _Column] = {}
        self._joint: dict[Key, _Column] = {}  # made when first asked for; the latest used is last

    def add(self, container: Container, pool: int) -> None:
        """Take in a container that has been granted a place on *pool*; ValueError if it is in."""
        if container.id in self._slots:
            raise ValueError(f"container {container.id} is a peer already")
        if not self._free:
            self._free.append(len(self._peers))
            self._peers.append(None)
            self._facts.append({})
            self.pools.append(-1)
        slot = self._free.pop()
        self._slots[container.id] = slot
        self._peers[slot] = Peer(container, pool)
        self.pools[slot] = pool
        self._all |= 1 << slot
        self._new[slot] = None

    def remove(self, container_id: str) -> None:
        """Forget a container; raises KeyError if it is unknown."""
        slot = self._slots.pop(container_id)
        facts, bit = self._facts[slot], 1 << slot
        self._new.pop(slot, None)
        for key, value in facts.items():
            column = self._columns[key]
            column.remove(value, bit)
            if not column.values:
                del self._columns[key]
        for joint, column in self._joint.items():
            if (value_of := joint.value(facts)) is not None:
                column.remove(value_of, bit)
        self._peers[slot], self._facts[slot] = None, {}
        self.pools[slot] = -1
        self._all &= ~bit
        self._free.append(slot)

    def follow(self, peers: Iterable[tuple[Container, int]]) -> None:
        """Become the index of exactly *peers*, at the cost of looking at each and of what differs.

        This is how a transaction is undone: no snapshot is needed before every event for the rare
        one that fails.
        """
        wanted = {container.id: (container, pool) for container, pool in peers}
        for container_id, slot in list(self._slots.items()):
            peer, want = self._peers[slot], wanted.get(container_id)
            if peer and want and peer.container is want[0] and peer.pool == want[1]:
                del wanted[container_id]
            else:
                self.remove(container_id)
        for container, pool in wanted.values():
            self.add(container, pool)

    def pulls(self, container: Container, affinities: Iterable[Affinity]) -> Pulls:
        """Return how the peers other than *container* itself bear on it."""
        self._index()
        slot = self._slots.get(container.id)
        others = self._all if slot is None else self._all & ~(1 << slot)
        terms = []
        for affinity in affinities:
            members = others and self._count_satisfied(affinity.match) & others
            members = members and self._count_satisfied(affinity.scope) & members
            if members and affinity.weight:
                terms.append((affinity.weight, members))
        return Pulls(tuple(terms), tuple(self._peers) if terms else ())

    def _index(self) -> None:
        """Take the newcomers into the columns."""
        for slot in self._new:
            peer, bit = self._peers[slot], 1 << slot
            assert peer is not None, "a container that left is no newcomer any more"
            self._facts[slot] = facts = facts_of(peer.container)
            for key, value in facts.items():
                self._columns.setdefault(key, _Column()).add(value, bit)
            for joint, column in self._joint.items():
                if (value_of := joint.value(facts)) is not None:
                    column.add(value_of, bit)
        self._new.clear()

    def _count_satisfied(self, expression: Expression) -> int:
        """Return the set of peers that *expression* holds for."""
        if expression.key is None or expression.operator is Operator.ALWAYS_TRUE:
            return self._all
        members = _members(self._column(expression.key), expression)
        return self._all & ~members if expression.operator in NEGATIONS else members

    def _column(self, key: Key) -> _Column:
        if len(key.parts) == 1:
            return self._columns.get(key.parts[0]) or _Column()
        column = self._joint.pop(key, None)
        if column is None:
            column = _Column()
            for slot in self._slots.values():
                if (value := key.value(self._facts[slot])) is not None:
                    column.add(value, 1 << slot)
            if len(self._joint) == _JOINT_KEYS:
                del self._joint[next(iter(self._joint))]
        self._joint[key] = column
        return column


def _members(column: _Column, expression: Expression) -> int:
    """Return the containers that satisfy *expression*; for a negation, those that do not."""
    if expression.operator in (Operator.EXISTS, Operator.NOT_EXISTS) or ANY in expression.values:
        return column.present
    members = 0
    for value in expression.values:
        members |= column.values.get(value, 0)
    if expression.globs:
        for value, having in column.values.items():
            if any(glob.matches(value) for glob in expression.globs):
                members |= having
    return members


def _slots(members: int) -> Iterator[int]:
    while members:
        lowest = members & -members
        yield lowest.bit_length() - 1
        members ^= lowest
