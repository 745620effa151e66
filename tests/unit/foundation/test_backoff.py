"""How long to wait after failures."""

from __future__ import annotations

from nri_policy.foundation.backoff import backoff


def test_waits_after_failures_double_up_to_a_bound() -> None:
    longest = [
        backoff(failures, least=0.5, most=30.0, chance=lambda: 1.0) for failures in range(1, 9)
    ]
    assert longest == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]
    assert backoff(9, least=0.5, most=30.0, chance=lambda: 0.0) == 0.5
