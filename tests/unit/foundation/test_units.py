"""Quantities and durations: what is taken, what is refused."""

from __future__ import annotations

import pytest

from nri_policy.foundation.units import (
    BILLIONTHS,
    MAX_AMOUNT,
    format_age,
    format_bytes,
    format_cpu,
    parse_bytes,
    parse_cpu,
    parse_duration,
    parse_exact,
)


@pytest.mark.parametrize(
    ("text", "milli"),
    [
        ("750m", 750),
        ("2", 2000),
        ("1.5", 1500),
        (2, 2000),
        (1.5, 1500),
        (0.1, 100),
        ("0", 0),
        ("-0", 0),
        ("+1", 1000),
        (".5", 500),
        ("5.", 5000),
        ("0.1m", 1),
        ("1n", 1),
        ("1500u", 2),
        ("1e3", 1_000_000),
        ("1E-1", 100),
        ("1e+2", 100_000),
        ("1k", 1_000_000),
        ("1Ki", 1_024_000),
        ("1e-999999999", 1),
        ("0e999999999999", 0),
        (1e-7, 1),
    ],
)
def test_a_cpu_quantity_is_milli_cpu_rounded_up(text: str | float, milli: int) -> None:
    assert parse_cpu(text) == milli


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("512Mi", 512 * 2**20),
        ("2G", 2 * 10**9),
        ("1e9", 10**9),
        ("1E", 10**18),
        ("1Ei", 2**60),
        ("1.5Ki", 1536),
        ("100m", 1),
        ("7Ei", 7 * 2**60),
        (4096, 4096),
        (2**63 - 1, 2**63 - 1),
        (1e16, 10**16),
    ],
)
def test_a_memory_quantity_is_bytes_rounded_up(text: str | float, amount: int) -> None:
    assert parse_bytes(text) == amount


@pytest.mark.parametrize(
    "text",
    [
        "", " ", " 1", "1 ", "1\n", "m", ".", "+", "1e", "e3", "1e3m", "1mm", "1Mii", "1K", "1ki",
        "1mi", "0x10", "1_000", "1,5", "\u0661", "1e1.5", "one", "nan", "inf", "9" * 65,
    ],
)  # fmt: skip
def test_what_is_no_quantity_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a CPU quantity, such as 2, 1\.5 or 750m"):
        parse_cpu(text)
    with pytest.raises(ValueError, match=r"is not a memory quantity, such as 512Mi"):
        parse_bytes(text)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), True, None, [], {}, b"1"])
def test_values_of_other_types_are_refused(value: object) -> None:
    with pytest.raises(ValueError, match="is not a CPU quantity"):
        parse_cpu(value)


@pytest.mark.parametrize("value", ["-1", "-1m", "-0.0001m", -1, -0.5])
def test_negative_amounts_are_refused(value: str | float) -> None:
    with pytest.raises(ValueError, match="is negative"):
        parse_cpu(value)


@pytest.mark.parametrize("value", ["1e19", "8Ei", "1e999999999999", 2**63])
def test_amounts_beyond_63_bits_are_refused_at_no_cost(value: str | int) -> None:
    with pytest.raises(ValueError, match="is out of range"):
        parse_bytes(value)


def test_an_integer_too_long_to_print_is_refused() -> None:
    with pytest.raises(ValueError, match="is out of range"):
        parse_cpu(10**5000)


def test_errors_quote_a_shortened_text() -> None:
    with pytest.raises(ValueError, match="characters") as caught:
        parse_bytes("x" * 1_000_000)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("60s", 60),
        ("1h30m", 5400),
        ("250ms", 0.25),
        ("0", 0),
        ("0s", 0),
        ("-0", 0),
        ("+5s", 5),
        ("1.5h", 5400),
        (".5s", 0.5),
        ("1.s", 1),
        ("1us", 1e-6),
        ("1µs", 1e-6),
        ("1ns", 1e-9),
        ("1m1m", 120),
    ],
)
def test_a_duration_is_seconds(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "+", "60", "s", ".s", "1 s", "1d", "1e3s", "1s2", "-", "+-0", "9" * 70 + "s", None]
)
def test_what_is_no_duration_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration, such as 60s, 1h30m or 250ms"):
        parse_duration(text)


def test_durations_are_neither_negative_nor_endless() -> None:
    with pytest.raises(ValueError, match="is negative"):
        parse_duration("-1s")
    with pytest.raises(ValueError, match="is too long"):
        parse_duration("9999999h")


@pytest.mark.parametrize(("milli", "text"), [(1500, "1500m"), (2000, "2"), (0, "0"), (1, "1m")])
def test_cpus_are_shown_as_kubernetes_writes_them(milli: int, text: str) -> None:
    assert format_cpu(milli) == text


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (16 * 2**30, "16 GiB"),
        (3 * 2**29, "1.5 GiB"),
        (2**30 - 1, "1 GiB"),
        (2**70, "1024 EiB"),
        (-(2**20), "-1 MiB"),
    ],
)
def test_memory_is_shown_as_people_read_it(amount: int, text: str) -> None:
    assert format_bytes(amount) == text


@pytest.mark.parametrize(
    ("text", "billionths"),
    [
        ("2", 2 * BILLIONTHS),
        ("-1", -BILLIONTHS),
        ("-500m", -BILLIONTHS // 2),
        ("1n", 1),
        ("0.1n", 1),
        ("-0.1n", -1),
        ("1500u", 1_500_000),
        (0.1, BILLIONTHS // 10),
        ("1Ki", 1024 * BILLIONTHS),
        ("1e30", MAX_AMOUNT * BILLIONTHS),
        (-(2**70), -MAX_AMOUNT * BILLIONTHS),
    ],
)
def test_an_exact_quantity_is_in_billionths(text: str | float, billionths: int) -> None:
    assert parse_exact(text) == billionths


@pytest.mark.parametrize("text", ["", "x", "1,5", "4x", "--1", "nan", float("nan"), True, 2**4000])
def test_what_is_no_quantity_has_no_exact_amount(text: str | float) -> None:
    with pytest.raises(ValueError, match="is not a quantity"):
        parse_exact(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (119.9, "119s"), (120, "2m"), (7199, "119m"), (7200, "2h"), (172_800, "2d")],
)
def test_ages_are_in_one_unit(seconds: float, text: str) -> None:
    assert format_age(seconds) == text
