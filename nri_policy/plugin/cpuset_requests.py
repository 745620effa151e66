"""Cpusets that requests name: another agent sets CPUs too, and decisions replace what it asks for.

It is the kubelet's static CPU manager, a plugin that comes earlier, or somebody's `crictl update`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from nri_policy.foundation.clock import Clock
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.workload.pod import parse_cpus

log = logging.getLogger(__name__)

SHOWN = 3600.0  # seconds


class CpusetRequests:
    """The latest request for other CPUs than were decided on."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._latest: tuple[float, str] | None = None

    def note(self, container: str, asked: str, decided: CPUSet) -> None:
        """Note the CPUs that a request *asked* for, empty if for none; logged once an hour.

        *decided* is empty where the decision leaves the cpuset alone.
        """
        cpus = parse_cpus(asked)
        if not cpus or not decided or cpus == decided:
            return
        if self._text() is None:
            extra = {"container": container, "asked": cpus, "decided": decided}
            log.warning("cpuset-replaced", extra=extra)
        text = f"another agent asked for CPUs {cpus} for {container}, which has {decided} instead"
        self._latest = self._clock.now(), text

    def problems(self) -> Iterator[str]:
        """Yield the latest within an hour, for `status`."""
        if (text := self._text()) is not None:
            yield f"{text}; if the kubelet's CPU manager is static, turn it off (see doctor)"

    def _text(self) -> str | None:
        if self._latest is None or self._clock.now() - self._latest[0] >= SHOWN:
            return None
        return self._latest[1]
