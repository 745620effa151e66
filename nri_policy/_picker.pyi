from collections.abc import Iterable
from typing import final

from nri_policy._cpuset import CPUSet
from nri_policy._pools import Slack

@final
class Picker:
    def __init__(
        self,
        packages: Iterable[CPUSet],
        dies: Iterable[CPUSet],
        caches: Iterable[CPUSet],
        cores: Iterable[CPUSet],
        domains: Iterable[CPUSet],
    ) -> None: ...
    def pick(
        self,
        n: int,
        candidates: CPUSet,
        classes: Iterable[CPUSet] = ...,
        slack: Slack | None = ...,
        beside: CPUSet | None = ...,
    ) -> CPUSet: ...
    def first_threads(self, cpus: CPUSet) -> CPUSet: ...
