"""The counts of a tree that were asked for latest, brought up to date when they are asked again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping

from nri_policy.native._counts import Counts

MAX_COUNTS = 32  # as many as pod sets of large groups; the least recently used go first


class KnownCounts:
    """Counts by what was counted."""

    def __init__(self, origin: KnownCounts | None = None) -> None:
        """Have new counts start from those of the tree that a fork was made of."""
        self.latest: OrderedDict[object, Counts] = OrderedDict()
        self._of_origin: Mapping[object, Counts] = {} if origin is None else origin.latest

    def find(self, key: object, count: Callable[[], Counts]) -> Counts:
        """Return what is known, else what *count* returns."""
        found = self.latest.get(key)
        if found is None:
            found = count()
            known = self._of_origin.get(key)
            if known is not None:
                found.start_from(known)
            self.latest[key] = found
            if len(self.latest) > MAX_COUNTS:
                self.latest.popitem(last=False)
        self.latest.move_to_end(key)
        return found

    def clear(self) -> None:
        """Forget all, so that the next counts are made from nothing."""
        self.latest.clear()
