"""Globs as Go's filepath.Match has them."""

from __future__ import annotations

import pytest

from nri_policy.foundation.glob import Glob


@pytest.mark.parametrize(
    ("pattern", "text", "matches"),
    [
        ("abc", "abc", True),
        ("abc", "abcd", False),
        ("", "", True),
        ("*", "", True),
        ("*", "a/b", False),
        ("*c", "abc", True),
        ("a*", "ab/c", False),
        ("a*/b", "abc/b", True),
        ("a*/b", "a/c/b", False),
        ("a*b*c*d*e*/f", "axbxcxdxe/f", True),
        ("a*b*c*d*e*/f", "axbxcxdxexxx/fff", False),
        ("a*b?c*x", "abxbbxdbxebxczzx", True),
        ("a*b?c*x", "abxbbxdbxebxczzy", False),
        ("**a", "bba", True),
        ("ab[c]", "abc", True),
        ("ab[e-g]", "abf", True),
        ("ab[e-g]", "abc", False),
        ("ab[^e-g]", "abc", True),
        ("ab[!e-g]", "ab!", True),
        ("a\\*b", "a*b", True),
        ("a\\*b", "ab", False),
        ("a?b", "a/b", False),
        ("a[^a]b", "a☺b", True),
        ("[a-\u03b6]*", "\u03b1", True),
        ("[\\]a]", "]", True),
        ("[\\-]", "-", True),
        ("[x\\-]", "-", True),
        ("*x", "xxx", True),
        ("a", "a\n", False),
        ("[a^]", "^", True),
        ("[.[]", "[", True),
    ],
)
def test_a_glob_matches_as_in_go(pattern: str, text: str, matches: bool) -> None:
    assert Glob.parse(pattern).matches(text) is matches


@pytest.mark.parametrize(
    "pattern",
    [
        "[",
        "[]",
        "[]a]",
        "[^",
        "[-]",
        "[x-]",
        "[-x]",
        "[a-b-c]",
        "a[",
        "a\\",
        "[b-a]",
        "[a",
        "x" * 1025,
    ],
)
def test_a_malformed_glob_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="is not a glob"):
        Glob.parse(pattern)


def test_a_pattern_of_many_stars_matches_in_bounded_time() -> None:
    assert not Glob.parse("*a" * 500 + "b").matches("a" * 4000)
    assert Glob.parse("a*" * 500).matches("a" * 4000)


def test_globs_are_equal_by_pattern() -> None:
    assert Glob.parse("a*") == Glob.parse("a*")
    assert repr(Glob.parse("a*")) == "Glob(pattern='a*')"
