from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar, final

from nri_policy.native._counts import Counts

_Entry = TypeVar("_Entry")

class Refusal(Exception):  # noqa: N818 - an answer, not a fault
    fits: int
    level: int
    def __init__(self, fits: int, level: int) -> None: ...

@final
class Places:
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[tuple[int, int]]: ...

@final
class Entries(Generic[_Entry]):
    def __init__(self, leaves: int, make: Callable[[int, int], _Entry]) -> None: ...
    def of(self, places: Iterable[tuple[int, int]]) -> list[_Entry]: ...

def make_places(pairs: list[tuple[int, int]]) -> Places: ...
def pack(
    counts: Counts,
    count: int,
    *,
    level: int,
    required: bool = False,
    unconstrained: bool = False,
    ascending: bool = False,
    balanced: bool = False,
    compact: bool = False,
    within: int = -1,
) -> tuple[Places, int]: ...
