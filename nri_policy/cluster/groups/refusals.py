"""Objects whose writes failed: each is left alone for a while, a longer one after each failure.

The pause is the object's own: no other object waits for it. It has no clock of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from msgspec import Struct

from nri_policy.cluster.objects.metadata import Key
from nri_policy.foundation.backoff import backoff

_pause = partial(backoff, least=0.5, most=30.0, chance=lambda: 1.0)  # seconds


class _Refusal(Struct):
    failures: int  # in a row
    until: float
    text: str


class Refusals:
    """Objects of one kind, by namespace and name."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._found: dict[Key, _Refusal] = {}

    def add(self, key: Key, text: str = "", wait: float = 0.0) -> bool:
        """Record a failed write; return whether *text* is news.

        The object is left alone for *wait* seconds at least.
        """
        found = self._found.setdefault(key, _Refusal(0, 0.0, ""))
        found.failures += 1
        found.until = self._now() + max(_pause(found.failures), wait)
        news = bool(text) and found.text != text
        found.text = text or found.text
        return news

    def remove(self, key: Key) -> None:
        """Forget failures after a successful write, or when the object is deleted."""
        self._found.pop(key, None)

    def until(self, key: Key) -> float:
        """Return until when an object is left alone; a time that is over where it is not."""
        found = self._found.get(key)
        return self._now() if found is None else found.until

    def holds(self, key: Key) -> bool:
        """Whether an object is left alone now."""
        return self.until(key) > self._now()
