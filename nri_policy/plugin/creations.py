"""Creations: failures in a row after our answer.

If another plugin sets the same field, the runtime fails each creation. containerd sends STOP for
the container, CRI-O no event: there a container counts as failed that is missing after `PATIENCE`.
"""

from __future__ import annotations

from collections.abc import Collection

from nri_policy.foundation.clock import Clock
from nri_policy.proto import nri_pb2

PATIENCE = 30.0  # seconds
MOST = 100  # creations that are remembered


class Creations:
    """The creations of one runtime."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # by container id: the pod's name, and when a creation counts as failed
        self._open: dict[str, tuple[str, float]] = {}

    def answered(self, pod: nri_pb2.PodSandbox, container_id: str) -> None:
        """Take note of the answer about a container to be."""
        if len(self._open) < MOST:
            fails = self._clock.now() + PATIENCE
            self._open[container_id] = f"{pod.namespace}/{pod.name}", fails

    def ended(self, container_id: str) -> None:
        """Take note that a container is gone: if it was not created yet, that failed."""
        if container_id in self._open:
            name, _ = self._open[container_id]
            self._open[container_id] = name, self._clock.now()

    def created(self, container_id: str) -> None:
        """Take note that a container was created: what has failed before had other reasons."""
        if self._open.pop(container_id, None) is None:
            return
        now = self._clock.now()
        self._open = {each: entry for each, entry in self._open.items() if entry[1] > now}

    @property
    def failed(self) -> Collection[str]:
        """The pods, as namespace/name, of which a creation has failed, and none worked since."""
        now = self._clock.now()
        return {name for name, fails in self._open.values() if fails <= now}
