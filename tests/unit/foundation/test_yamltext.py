"""YAML from outside: what is read, what is refused, at what cost."""

from __future__ import annotations

import pytest

from nri_policy.foundation.yamltext import (
    MAX_DEPTH,
    MAX_VALUES,
    Marks,
    RepeatedKey,
    YAMLTextError,
    read,
    read_all,
)


def test_plain_values_are_read() -> None:
    text = """
    text: plain
    quoted: "1"
    numbers: [1, 0x10, 1.5, 1e3]
    flags: {a: true, b: off}
    nothing: ~
    date: 2026-11-20
    sixties: [1:30, 1:30.5]
    1: key
    tagged: !!str 5
    same: &x [a]
    again: *x
    """
    assert read(text) == {
        "text": "plain",
        "quoted": "1",
        "numbers": [1, 16, 1.5, "1e3"],
        "flags": {"a": True, "b": False},
        "nothing": None,
        "date": "2026-11-20",
        "sixties": ["1:30", "1:30.5"],
        1: "key",
        "tagged": "5",
        "same": ["a"],
        "again": ["a"],
    }


@pytest.mark.parametrize("text", ["", "\n", "# nothing\n", "---\n", b"\xef\xbb\xbf", "null"])
def test_an_empty_document_is_none(text: str | bytes) -> None:
    assert read(text) is None


def test_a_byte_order_mark_is_skipped() -> None:
    assert read(b"\xef\xbb\xbfa: 1") == {"a": 1}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: 1\na: 2", "line 2, column 1: the key 'a' is repeated"),
        ("a: 1\n--- \nb: 2", "line 2, column 1: a second document"),
        ("a:\n\tb: 1", "line 2, column 1: a tab begins this line: indent with spaces"),
        ("a: [", "line 2, column 1: a value is missing, or a bracket is not closed"),
        ("a: !!python/object:os.system x", "the tag 'tag:yaml.org,2002:python/object:os.system'"),
        ("!!python/tuple [1]", "the tag .* is not accepted"),
        ("!!set {a}", "the tag .* is not accepted"),
        ("!!binary aGk=", "the tag .* is not accepted"),
        ("a: &a 1\n<<: {b: 1}", "line 2, column 1: merge keys"),
        ("? [a]\n: 1", "a map or list cannot be a key"),
        ("a: *b", "there is no anchor 'b' above"),
        ("a: &b [*b]", "the alias 'b' contains itself"),
        ("a: &b {c: *b}", "the alias 'b' contains itself"),
        ("0x_", "'0x_' is not a number"),
        ("9" * 101, "is too long for a number"),
        ("a: \x01", "position 3: control characters are not allowed"),
        ("a: \ud800", "not UTF-8 .at position 3"),
        (b"a: \xff", "not UTF-8 .at position 3"),
        ("a: 1".encode("utf-16"), "not UTF-8 .at position 0"),
        ("%YAML 9", "line 1"),
    ],
)
def test_what_is_not_plain_is_refused_with_its_place(text: str | bytes, problem: str) -> None:
    with pytest.raises(YAMLTextError, match=problem) as caught:
        read(text)
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[" * 500_000, "nested more than"),
        ("{a: " * 200_000, "nested more than"),
        ("- " * 300_000, "nested more than"),
        ("a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}]\n" for n in range(1, 9999)), "nested"),
        ("- x\n" * (MAX_VALUES + 1), "more than .* values"),
        ("a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [{f'*a{n - 1},' * 9}]\n" for n in range(1, 20)),
         "more than .* values"),
        ("x" * (1 << 20) + "x", "longer than"),
        ("x: |\n" + " y\n" * 400_000, "longer than"),
    ],
    ids=range(8),
)  # fmt: skip
def test_texts_that_would_cost_much_are_refused(text: str, problem: str) -> None:
    with pytest.raises(YAMLTextError, match=problem):
        read(text)


def test_nesting_up_to_the_limit_is_read() -> None:
    read("[" * MAX_DEPTH + "]" * MAX_DEPTH)
    with pytest.raises(YAMLTextError, match="nested"):
        read("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1))


def test_the_size_limit_is_the_callers() -> None:
    with pytest.raises(YAMLTextError, match="longer than 3 bytes"):
        read("abcd", max_size=3)


def test_keys_and_entries_are_marked_where_they_begin() -> None:
    marks: Marks = {}
    read("a:\n  b: &x [1,\n   {c: 2}]\nd: *x\n", marks=marks)
    assert marks == {
        ("a",): (1, 1),
        ("a", "b"): (2, 3),
        ("a", "b", 0): (2, 10),
        ("a", "b", 1): (3, 4),
        ("a", "b", 1, "c"): (3, 5),
        ("d",): (4, 1),
    }


def test_repeated_keys_can_be_collected_instead_of_refused() -> None:
    repeated = list[RepeatedKey]()
    text = "a:\n  - {b: 1,\n     b: 2}\na: 3\n"
    assert read(text, repeated=repeated, above=4) == {"a": 3}
    assert repeated == [(("a", 0, "b"), (7, 6)), (("a",), (8, 1))]


def test_an_error_in_a_later_document_names_the_line_of_the_whole_text() -> None:
    with pytest.raises(YAMLTextError, match="line 5, column 1: the key 'b' is repeated"):
        read_all("a: 1\n---\n# two\nb: 1\nb: 2\n")
