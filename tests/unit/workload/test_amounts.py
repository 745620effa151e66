from __future__ import annotations

import pytest

from nri_policy.workload.amounts import request_by_score

GIB = 1 << 30


def kubelet_score(request: int, capacity: int) -> int:
    """The kubelet's rule for Burstable containers (nri.md §7)."""
    score = 1000 - 1000 * request // capacity
    return 3 if score < 3 else 999 if score == 1000 else score


@pytest.mark.parametrize("capacity", [64 * GIB, 64 * GIB - 4096, 999_999_937])
def test_the_estimate_gives_the_same_score_and_is_never_too_much(capacity: int) -> None:
    for share in range(0, 1001, 7):
        request = capacity * share // 1000
        score = kubelet_score(request, capacity)
        estimate = request_by_score(score, capacity)
        assert estimate is not None
        assert kubelet_score(estimate, capacity) == score
        assert estimate <= request
        if 2 <= share <= 997:
            assert request - estimate <= capacity // 1000 + 1


def test_the_score_of_containers_without_a_request_is_no_request() -> None:
    assert request_by_score(999, 64 * GIB) == 0


@pytest.mark.parametrize("score", [-997, 0, 2, 1000])
def test_scores_of_no_burstable_container_tell_nothing(score: int) -> None:
    assert request_by_score(score, 64 * GIB) is None
