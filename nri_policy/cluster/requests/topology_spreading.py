"""Spreading of whole groups by share: no domain gets another while it has too many of them already.

Kueue's annotation `podset-topology-spreading` (KEP-13746), in its words. Owns its
fields, and the choice of groups: groups of one namespace with pods that have the labels.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

from nri_policy.cluster.objects.document import DocumentError, join
from nri_policy.cluster.objects.label_selector import LabelSelector, read_label_selector
from nri_policy.foundation.wording import quoted

MAX_RULES = 2
MAX_SHARE = 99  # percent
# Labels that groups of one owner share; the default selector.
_OF_ONE_OWNER = ("leaderworkerset.sigs.k8s.io/name", "pod-template-hash")


class SpreadingRule(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """A domain of the level *key* takes a group while it has at most this share of them."""

    key: str
    max_share_allowing_placement: int  # percent
    enforcement_mode: Literal["Required", "Preferred"] = "Required"


class TopologySpreading(
    Struct, frozen=True, rename="camel", forbid_unknown_fields=True, omit_defaults=True
):
    """Rules, and the labels of the groups that they are about."""

    rules: list[SpreadingRule]
    workload_label_selector: str | None = None  # None: groups of the same owner


def check_topology_spreading(given: TopologySpreading, path: str) -> None:
    """Raise DocumentError for what Kueue refuses."""
    if not 1 <= len(given.rules) <= MAX_RULES:
        raise DocumentError(join(path, "rules"), f"there are 1 to {MAX_RULES} rules")
    for number, rule in enumerate(given.rules):
        place = join(join(path, "rules"), number)
        share = rule.max_share_allowing_placement
        if not 1 <= share <= MAX_SHARE:
            raise DocumentError(
                join(place, "maxShareAllowingPlacement"), f"{share} is not from 1 to {MAX_SHARE}"
            )
        if not rule.key:
            raise DocumentError(join(place, "key"), "it is the name of a level")
        if any(rule.key == other.key for other in given.rules[:number]):
            raise DocumentError(join(place, "key"), f"{quoted(rule.key)} is given twice")
    if given.workload_label_selector is not None:
        try:
            read_label_selector(given.workload_label_selector)
        except ValueError as error:
            raise DocumentError(join(path, "workloadLabelSelector"), str(error)) from None


def selector_of(given: TopologySpreading, labels: Mapping[str, str]) -> LabelSelector | None:
    """Return what selects the groups to count, for one with these *labels*.

    None if no selector is given, and nothing says which groups have the same owner.
    """
    if given.workload_label_selector is not None:
        return read_label_selector(given.workload_label_selector)
    for key in _OF_ONE_OWNER:
        if key in labels:
            return LabelSelector({key: labels[key]})
    return None
