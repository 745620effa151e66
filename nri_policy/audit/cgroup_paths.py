"""The paths of cgroups below a mount point, by the names that runtimes give them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import lru_cache

from msgspec.structs import replace

from nri_policy.delivery.cgroup_tree import CgroupTree
from nri_policy.delivery.partition_files import Settled, settle
from nri_policy.engine.state.partition_rules import Partition
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.systemd.scopes import scope_of


@lru_cache(1024)  # a look at all cpusets asks for the path of each container
def folder_of(cgroup: str) -> str | None:
    """Return the path of the runtime's *cgroup* below a mount point; None if it is malformed.

    The forms are `/parent/name`, and for systemd `SLICE:PREFIX:NAME`: the scope PREFIX-NAME in that
    slice.
    """
    path = cgroup.strip("/")
    if scope := scope_of(cgroup):
        slice_ = cgroup.partition(":")[0]
        path = f"{_parent_slices(slice_ or 'system.slice')}{scope}"
    if any(part in ("", ".", "..") for part in path.split("/")):
        return None
    return path


def folder_of_pod(folder: str) -> str | None:
    """Return the path of a pod's cgroup below a mount point; None if it is malformed."""
    if folder.endswith(".slice") and "/" not in folder:
        return _parent_slices(folder).rstrip("/")
    return folder_of(folder)


def _parent_slices(slice_: str) -> str:
    """Return the path of a slice with a trailing slash: `a-b.slice` is in `a.slice`."""
    names = slice_.removesuffix(".slice").split("-")
    if not any(names):  # `-.slice`, the root
        return ""
    return "".join("-".join(names[: n + 1]) + ".slice/" for n in range(len(names)))


def settle_partitions(
    tree: CgroupTree,
    wanted: Mapping[str, Partition | None],
    above: Collection[str] | None,
    kept: Mapping[str, CPUSet],
) -> Settled:
    """Do the same as `settle` with the runtime's names of cgroups."""
    names = {path: each for each in wanted if (path := folder_of(each)) is not None}
    others = {path: cpus for each, cpus in kept.items() if (path := folder_of(each)) is not None}
    done = settle(tree, {path: wanted[each] for path, each in names.items()}, above, others)
    outcomes = {names[path]: done.outcomes[path] for path in done.outcomes.keys() & names}
    return replace(done, outcomes=outcomes)
