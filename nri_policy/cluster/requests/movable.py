"""Pods that may be moved: the annotation that allows it."""

from __future__ import annotations

from collections.abc import Mapping

from nri_policy.cluster.objects.document import TRUE

MOVABLE = "placement.nri/movable"


def is_movable(annotations: Mapping[str, str], labels: Mapping[str, str]) -> bool:
    """Return whether a pod's owner allows a plan to move it."""
    return {**labels, **annotations}.get(MOVABLE) in TRUE
