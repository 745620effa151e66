from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import final

FITS: int
STALE: int
INIT: int
SIDECAR: int
CONTAINER: int
POD: int
UNRESOLVABLE: int
STRATEGIES: tuple[str, ...]
MAX_ZONES: int
NO_ZONE: int

@final
class Distances:
    count: int
    def __init__(self, costs: Sequence[Sequence[int | None]]) -> None: ...

@final
class NumaNode:
    zones: tuple[int, ...]
    resources: tuple[int, ...]
    stale: bool
    known: bool
    single: bool
    by_pod: bool
    max_numa: int
    distances: Distances
    def __init__(
        self,
        *,
        zones: tuple[int, ...],
        resources: tuple[int, ...],
        available: Sequence[Sequence[int | None]],
        allocatable: Sequence[Sequence[int | None]],
        host: Iterable[int],
        distances: Distances,
        known: bool,
        stale: bool,
        single: bool,
        by_pod: bool,
        max_numa: int,
    ) -> None: ...
    def less(self, takes: Iterable[tuple[int | None, Mapping[int, int]]]) -> NumaNode: ...

@final
class Request:
    guaranteed: bool
    best_effort: bool
    def __init__(
        self,
        *,
        guaranteed: bool,
        best_effort: bool,
        resources: Sequence[tuple[int, int, int]],
        steps: Sequence[tuple[int, bool, Mapping[int, int]]],
    ) -> None: ...

def evaluate(
    nodes: list[NumaNode | None],
    request: Request,
    strategy: int,
    verdicts: bytearray,
    scores: bytearray,
    generations: array[int],
    since: int,
) -> None: ...
def place(node: NumaNode, request: Request) -> tuple[int, ...] | None: ...
