"""Selectors: CEL expressions of claims that only compare attributes of a device.

Owns that small part of CEL: `device.driver`, or `device.attributes["domain"].name`, is compared
with a number or a text, and all such comparisons hold (`&&`). All else is not evaluated.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

from nri_policy.workload.claim import DRIVER

Attributes = Mapping[str, int | str]  # by `domain/name`

_OPERATORS: Mapping[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_COMPARISON = re.compile(
    r"""\s*device\.(?:driver|attributes\[(?P<quote>["'])(?P<domain>[^"'\\]+)(?P=quote)\]\.(?P<name>\w+))
    \s*(?P<operator>[=!]=|[<>]=?)
    \s*(?:(?P<number>-?\d{1,18})|"(?P<text>[^"\\]*)"|'(?P<other>[^'\\]*)')\s*""",
    re.VERBOSE | re.ASCII,
)


def selects(expression: str, attributes: Attributes) -> bool | None:
    """Return whether a selector takes a device of ours; None: that is not known."""
    found = [_holds(each, attributes) for each in expression.split("&&")]
    return None if None in found else all(found)


def _holds(comparison: str, attributes: Attributes) -> bool | None:
    match = _COMPARISON.fullmatch(comparison)
    if match is None:
        return None
    name = match["name"]
    value = DRIVER if name is None else attributes.get(f"{match['domain']}/{name}")
    number = match["number"]
    other = (match["text"] or match["other"] or "") if number is None else int(number)
    if type(value) is not type(other):  # reading an absent attribute is an error
        return None
    return _OPERATORS[match["operator"]](value, other)
