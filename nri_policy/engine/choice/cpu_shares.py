"""CPU shares: the number of exclusive CPUs from each part of a pool; spec placement.md §6.

Owns the ways to divide them among NUMA nodes: by the devices there, or evenly.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from nri_policy.foundation.cpuset import EMPTY, CPUSet
from nri_policy.pools.picker import Picker
from nri_policy.pools.supply import Slack

Share = tuple[CPUSet, int]  # a part, and how many of its CPUs


def device_shares(localities: Sequence[CPUSet], n: int) -> list[Share]:
    """Return shares of *n* CPUs near the *localities* of devices, in proportion to their number."""
    devices = Counter(localities)
    places = sorted(devices, key=lambda cpus: cpus.lowest)
    return [*zip(places, proportional([devices[cpus] for cpus in places], n), strict=True)]


def pick_shares(
    picker: Picker,
    candidates: CPUSet,
    shares: Sequence[Share],
    classes: Sequence[CPUSet] = (),
    slack: Slack | None = None,
) -> CPUSet | None:
    """Return *candidates*: its share of each part as far as possible, the rest from anywhere.

    None if *slack* does not allow it; *slack* is used up then, too.
    """
    taken, n = EMPTY, sum(share for _, share in shares)
    try:
        # parts with few candidates first
        for part, share in sorted(shares, key=lambda each: len(each[0] & candidates)):
            left = (candidates - taken) & part
            taken |= picker.pick(min(share, len(left)), left, classes, slack)
        return taken | picker.pick(n - len(taken), candidates - taken, classes, slack, beside=taken)
    except ValueError:
        return None


def proportional(weights: Sequence[int], n: int) -> list[int]:
    """Return *n* in parts in proportion to *weights*: largest remainders, then the first."""
    total = sum(weights)
    parts = [n * weight // total for weight in weights]
    by_remainder = sorted(range(len(weights)), key=lambda at: -(n * weights[at] % total))
    for at in by_remainder[: n - sum(parts)]:
        parts[at] += 1
    return parts


def even_shares(area: CPUSet, n: int, unit: int, levels: Sequence[Sequence[CPUSet]]) -> list[Share]:
    """Return shares of *n* CPUs of *area*, as even as possible over domains of the first level.

    Over as few of these domains as hold *n*, and inside each over those of the next level; if one
    domain holds all, the picker chooses. CPUs stay together by *unit*, the threads of a core.
    """
    parts = sorted(
        (part for each in levels[0] if (part := each & area)) if levels else (),
        key=lambda part: (-len(part), part.lowest),
    )
    if len(parts) == 1:
        return even_shares(parts[0], n, unit, levels[1:])
    if not parts or len(parts[0]) >= n:
        return [(area, n)]
    held, chosen = 0, list[CPUSet]()
    while held < n and len(chosen) < len(parts):
        chosen.append(parts[len(chosen)])
        held += len(chosen[-1])
    chosen.sort(key=lambda part: part.lowest)
    shares = [0] * len(chosen)
    while (left := n - sum(shares)) > 0 and sum(shares) < held:
        open_ = [at for at, part in enumerate(chosen) if shares[at] < len(part)]
        least = min(open_, key=lambda at: shares[at])
        shares[least] += min(unit, left, len(chosen[least]) - shares[least])
    return [
        share
        for part, count in zip(chosen, shares, strict=True)
        for share in even_shares(part, count, unit, levels[1:])
    ]
