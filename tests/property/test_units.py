"""Quantities and durations against their twins, written with fractions."""

from __future__ import annotations

import math
import re
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nri_policy.foundation.units import (
    MAX_AMOUNT,
    format_cpu,
    parse_bytes,
    parse_cpu,
    parse_duration,
)

SUFFIXES = {"": Fraction(1)} | {
    suffix: Fraction(base) ** power
    for base, suffixes in {
        1000: {"n": -3, "u": -2, "m": -1, "k": 1, "M": 2, "G": 3, "T": 4, "P": 5, "E": 6},
        1024: {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6},
    }.items()
    for suffix, power in suffixes.items()
}
numbers = st.from_regex(r"[0-9]{1,12}(\.[0-9]{0,12})?|\.[0-9]{1,12}", fullmatch=True).filter(
    str.isascii
)


@given(numbers, st.sampled_from(sorted(SUFFIXES)) | st.integers(-400, 400))
def test_a_quantity_is_its_fraction_rounded_up(number: str, suffix: str | int) -> None:
    exact = Fraction(Decimal(number))
    exact *= SUFFIXES[suffix] if isinstance(suffix, str) else Fraction(10) ** suffix
    text = number + (suffix if isinstance(suffix, str) else f"e{suffix}")
    for parse, amount in ((parse_cpu, math.ceil(exact * 1000)), (parse_bytes, math.ceil(exact))):
        if amount <= MAX_AMOUNT:
            assert parse(text) == amount
        else:
            with pytest.raises(ValueError, match="out of range"):
                parse(text)


@given(st.floats(0, 1e12))
def test_a_float_is_taken_at_the_value_that_it_shows(value: float) -> None:
    assert parse_cpu(value) == math.ceil(Fraction(Decimal(repr(value))) * 1000)


@given(st.integers(0, 10**9))
def test_a_shown_cpu_amount_reads_back(milli: int) -> None:
    assert parse_cpu(format_cpu(milli)) == milli


units = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9}


@given(st.lists(st.tuples(numbers, st.sampled_from(sorted(units))), min_size=1, max_size=2))
def test_a_duration_is_the_sum_of_its_parts(parts: list[tuple[str, str]]) -> None:
    exact = sum(math.floor(Fraction(Decimal(number)) * units[unit]) for number, unit in parts)
    text = "".join(map("".join, parts))
    if exact <= MAX_AMOUNT:
        assert parse_duration(text) == exact / 10**9
    else:
        with pytest.raises(ValueError, match="too long"):
            parse_duration(text)


@given(st.text(max_size=80) | st.text(alphabet="0123456789.+-eEmunkKMGTPish", max_size=80))
def test_any_text_is_an_amount_or_a_value_error(text: str) -> None:
    for parse in (parse_cpu, parse_bytes, parse_duration):
        try:
            amount = parse(text)
        except ValueError:
            continue
        assert 0 <= amount <= MAX_AMOUNT
        assert re.search("[0-9]", text)
