"""What `spreadOver` says: over the values of which node labels pods are spread; cluster.md §6."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from msgspec import Struct, field

from nri_policy.cluster.objects.document import DocumentError, join
from nri_policy.cluster.objects.label_selector import LABEL_KEY
from nri_policy.foundation.wording import quoted
from nri_policy.native._spreading import MAX_WEIGHT

_PREFERENCE = re.compile(
    rf"\s*(?P<pack>pack:)?\s*{LABEL_KEY}\s*(?:=\s*\{{(?P<weights>[^{{}}]*)\}}\s*)?"
)
_WEIGHT = re.compile(
    r"""\s*(?:"(?P<quoted>[^"]*)"|(?P<value>[-A-Za-z0-9_.]+))\s*:\s*(?P<n>\d+)\s*"""
)
_MAX_DIGITS = 9


class Preference(Struct, frozen=True):
    """Spread over the values of a node label, by weight; *packed*: fill as few as possible."""

    key: str
    packed: bool = False
    weights: Mapping[str, int] = field(default_factory=dict)  # 1 for values that are not there


def read_preferences(texts: Sequence[str], path: str) -> list[Preference]:
    """Return what `spreadOver` says, coarse to fine.

    Each entry is `KEY`, `KEY={VALUE: WEIGHT, …}` or `pack:KEY`; the empty value is written `""`.
    Raises DocumentError.
    """
    found: list[Preference] = []
    for number, text in enumerate(texts):
        place = join(path, number)
        match = _PREFERENCE.fullmatch(text)
        if match is None:
            raise DocumentError(
                place, f"{quoted(text)} is not KEY, KEY={{VALUE: WEIGHT, …}} or pack:KEY"
            )
        if any(each.key == match["key"] for each in found):
            raise DocumentError(place, f"{quoted(match['key'])} is given twice")
        if match["pack"] and match["weights"] is not None:
            raise DocumentError(place, "pack: takes no weights")
        weights = _read_weights(match["weights"] or "", place)
        found.append(Preference(match["key"], bool(match["pack"]), weights))
    return found


def _read_weights(text: str, path: str) -> dict[str, int]:
    weights: dict[str, int] = {}
    for part in text.split(",") if text.strip() else ():
        match = _WEIGHT.fullmatch(part)
        number = int(match["n"]) if match and len(match["n"]) <= _MAX_DIGITS else 0
        if match is None or not 1 <= number <= MAX_WEIGHT:
            raise DocumentError(
                path, f"{quoted(part.strip())} is not VALUE: WEIGHT, from 1 to {MAX_WEIGHT}"
            )
        value = match["value"] if match["quoted"] is None else match["quoted"]
        if value in weights:
            raise DocumentError(path, f"{quoted(value)} has two weights")
        weights[value] = number
    return weights
