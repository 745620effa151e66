from array import array
from collections.abc import Iterable

def scores(
    parents: array[int], pools: array[int], terms: Iterable[tuple[int, int]]
) -> tuple[float, ...]: ...
