from array import array
from collections.abc import Mapping, Sequence
from typing import Protocol, TypeVar

from nri_policy.native._domains import Domains

class _Node(Protocol):
    @property
    def name(self) -> str: ...

_N = TypeVar("_N", bound=_Node)

def arrange(
    nodes: list[_N],
    levels: tuple[str, ...],
    wanted: dict[str, str],
    left_out: dict[str, str],
    in_order: array[int],
) -> tuple[list[tuple[str, ...]], list[_N], dict[int, list[_N]]]: ...

class _Labelled(_Node, Protocol):
    @property
    def labels(self) -> Mapping[str, str]: ...

_L = TypeVar("_L", bound=_Labelled)

def arrange_by_labels(
    nodes: Sequence[_L | None],
    by_name: array[int],
    keys: tuple[str, ...],
    places: array[int],
) -> tuple[list[_L], array[int], Domains]: ...

class _Usable(_Node, Protocol):
    @property
    def allocatable(self) -> dict[str, int]: ...
    @property
    def taints(self) -> tuple[object, ...]: ...

def index_nodes(
    nodes: Sequence[_Usable], paths: list[tuple[str, ...]]
) -> tuple[dict[str, int], dict[str, int], set[int], list[dict[str, int] | None], bool]: ...
