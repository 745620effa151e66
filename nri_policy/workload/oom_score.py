"""OOM scores: derives a Burstable container's memory request from its score; nri.md §7.

The runtime does not know memory requests. For Burstable containers the kubelet encodes the request
in oom_score_adj as 1000 - 1000 * request / capacity, in integers, from 3 to 999.
"""

from __future__ import annotations

_LEAST, _MOST = 3, 999


def memory_request(oom_score_adj: int, capacity: int) -> int | None:
    """Return the least memory request in bytes that gives this score on a node of *capacity*.

    At most 0.1 % of the capacity too little; 0 for the highest score, which is also that of a
    container without a request. None for a score that the kubelet gives to no Burstable container.
    """
    if not _LEAST <= oom_score_adj <= _MOST:
        return None
    if oom_score_adj == _MOST:
        return 0
    return -(-(1000 - oom_score_adj) * capacity // 1000)
