"""Amounts as Kubernetes writes them: CPU and memory quantities, durations; and moments.

Results are exact integers rounded up (milli-CPU, bytes), so that no one gets less than was asked
for. Every text is accepted or refused in bounded time. Quantities follow the grammar of
Kubernetes' resource.Quantity, except that negative amounts and such beyond 2^63-1 (which it caps)
are refused; durations follow Go's time.ParseDuration.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

from nri_policy.foundation.wording import counted, quoted

MAX_AMOUNT = 2**63 - 1
BILLIONTHS = 10**9  # the finest that a Kubernetes quantity holds
_MAX_LENGTH = 64  # characters
_EXPONENT_BOUND = 200  # with at most 64 digits, all powers beyond round or overflow alike

_QUANTITY = re.compile(
    r"(?P<sign>[+-]?)(?=\.?[0-9])(?P<whole>[0-9]*)\.?(?P<fraction>[0-9]*)"
    r"(?:(?P<suffix>[numkMGTPE]|[KMGTPE]i)|[eE](?P<exponent>[+-]?[0-9]+))?",
)
_MULTIPLIERS = {None: 1} | {
    suffix: base**power
    for base, suffixes in ((1000, "k M G T P E"), (1024, "Ki Mi Gi Ti Pi Ei"))
    for power, suffix in enumerate(suffixes.split(), start=1)
}
_DIVISORS = {"m": 10**3, "u": 10**6, "n": 10**9}

_DURATION_PART = re.compile(r"(?=\.?[0-9])([0-9]*)\.?([0-9]*)(ns|us|µs|μs|ms|s|m|h)")
_DURATION = re.compile(rf"([+-]?)(0|(?:{_DURATION_PART.pattern})+)")
_NANOSECONDS = {
    "ns": 1,
    "us": 10**3,
    "µs": 10**3,  # U+00B5, micro sign
    "μs": 10**3,  # U+03BC, Greek letter: Go takes both
    "ms": 10**6,
    "s": 10**9,
    "m": 60 * 10**9,
    "h": 3600 * 10**9,
}

_BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


def parse_cpu(value: object) -> int:
    """Return a CPU quantity (`750m`, `2`, `1.5`) in milli-CPU, rounded up.

    Raises ValueError for anything else, and for negative or absurdly large amounts.
    """
    return _parse(value, 1000, "a CPU quantity, such as 2, 1.5 or 750m")


def parse_bytes(value: object) -> int:
    """Return a memory quantity (`512Mi`, `2G`, `1e9`) in bytes, rounded up.

    Raises ValueError for anything else, and for negative or absurdly large amounts.
    """
    return _parse(value, 1, "a memory quantity, such as 512Mi, 2G or 1073741824")


def parse_exact(value: object) -> int:
    """Return a quantity of any resource, also negative, in billionths (BILLIONTHS to a unit).

    Exact, as Kubernetes compares them: finer amounts are rounded away from zero, and the maximum is
    2^63-1 units. Raises ValueError for anything else.
    """
    sign, numerator, denominator = _ratio(value, "a quantity, such as 2, 1.5, 750m or 512Mi")
    amount = -(-numerator * BILLIONTHS // denominator)
    return sign * min(amount, MAX_AMOUNT * BILLIONTHS)


def parse_duration(text: object) -> float:
    """Return a Go duration (`60s`, `1h30m`, `250ms`, `0`) in seconds.

    Raises ValueError for anything else, and for negative or absurdly long ones.
    """
    wanted = "a duration, such as 60s, 1h30m or 250ms"
    match = None
    if isinstance(text, str) and len(text) <= _MAX_LENGTH:
        match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError(f"{quoted(text)} is not {wanted}")
    nanoseconds: int = sum(
        int(whole + fraction) * _NANOSECONDS[unit] // 10 ** len(fraction)
        for whole, fraction, unit in _DURATION_PART.findall(match[2])
    )
    if match[1] == "-" and nanoseconds:
        raise ValueError(f"{quoted(text)} is negative; expected: {wanted}")
    if nanoseconds > MAX_AMOUNT:  # Go counts them in 64 bits
        raise ValueError(f"{quoted(text)} is too long; expected: {wanted}")
    return nanoseconds / 10**9


def format_cpu(milli_cpu: int) -> str:
    """Return milli-CPU as Kubernetes writes them: `1500m`, `2`."""
    whole, rest = divmod(milli_cpu, 1000)
    return f"{milli_cpu}m" if rest else str(whole)


def count_cpus(milli_cpu: int) -> str:
    """Return milli-CPU as a sentence has them: `1 CPU`, `2 CPUs`, `1500m CPU`."""
    whole, rest = divmod(milli_cpu, 1000)
    return f"{milli_cpu}m CPU" if rest else counted(whole, "CPU")


def format_bytes(amount: int) -> str:
    """Return bytes as people read them: `16 GiB`, `1.5 MiB`, `0 B`, to one decimal."""
    step = 0
    while (tenths := (20 * abs(amount) // 1024**step + 1) // 2) >= 10240 and step < 6:
        step += 1
    whole, tenth = divmod(tenths, 10)
    sign = "-" if amount < 0 else ""
    return f"{sign}{whole}{f'.{tenth}' if tenth else ''} {_BYTE_UNITS[step]}"


def format_quantity(amount: int) -> str:
    """Return bytes as a quantity, exactly: `32Gi`, `1000000000`."""
    step = 0
    while amount and not amount % 1024 ** (step + 1) and step < 6:
        step += 1
    return f"{amount // 1024**step}{('', 'Ki', 'Mi', 'Gi', 'Ti', 'Pi', 'Ei')[step]}"


def format_time(seconds: float) -> str:
    """Return a moment, in seconds since the epoch, as ISO 8601 has it: `2026-11-21T09:30:00Z`."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def format_age(seconds: float) -> str:
    """Return a length of time in one unit, rounded down, as kubectl shows ages: `90s`, `6d`."""
    for limit, unit, letter in ((120, 1, "s"), (7200, 60, "m"), (172_800, 3600, "h")):
        if seconds < limit:
            return f"{int(seconds) // unit}{letter}"
    return f"{int(seconds) // 86_400}d"


def _parse(value: object, scale: int, wanted: str) -> int:
    """Return ceil(*value* · *scale*)."""
    if isinstance(value, int) and abs(value) > MAX_AMOUNT:
        raise ValueError(f"{quoted(value)} is out of range; expected: {wanted}")
    sign, numerator, denominator = _ratio(value, wanted)
    amount = -(-numerator * scale // denominator)
    if sign < 0 and amount:
        raise ValueError(f"{quoted(value)} is negative; expected: {wanted}")
    if amount > MAX_AMOUNT:
        raise ValueError(f"{quoted(value)} is out of range; expected: {wanted}")
    return amount


def _ratio(value: object, wanted: str) -> tuple[int, int, int]:
    """Return sign, numerator and denominator of a quantity."""
    # A float's repr is its shortest form: that is how the user wrote it.
    text = value if isinstance(value, str) else ""
    if isinstance(value, float) or (isinstance(value, int) and abs(value) < 2**128):
        text = repr(value)
    match = _QUANTITY.fullmatch(text) if len(text) <= _MAX_LENGTH else None
    if match is None:
        raise ValueError(f"{quoted(value)} is not {wanted}")
    sign, whole, fraction, suffix, exponent = match.groups()
    power = max(-_EXPONENT_BOUND, min(int(exponent or 0), _EXPONENT_BOUND)) - len(fraction)
    numerator = int(whole + fraction) * _MULTIPLIERS.get(suffix, 1)
    denominator = _DIVISORS.get(suffix, 1)
    if power > 0:
        numerator *= 10**power
    else:
        denominator *= 10**-power
    return -1 if sign == "-" else 1, numerator, denominator


def format_page_size(size: int) -> str:
    """Return the bytes of a huge page as resource names have them: `2Mi`, `1Gi`."""
    step = 0
    while step < 4 and size % 1024 == 0:
        size //= 1024
        step += 1
    return f"{size}{('', 'Ki', 'Mi', 'Gi', 'Ti')[step]}"


def format_pages(size: int, amount: int) -> str:
    """Return how many huge pages of *size* an *amount* of bytes is: `8 × 1Gi`."""
    return f"{-(-amount // size)} × {format_page_size(size)}"
