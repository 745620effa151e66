from array import array

from nri_policy.native._numa_node import NumaNode
from nri_policy.native._numa_request import Request

FITS: int
STALE: int
INIT: int
SIDECAR: int
CONTAINER: int
POD: int
UNRESOLVABLE: int
NO_ZONE: int

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
