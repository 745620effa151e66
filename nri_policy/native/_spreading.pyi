from array import array
from collections.abc import Iterable, Sequence

from nri_policy.native._counts import Counts

MAX_WEIGHT: int
FAILING: int

def spread(
    counts: Counts,
    pods: int,
    own: array[int],
    every: array[int],
    failures: array[int],
    *,
    packed: Sequence[bool],
    weights: list[dict[int, int]],
    unlabelled: Iterable[int],
    most: int = ...,
) -> tuple[list[tuple[int, int]], int]: ...
