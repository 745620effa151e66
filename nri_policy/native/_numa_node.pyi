from collections.abc import Iterable, Mapping, Sequence
from typing import final

MAX_ZONES: int

@final
class Distances:
    count: int
    def __init__(self, costs: Sequence[Sequence[int | None]]) -> None: ...

@final
class Columns:
    resources: tuple[int, ...]
    def __init__(self, resources: tuple[int, ...], host: tuple[int, ...]) -> None: ...

@final
class NumaNode:
    zones: tuple[int, ...]
    columns: Columns
    distances: Distances
    stale: bool
    known: bool
    single: bool
    by_pod: bool
    max_numa: int
    def __init__(
        self,
        *,
        zones: tuple[int, ...],
        columns: Columns,
        distances: Distances,
        available: Sequence[Sequence[int | None]],
        allocatable: Sequence[Sequence[int | None]],
        known: bool,
        stale: bool,
        single: bool,
        by_pod: bool,
        max_numa: int,
    ) -> None: ...
    def less(
        self,
        takes: Iterable[tuple[int | frozenset[int] | None, Mapping[int, int]]],
        above: Iterable[tuple[frozenset[int], Mapping[int, int]]] = (),
    ) -> NumaNode: ...
    def most(self, amounts: Mapping[int, int]) -> int | None: ...
