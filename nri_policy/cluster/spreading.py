"""Spreading: the best balance over the values of labels, from the top down."""

from __future__ import annotations

from nri_policy.cluster.group import PlacementGroup
from nri_policy.cluster.settings import Settings
from nri_policy.cluster.snapshot import Snapshot


def spread(snapshot: Snapshot, group: PlacementGroup, settings: Settings) -> dict[str, int]:
    """Return the pods placed on each node; those not placed under the empty name."""
    raise NotImplementedError
