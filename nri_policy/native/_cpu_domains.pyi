from collections.abc import Collection, Sequence
from typing import final

from nri_policy.native._cpuset import CPUSet
from nri_policy.native._pools import Slack
from nri_policy.native._table import Table

@final
class Domains:
    count: int
    def __init__(
        self,
        parents: Sequence[int],
        pools: Sequence[int],
        at: Sequence[Sequence[int]],
        leaves: Sequence[CPUSet | None],
        cores: Collection[CPUSet],
    ) -> None: ...
    def in_whole_cores(self, candidates: CPUSet, slack: Slack | None) -> dict[int, int]: ...
    def touched(self, cpus: CPUSet) -> tuple[int, int, int]: ...
    def touch(
        self,
        table: Table,
        n: int,
        candidates: CPUSet,
        slack: Slack | None,
        fit: bool,
        *,
        whole_cores: bool = ...,
    ) -> None: ...
