"""Label selectors, in objects and as texts that kubectl's `-l` takes: `app=web,tier in (a, b)`."""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec import Struct

from nri_policy.cluster.objects.matching import LabelRequirement
from nri_policy.foundation.wording import quoted

LABEL_KEY = r"(?P<key>[A-Za-z0-9](?:[-A-Za-z0-9_./]*[A-Za-z0-9])?)"
_VALUE = r"(?:[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?)?"
_FORMS = [
    re.compile(rf"{LABEL_KEY}\s*(?P<operator>==?|!=)\s*(?P<values>{_VALUE})"),
    re.compile(rf"{LABEL_KEY}\s+(?P<operator>in|notin)\s*\((?P<values>[^()]*)\)"),
    re.compile(rf"{LABEL_KEY}\s*(?P<operator>[<>])\s*(?P<values>-?[0-9]{{1,18}})"),
    re.compile(rf"(?P<operator>!?)\s*{LABEL_KEY}"),
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


class LabelSelector(Struct, frozen=True, rename="camel", gc=False):
    """Selects objects with all of these labels that meet all requirements."""

    match_labels: dict[str, str] | None = None
    match_expressions: list[LabelRequirement] | None = None

    def selects(self, labels: Mapping[str, str]) -> bool:
        """Return whether it selects what has *labels*."""
        return (self.match_labels or {}).items() <= labels.items() and all(
            each.matches(labels) for each in self.match_expressions or ()
        )


def read_label_selector(text: str) -> LabelSelector:
    """Return the selector in a text; raises ValueError for what Kubernetes refuses."""
    parts = _COMMA.split(text)
    return LabelSelector(match_expressions=[_requirement(part.strip()) for part in parts])


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
