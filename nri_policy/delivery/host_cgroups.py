"""The cgroups of a host's containers and pods, as far as decisions come into force by them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Protocol

from msgspec import Struct

from nri_policy.delivery.cpuset_files import Change, Confined
from nri_policy.delivery.partition_files import Settled
from nri_policy.engine.state.partition_rules import Partition
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.workload.pod import Resources


class Limited(Struct, frozen=True, kw_only=True):
    """What became of one cgroup's quota."""

    before: int  # µs a period, NO_QUOTA for none
    error: str = ""  # why the quota could not be written


class HostCgroups(Protocol):
    """The cgroups, by the runtime's names, for any thread: `audit.cgroup.Cgroups`."""

    def are_usable(self) -> bool:
        """Return whether the cgroups of this host can be read and written, as far as is seen."""
        ...

    def confine(self, wanted: Mapping[str, CPUSet], change: Change) -> Mapping[str, Confined]:
        """Change the CPUs of cgroups; return the result of each."""
        ...

    def resources(self, cgroup: str) -> Resources | None:
        """Return the resources of a cgroup; None if it is not here."""
        ...

    def processes(self, cgroup: str) -> Collection[int]:
        """Return the threads in a cgroup; 0 stands for those that cannot be seen from here."""
        ...

    def kept_by_systemd(self, cgroup: str) -> bool:
        """Return whether systemd writes the cpuset of a cgroup again."""
        ...

    def partition(
        self,
        wanted: Mapping[str, Partition | None],
        above: Collection[str] | None,
        kept: Mapping[str, CPUSet],
    ) -> Settled:
        """Make cgroups the partitions wanted, or none.

        *kept*: CPUs of other partitions.
        """
        ...

    def limit(self, wanted: Mapping[str, int]) -> Mapping[str, Limited]:
        """Set or remove the quotas of the *wanted* cgroups that exist here.

        Quotas are in µs per period, or NO_QUOTA.
        """
        ...

    def cpusets(self, cgroups: Iterable[str]) -> Mapping[str, CPUSet]:
        """Return the CPUs of those cgroups that are here."""
        ...

    def cpuset_files(
        self, cgroups: Iterable[str], partitions: Iterable[str]
    ) -> Collection[str] | None:
        """Return the files with their cpusets, whether or not these exist; None without files.

        For *partitions*, also the files that show whether a partition is valid.
        """
        ...
