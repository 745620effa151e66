"""What is wrong with a document, in plain words."""

from __future__ import annotations

from typing import Annotated, Any

import pytest
from msgspec import Meta, Struct, ValidationError, convert

from nri_policy.foundation.mismatch import json_problem


class Device(Struct, forbid_unknown_fields=True):
    name: str
    node: Annotated[int, Meta(ge=0)] | None = None
    share: bool | float | None = None
    labels: dict[str, str] = {}
    parts: Annotated[list[int], Meta(max_length=2)] = []


class Node(Struct):
    devices: list[Device]


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (3, "expected a map, got a whole number"),
        ({"devices": {}}, "devices: expected a list, got a map"),
        ({"node": 1}, "devices[0]: name is missing"),
        ({"name": 1.5}, "devices[0].name: expected a string, got a number"),
        ({"name": "a", "node": "1"}, "node: expected a whole number or null, got a string"),
        ({"name": "a", "node": -1}, "devices[0].node: expected a whole number of at least 0"),
        ({"name": "a", "share": []}, "share: expected a boolean, a number or null, got a list"),
        ({"name": "a", "labels": {1: "b"}}, "labels: a key: expected a string, got a whole number"),
        ({"name": "a", "labels": {"a": "", "b": None}}, "labels['b']: expected a string, got null"),
        ({"name": "a", "parts": [1, 2, 3]}, "parts: expected a list of length of at most 2"),
        ({"name": "a", "na`me": 1}, "devices[0]: unknown field na`me"),
    ],
)
def test_what_does_not_fit_in_a_document_is_said_in_plain_words(given: Any, problem: str) -> None:
    document = given if given == 3 or "devices" in given else {"devices": [given]}
    with pytest.raises(ValidationError) as caught:
        convert(document, Node)
    assert json_problem(caught.value, document).endswith(problem)
