from typing import final

from nri_policy.native._pools import Supply

@final
class Search:
    def __init__(self, supply: Supply, movers: list[tuple[int, int, str, int]]) -> None: ...
    def who(
        self, target: int, pool: int, n: int, milli: int, shares: bool, looked_at: int
    ) -> list[int] | None: ...
