"""NUMA fit: whether the zones of each node can hold a pod, and how well."""

from __future__ import annotations

from typing import Any

from nri_policy.cluster.pod import Pod
from nri_policy.cluster.settings import Settings
from nri_policy.cluster.snapshot import Snapshot


def fit(snapshot: Snapshot, pod: Pod, settings: Settings) -> dict[str, dict[str, Any]]:
    """Return for each node whether the pod fits, the reason if not, and the score from 0 to 100."""
    raise NotImplementedError
