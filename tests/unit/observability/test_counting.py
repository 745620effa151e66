from __future__ import annotations

import pytest

from nri_policy.observability.counting import Counter, Durations


def samples(metric: Counter | Durations) -> dict[tuple[str, ...], float]:
    return {(s.name, *s.labels.values()): s.value for s in metric.copy()().samples}


def test_a_counter_with_few_series_begins_at_nothing_so_that_no_first_rise_is_lost() -> None:
    assert samples(Counter("c", "text")) == {("c_total",): 0}
    assert samples(Counter("c", "text", kind=("a", "b"))) == {
        ("c_total", "a"): 0,
        ("c_total", "b"): 0,
    }


def test_label_values_that_are_not_known_are_counted_as_other() -> None:
    counter = Counter("c", "text", kind=("a", "b"))
    counter.add("a", amount=3)
    for number in range(100):
        counter.add(f"unheard of {number}")
    assert samples(counter) == {("c_total", "a"): 3, ("c_total", "b"): 0, ("c_total", "other"): 100}


def test_sums_are_over_all_that_begin_with_the_same_values() -> None:
    counter = Counter("c", "text", kind=("a", "b"), size=("1", "2"))
    counter.add("a", "1")
    counter.add("a", "2")
    counter.add("b", "2")
    assert (counter.total("a"), counter.total("a", "2"), counter.total()) == (2, 1, 3)


@pytest.mark.parametrize(
    ("seconds", "counted"),
    [(0.0, (1, 1, 1)), (0.1, (1, 1, 1)), (0.11, (0, 1, 1)), (1.0, (0, 1, 1)), (1.01, (0, 0, 1))],
)
def test_a_duration_counts_in_every_bucket_that_it_is_not_above(
    seconds: float, counted: tuple[int, ...]
) -> None:
    histogram = Durations("h", "text", (0.1, 1.0))
    histogram.add(seconds=seconds)
    found = samples(histogram)
    assert tuple(found["h_bucket", le] for le in ("0.1", "1.0", "+Inf")) == counted
    assert (found["h_count",], found["h_sum",]) == (1, seconds)
