"""Objects of one kind that pods are made from, or that they name: a pod waits for its object."""

from __future__ import annotations

from collections.abc import Collection
from typing import Generic, TypeVar

from nri_policy.cluster.objects.metadata import Key

MakerKey = TypeVar("MakerKey")
Maker = TypeVar("Maker")


class Makers(Generic[MakerKey, Maker]):
    """Objects that make pods, and the pods of each, even before the object is known."""

    def __init__(self) -> None:
        self.objects: dict[MakerKey, Maker] = {}
        self._pods: dict[MakerKey, dict[Key, None]] = {}

    def set(self, key: MakerKey, maker: Maker) -> Collection[Key]:
        """Store an object; return its pods if that is news for them."""
        old = self.objects.get(key)
        self.objects[key] = maker
        return () if old == maker else self.pods(key)

    def pods(self, key: MakerKey) -> Collection[Key]:
        """Return the pods of an object."""
        return self._pods.get(key, {}).keys()

    def join(self, key: MakerKey, pod: Key) -> Maker | None:
        """Add a pod; return its object, None where that is not known yet."""
        self._pods.setdefault(key, {})[pod] = None
        return self.objects.get(key)

    def leave(self, key: MakerKey, pod: Key) -> None:
        """Remove a pod, if it has joined."""
        pods = self._pods.get(key, {})
        pods.pop(pod, None)
        if not pods:
            self._pods.pop(key, None)
