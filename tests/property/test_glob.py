"""Globs against their twin, a matcher that tries everything."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nri_policy.foundation.glob import Glob


def twin(pattern: str, text: str) -> bool:
    """Match literals, `?` and `*` by definition."""
    if not pattern:
        return not text
    if pattern[0] == "*":
        stop = text.find("/") if "/" in text else len(text)
        return any(twin(pattern[1:], text[skip:]) for skip in range(stop + 1))
    if not text:
        return False
    fits = text[0] != "/" if pattern[0] == "?" else text[0] == pattern[0]
    return fits and twin(pattern[1:], text[1:])


@given(st.text("ab/?*", max_size=7), st.text("ab/", max_size=9))
def test_a_glob_matches_what_its_definition_says(pattern: str, text: str) -> None:
    assert Glob.parse(pattern).matches(text) is twin(pattern, text)


@given(st.text("ab[]^-\\*?/", max_size=12) | st.text(max_size=20), st.text(max_size=20))
def test_any_pattern_is_a_glob_or_a_value_error(pattern: str, text: str) -> None:
    try:
        glob = Glob.parse(pattern)
    except ValueError:
        return
    assert glob.matches(text) in {True, False}
