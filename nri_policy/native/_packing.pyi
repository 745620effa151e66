from nri_policy.native._counts import Counts

class Refusal(Exception):  # noqa: N818 - an answer, not a fault
    fits: int
    level: int
    def __init__(self, fits: int, level: int) -> None: ...

def pack(
    counts: Counts,
    count: int,
    *,
    level: int,
    required: bool = False,
    unconstrained: bool = False,
    ascending: bool = False,
    balanced: bool = False,
) -> tuple[list[tuple[int, int]], int]: ...
