"""Writing the partitions of cgroups (version 2), in the order that the kernel needs.

Owns that order (delivery.md §5): those that give CPUs up come first, and a cgroup above
has the CPUs before those below it have them, and until after. What is written is read again: a
partition is there if the kernel says so, and one that it calls invalid is removed.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Collection, Iterator, Mapping

from msgspec import Struct

from nri_policy.delivery.cgroup_tree import CgroupTree
from nri_policy.engine.state.partition_rules import Partition
from nri_policy.foundation.cpuset import EMPTY, CPUSet
from nri_policy.settings import ExclusivePartitions
from nri_policy.workload.pod import parse_cpus

EXCLUSIVE = "cpuset.cpus.exclusive"
PARTITION = "cpuset.cpus.partition"
_CPUS = "cpuset.cpus"
TOPS = ("kubepods", "kubepods.slice")  # where kubelets keep their pods, unless told otherwise
_LEVELS = 4  # of cgroups above containers: kubepods, its class, the pod, and one more above all
_MEMBER = "member"  # of the partition above: no partition of its own


class PartitionOutcome(Struct, frozen=True, kw_only=True):
    """What became of one cgroup."""

    held: Partition | None = None  # the valid partition that it is now
    error: str = ""  # why it is not the one wanted
    lost: str = ""  # why the partition was invalid before; empty if it was valid


class Settled(Struct, frozen=True, kw_only=True):
    """What became of all of them."""

    outcomes: Mapping[str, PartitionOutcome]  # by path, of those that are here
    # paths of cgroups that keep CPUs for partitions below them, and why one still does that should
    # not, or does not yet; else empty
    above: Mapping[str, str] = {}


class _Found(Struct, frozen=True, kw_only=True):
    """What the files of one cgroup say."""

    exclusive: CPUSet
    kind: str
    invalid: str  # why, if it is

    @property
    def held(self) -> Partition | None:
        """The valid partition that it is."""
        if self.kind == _MEMBER or self.invalid:
            return None
        return Partition(kind=ExclusivePartitions(self.kind), cpus=self.exclusive)

    @property
    def lost(self) -> str:
        """Why the cgroup is no valid partition; empty if it is valid."""
        return self.invalid if self.kind != _MEMBER else "member was written"


def settle(
    tree: CgroupTree,
    wanted: Mapping[str, Partition | None],
    above: Collection[str] | None,
    kept: Mapping[str, CPUSet] | None = None,
) -> Settled:
    """Make each cgroup the partition wanted, or none, by path.

    *above* are paths of other cgroups that may still keep CPUs for partitions that ended; None
    means to search for them. *kept* are the CPUs of all other partitions; these partitions stay.
    """
    if above is None:
        above = [*_find_keeping(tree, {*wanted, *(kept or ())})]
    return _Settlement(tree, wanted, kept or {}).settle(above)


def _find_keeping(tree: CgroupTree, containers: Collection[str]) -> Iterator[str]:
    """Yield the cgroups that keep CPUs for others below them, such as an earlier daemon left."""
    level = {*TOPS, *(each.partition("/")[0] for each in containers)}
    for _ in range(_LEVELS):
        level -= set(containers)  # cgroups below a container belong to the container
        for path in level:
            if tree.read(path, EXCLUSIVE) and tree.read(path, PARTITION) == _MEMBER:
                yield path
        level = {f"{path}/{name}" for path in level for name in tree.children(path)}


def ancestors(path: str) -> Iterator[str]:
    """Yield the paths of the cgroups above one, the top but the mount point first."""
    parts = path.split("/")
    return ("/".join(parts[:n]) for n in range(1, len(parts)))


class _Settlement:
    """One pass over all partitions."""

    def __init__(
        self,
        tree: CgroupTree,
        wanted: Mapping[str, Partition | None],
        kept: Mapping[str, CPUSet],
    ) -> None:
        self._tree = tree
        found = {each: self._find(each) for each in wanted}
        self._found = {each: now for each, now in found.items() if now is not None}
        self._wanted = {each: wanted[each] for each in self._found}
        self._kept = kept
        self._errors: dict[str, str] = {}  # the first of each cgroup

    def settle(self, above: Collection[str]) -> Settled:
        """Do all of it."""
        for each in self._wanted:
            self._give_up(each)
        due = self._due_above(above)
        top_first = sorted(due, key=lambda each: each.count("/"))
        now = {each: parse_cpus(text) for each in due if (text := self._tree.read(each, EXCLUSIVE))}
        for parent in reversed(top_first):
            self._keep(parent, now.get(parent, EMPTY), due[parent] & now.get(parent, EMPTY))
        for parent in top_first:
            self._keep(parent, due[parent] & now.get(parent, EMPTY), due[parent])
        outcomes = {
            each: PartitionOutcome(
                held=found.held, error=self._error(each), lost=self._found[each].lost
            )
            for each, new in self._wanted.items()
            if (found := self._find(each) if new is None else self._take(each, new)) is not None
        }
        errors = {parent: self._errors.get(parent, "") for parent in due}
        left = {parent: error for parent, error in errors.items() if due[parent] or error}
        return Settled(outcomes=outcomes, above=left)

    def _give_up(self, path: str) -> None:
        """Take unwanted CPUs out of a partition, or all CPUs out of an invalid one."""
        found, wanted = self._found[path], self._wanted[path]
        kept = EMPTY
        if wanted is not None and found.held is not None:
            kept = found.exclusive & wanted.cpus
        if not kept and found.kind != _MEMBER:
            self._write(path, PARTITION, _MEMBER)
        if kept != found.exclusive:
            self._write(path, EXCLUSIVE, str(kept))

    def _due_above(self, above: Collection[str]) -> dict[str, CPUSet]:
        """Return the CPUs that *above*, and parents of partitions, keep for partitions below."""
        parents = [*(p for each in self._wanted for p in ancestors(each)), *above]
        below: dict[str, list[CPUSet]] = {each: [] for each in parents}
        cpus = {each: new.cpus for each, new in self._wanted.items() if new is not None}
        for each, own in {**self._kept, **cpus}.items():
            for parent in ancestors(each):
                if parent in below:
                    below[parent].append(own)
        return {parent: CPUSet.union(each) for parent, each in below.items()}

    def _keep(self, parent: str, now: CPUSet, due: CPUSet) -> None:
        """Have a cgroup keep the CPUs *due* for those below it, which keeps others *now*."""
        if now != due:
            self._write(parent, EXCLUSIVE, str(due))

    def _take(self, path: str, wanted: Partition) -> _Found | None:
        """Make a cgroup the wanted partition; return the result, None if the cgroup is gone."""
        found = self._find(path)
        if found is None or found.held == wanted:
            return found
        if not self._tree.read(path, _CPUS):
            self._errors[path] = "its cpuset is not set"
            return found
        written = found.exclusive == wanted.cpus or self._write(path, EXCLUSIVE, str(wanted.cpus))
        if written and (found.held is None or found.kind != wanted.kind):
            self._write(path, PARTITION, wanted.kind)
        found = self._find(path)
        if found is not None and found.held is None:
            if found.invalid:
                self._errors[path] = found.invalid
            self._write(path, PARTITION, _MEMBER)
            self._write(path, EXCLUSIVE, "")
        return found

    def _error(self, path: str) -> str:
        """Return what kept a cgroup from its partition."""
        errors = (self._errors.get(each) for each in (*ancestors(path), path))
        return next(filter(None, errors), "")

    def _find(self, path: str) -> _Found | None:
        exclusive, text = (self._tree.read(path, each) for each in (EXCLUSIVE, PARTITION))
        if exclusive is None or text is None:
            return None
        kind, _, invalid = text.partition(" ")
        reason = invalid.removeprefix("invalid").strip(" ()") or "invalid"
        return _Found(exclusive=parse_cpus(exclusive), kind=kind, invalid=reason if invalid else "")

    def _write(self, path: str, name: str, text: str) -> bool:
        try:
            self._tree.write(path, name, text)
        except OSError as error:
            self._errors.setdefault(path, f"{name}: {os.strerror(error.errno or errno.EIO)}")
            return False
        return True
