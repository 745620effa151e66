"""The quality-of-service classes of pods."""

from __future__ import annotations

from enum import StrEnum


class QoS(StrEnum):
    """A pod's quality-of-service class."""

    GUARANTEED = "Guaranteed"
    BURSTABLE = "Burstable"
    BEST_EFFORT = "BestEffort"

    @staticmethod
    def of_cgroup(parent: str) -> QoS:
        """Return the class that the kubelet wrote into the cgroup parent's name (nri.md §7)."""
        if "besteffort" in parent:
            return QoS.BEST_EFFORT
        if "burstable" in parent:
            return QoS.BURSTABLE
        return QoS.GUARANTEED
