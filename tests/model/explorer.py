"""Breadth first through all that can happen, so that the first history that is found is a shortest.

A state that was met is kept as a hash of 64 bits with the one that led to it; a million of them are
met by chance as the same with a probability of 3e-8.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Generic, TypeVar

from msgspec import Struct

S = TypeVar("S")


class Found(Struct, frozen=True, kw_only=True):
    """What an exploration came to."""

    states: int
    whole: bool  # there are no more
    depth: int
    broken: str = ""  # what does not hold
    history: Sequence[str] = ()  # the shortest that leads there


class Explorer(Generic[S]):
    """Explores one model."""

    def __init__(
        self,
        moves: Callable[[S], Iterable[tuple[str, S]]],
        key: Callable[[S], object],
        wrong: Callable[[S], str],
        settles: Callable[[S], tuple[str, Sequence[str]]] | None = None,
    ) -> None:
        """Take the moves from a state, what tells states apart, and what must hold.

        *wrong* returns what does not hold of the move to a state, *settles* what does not in the
        end, and how it comes to that.
        """
        self._moves = moves
        self._key = key
        self._wrong = wrong
        self._settles = settles
        self._from: dict[int, tuple[int, str]] = {}

    def explore(self, first: S, most: int) -> Found:
        """Meet *most* states, or all."""
        start = hash(self._key(first))
        self._from = {start: (0, "")}
        ahead = deque([(first, start, 0)])
        depth = 0
        while ahead:
            state, number, depth = ahead.popleft()
            if self._settles is not None:
                broken, then = self._settles(state)
                if broken:
                    return self._found(depth, broken, [*self._history(number), *then])
            for text, after in self._moves(state):
                if broken := self._wrong(after):  # of the move, be the state known or not
                    return self._found(depth, broken, [*self._history(number), text])
                key = hash(self._key(after))
                if key in self._from:
                    continue
                self._from[key] = number, text
                ahead.append((after, key, depth + 1))
            if len(self._from) >= most:
                return self._found(depth, "", (), whole=False)
        return self._found(depth, "", ())

    def _found(
        self, depth: int, broken: str, history: Sequence[str], *, whole: bool = True
    ) -> Found:
        return Found(
            states=len(self._from), whole=whole, depth=depth, broken=broken, history=history
        )

    def _history(self, number: int) -> list[str]:
        history = []
        while number:
            number, text = self._from[number]
            history.append(text)
        return history[-2::-1]
