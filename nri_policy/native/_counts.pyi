from typing import final

from nri_policy.native._domains import Domains, Mask, Rows, Vector

@final
class Counts:
    domains: Domains
    rows: Rows
    size: int
    slice_level: int
    low: int
    high: int
    def __init__(
        self,
        rows: Rows,
        pod: Vector,
        mask: Mask,
        *,
        size: int = 1,
        slice_level: int = -1,
        inner: dict[int, int] | None = None,
        leader: Vector | None = None,
        leader_mask: Mask | None = None,
        low: int = 0,
        high: int | None = None,
        hosts: Counts | None = None,
        host_of: list[int] | None = None,
        most: list[int] | None = None,
        beside: list[int] | None = None,
        cap_level: int = -1,
        cap: list[int] | None = None,
    ) -> None: ...
    def start_from(self, other: Counts) -> None: ...
    def of(self, domain: int) -> tuple[int, int, int, int, int, int]: ...
    def below(self, domain: int) -> bytes: ...
    def pods_above(self, leaf: int, level: int) -> int: ...
    def exclusions(self) -> tuple[int, dict[int, int], int, dict[str, int]]: ...
    def best_of_level(self, level: int) -> int: ...
    def whole_below(self, domain: int, level: int, size: int) -> int: ...

def rank(
    every: list[Counts], wanted: list[int], sums: dict[str, int], level: int
) -> tuple[list[int], int]: ...
def have_left(rows: Rows, sums: dict[str, int]) -> bool: ...
