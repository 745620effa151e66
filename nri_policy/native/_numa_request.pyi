from collections.abc import Mapping, Sequence
from typing import final

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
