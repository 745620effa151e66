"""The kernel that keeps of JSON texts what is read of them, held against plain dicts.

Whatever text it is given, it finds what a full decoder finds, or nothing.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw

from nri_policy.native._json_fields import Fields, items_of

EXAMPLES = 300
FIRST = {"a": None, "b": {"a": None, "c": {"b": None}}}
SECOND = {"b": {"d": None}, "c": {"a": None}}
NAMES = st.sampled_from(["a", "b", "c", "d", "kind", "items", 'q"\\', "é"])
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20)
    | st.sampled_from(["List", 'a"b\\c', "\n\x01\x7f", "abcdefg\\", "12345678", "ÿ" * 9])
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=20,
)
OBJECTS = st.dictionaries(NAMES, VALUES, max_size=6)
ASCII = st.booleans()
INDENT = st.sampled_from([None, 0, 1, 4, 11])


def kept(value: Any, *trees: Any) -> Any:
    """Return what the first tree keeps of a value, if one of *trees* has its fields."""
    if None in trees or not isinstance(value, dict | list):
        return value
    if isinstance(value, list):
        return [kept(each, *trees) for each in value]
    return {
        name: kept(each, trees[0][name], *(tree.get(name, {}) for tree in trees[1:]))
        for name, each in value.items()
        if name in trees[0]
    }


@settings(max_examples=EXAMPLES, deadline=None)
@given(OBJECTS, ASCII, INDENT)
def test_a_text_keeps_the_fields_that_are_named(
    given: dict[str, Any], ascii_only: bool, indent: int | None
) -> None:
    text = json.dumps(given, ensure_ascii=ascii_only, indent=indent).encode()
    texts = Fields(FIRST, SECOND).texts_of(Raw(text))
    if texts is None:  # a name with an escape, in an object of which fields are kept
        assert b"\\" in text
        return
    one, two = map(json.loads, texts)
    assert one == kept(given, FIRST, SECOND)
    assert two == kept(given, SECOND, FIRST)
    (alone,) = Fields(FIRST).texts_of(Raw(text)) or ()
    assert alone == texts[0]


@settings(max_examples=EXAMPLES, deadline=None)
@given(
    st.lists(OBJECTS, max_size=4),
    ASCII,
    INDENT,
    st.lists(st.tuples(st.integers(0, 999), st.binary(max_size=2), st.integers(0, 3)), max_size=2),
)
def test_the_items_of_a_list_are_found_or_nothing(
    objects: list[dict[str, Any]],
    ascii_only: bool,
    indent: int | None,
    damages: list[tuple[int, bytes, int]],
) -> None:
    items = [{**each, "kind": f"K{number}"} for number, each in enumerate(objects)]
    made = {"kind": "List", "items": items}
    text = json.dumps(made, ensure_ascii=ascii_only, indent=indent).encode()
    for at, put, gone in damages:
        at %= len(text) + 1  # noqa: PLW2901 - within what is left
        text = text[:at] + put + text[at + gone :]
    found = items_of(text)
    if found is None:
        assert damages
        return
    places, only_ascii = found
    assert only_ascii == text.isascii()
    with suppress(UnicodeDecodeError):  # who reads it checks that
        whole = json.loads(text.decode())
        assert whole["kind"] == "List"
        assert [kind for kind, _, _ in places] == [each["kind"] for each in whole["items"]]
        assert [json.loads(text[start:end]) for _, start, end in places] == whole["items"]


@pytest.mark.parametrize(
    "wrong",
    [
        *("01", "-", "1.", "1e", "+1", ".5", "tru", "nul", "NaN", '"', '"\\', '"\\u12g4"', '"\\x"'),
        *('"\t"', "{1:2}", '{"a"}', '{"a":}', '{"a":1,}', "[1,]", "[1 2]", "[", "{", "", "]"),
        "[" * 300 + "]" * 300,
    ],
)
def test_what_is_no_json_is_not_skipped(wrong: str) -> None:
    right = '{"kind":"List","items":[{"kind":"Pod","x":%s}],"y":%s}'
    assert items_of((right % (1, 1)).encode()) is not None
    assert items_of((right % (wrong, 1)).encode()) is None
    assert items_of((right % (1, wrong)).encode()) is None
    assert Fields({"a": None}).texts_of(Raw('{"x":%s}' % wrong)) is None  # noqa: UP031 - has braces


@pytest.mark.parametrize(
    "other",
    [
        *("[]", "7", '{"kind":"List"}', '{"items":[]}', '{"kind":"PodList","items":[]}'),
        *('{"kind":"List","items":7}', '{"kind":"List","items":[7]}'),
        *('{"kind":"List","items":[{}]}', '{"kind":"List","items":[{"kind":7}]}'),
        '{"kind":"List","items":[{"kind":"Pöd"}]}',
        '{"kind":"List","items":[],"items":[]}',
        '{"kind":"List","items":[]} {}',
    ],
)
def test_what_is_no_list_of_objects_is_left_to_others(other: str) -> None:
    assert items_of(other.encode()) is None


def test_the_last_of_two_fields_of_one_name_counts_as_it_does_for_msgspec() -> None:
    text = Raw(b'{"b":{"a":1},"a":2,"b":{"c":[{"b":3},{"b":4,"x":5}]},"a":6}')
    (kept_text,) = Fields(FIRST).texts_of(text) or ()
    read = msgspec.json.decode(kept_text)
    assert read == {"b": {"c": [{"b": 3}, {"b": 4}]}, "a": 6}
