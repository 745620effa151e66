"""Label selectors as texts, such as kubectl's `-l` takes: `app=web,tier in (a, b),!canary`."""

from __future__ import annotations

import re
from collections.abc import Mapping

from nri_policy.cluster.objects.matching import LabelRequirement
from nri_policy.foundation.wording import quoted

_KEY = r"(?P<key>[A-Za-z0-9](?:[-A-Za-z0-9_./]*[A-Za-z0-9])?)"
_VALUE = r"(?:[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?)?"
_FORMS = [
    re.compile(rf"{_KEY}\s*(?P<operator>==?|!=)\s*(?P<values>{_VALUE})"),
    re.compile(rf"{_KEY}\s+(?P<operator>in|notin)\s*\((?P<values>[^()]*)\)"),
    re.compile(rf"{_KEY}\s*(?P<operator>[<>])\s*(?P<values>-?[0-9]{{1,18}})"),
    re.compile(rf"(?P<operator>!?)\s*{_KEY}"),
]
_OPERATORS = {
    "=": "In",
    "==": "In",
    "in": "In",
    "!=": "NotIn",
    "notin": "NotIn",
    ">": "Gt",
    "<": "Lt",
    "": "Exists",
    "!": "DoesNotExist",
}
_COMMA = re.compile(r",(?![^(]*\))")  # not one between values


def read_label_selector(text: str) -> tuple[LabelRequirement, ...]:
    """Return the requirements of a selector; raises ValueError for what Kubernetes refuses."""
    return tuple(_requirement(part.strip()) for part in _COMMA.split(text))


def _requirement(text: str) -> LabelRequirement:
    for form in _FORMS:
        match = form.fullmatch(text)
        if match is None:
            continue
        given = match.groupdict()
        values = None
        if (listed := given.get("values")) is not None:
            values = [each.strip() for each in listed.split(",")]
            if not all(re.fullmatch(rf"{_VALUE}|-[0-9]+", each) for each in values):
                break
        return LabelRequirement(given["key"], _OPERATORS[given["operator"]], values)
    raise ValueError(
        f"{quoted(text)} is not KEY=VALUE, KEY!=VALUE, KEY in (VALUE, …), KEY notin (…), KEY, !KEY,"
        " KEY>NUMBER or KEY<NUMBER"
    )


def selects(selector: tuple[LabelRequirement, ...], labels: Mapping[str, str]) -> bool:
    """Return whether *labels* meet all requirements."""
    return all(each.matches(labels) for each in selector)
