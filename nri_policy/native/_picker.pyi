from collections.abc import Iterable
from typing import final

from nri_policy.native._cpu_domains import Domains
from nri_policy.native._cpuset import CPUSet
from nri_policy.native._pools import Slack

@final
class Picker:
    domains: Domains
    def __init__(self, domains: Domains, groups: Iterable[CPUSet]) -> None: ...
    def pick(
        self,
        n: int,
        candidates: CPUSet,
        classes: Iterable[CPUSet] = ...,
        slack: Slack | None = ...,
        beside: CPUSet | None = ...,
        *,
        spare_cores: bool = ...,
        whole_cores: bool = ...,
    ) -> CPUSet: ...
    def first_threads(self, cpus: CPUSet) -> CPUSet: ...
