"""Occupancy: the CPUs that containers still occupy; which containers shrink, and which may grow.

S2 of delivery.md §3: CPUs that a container still occupies are not given to another. A part of the
delivery state, and as pure. Queries change nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from nri_policy.delivery.desired import Desired
from nri_policy.delivery.record import Phase
from nri_policy.delivery.record_table import RecordTable
from nri_policy.foundation.cpuset import EMPTY, CPUSet


class Occupancy(RecordTable):
    """The records, with what follows from all of them together about CPUs."""

    def __init__(self, desired: Desired, *, has_files: bool) -> None:
        """*has_files* is whether there are cgroups that can be read and written."""
        super().__init__(has_files=has_files)
        self.desired = desired
        # CPUs that the batch of writes under way may give containers at any moment
        self.giving: Mapping[str, CPUSet] = {}

    def shrink(self) -> Sequence[str]:
        """Return the containers that must shrink, by a file (nri.md §3.7a 2).

        Containers that keep no CPU come last, when others have left their new CPUs. Among these,
        owners come after sharers, which may be on CPUs that become exclusive.
        """
        some: dict[str, None] = {}
        last: dict[str, None] = {}
        for each in self.by_file:
            known = self.records[each]
            pending, has = known.pending, known.observed
            assert pending is not None, "only pending changes are written"
            if has is not None and has.cpus - pending.cpus:
                (some if has.cpus & pending.cpus else last)[each] = None
        given = (each for each in self._overtaken() if each not in last)
        moving = sorted(last, key=lambda each: bool(self.desired.own(each)))
        return [*some, *dict.fromkeys(each for each in given if each not in some), *moving]

    def _overtaken(self) -> Iterator[str]:
        """Yield the containers that lose CPUs again which the running batch may give them.

        The batch may have written them already.
        """
        for each, cpus in self.giving.items():
            pending = self.known(each).pending
            if pending is not None and pending.cpus and cpus - pending.cpus:
                yield each

    def occupants(self, own: CPUSet) -> Collection[str]:
        """Return the containers that still occupy some of these CPUs."""
        return {each for each in self.pending if self.occupies(each, own)}

    def occupies(self, container_id: str, own: CPUSet) -> bool:
        """Whether a container still occupies some of these CPUs, which it is to leave."""
        known = self.known(container_id)
        pending, has = known.pending, known.observed
        if pending is None:
            return False
        if has is not None and (has.cpus - pending.cpus) & own:
            return True
        given = self.giving.get(container_id)
        return bool(given and pending.cpus and (given - pending.cpus) & own)

    def grow(self, container_ids: Iterable[str]) -> Sequence[str]:
        """Return the containers whose new CPUs no other container occupies."""
        blocked = self._occupied()
        return (
            [] if blocked is None else [each for each in container_ids if self._fits(each, blocked)]
        )

    def _fits(self, container_id: str, blocked: CPUSet) -> bool:
        known = self.known(container_id)
        if container_id not in self.by_file or known.pending is None or known.observed is None:
            return False
        return not (known.pending.cpus - known.observed.cpus) & blocked

    def _occupied(self) -> CPUSet | None:
        """Return the CPUs that containers may still occupy; None if that could be any (S2)."""
        leaving = []
        for each in dict.fromkeys([*self.in_flight, *self.waiting, *self.shrink()]):
            known = self.records[each]
            if known.phase in (Phase.CREATING, Phase.CREATED):
                continue  # it runs nowhere yet, however long that lasts, and is looked at then
            due, has = self.desired.placement(each), known.observed
            if has is None and known.in_flight is None:
                has = known.recorded
            if has is None:
                return None
            if due is not None and due.cpus:
                leaving.append(has.cpus - due.cpus)
        return CPUSet.union([*leaving, self.kept])

    def strands(self, cpus: CPUSet) -> bool:
        """Whether a container that is still to leave *cpus* has no others outside of partitions.

        If they became a partition, it would run on all CPUs of the cgroup above.
        """
        if not self.moving:
            return False
        held = (self.records[each].partition.held for each in self.partitions)
        taken = CPUSet.union([cpus, *(each.cpus for each in held if each is not None)])
        leaving = (has.cpus for each in self.moving if (has := self.records[each].observed))
        return any(has & cpus and has <= taken for has in leaving)

    def bars_a_move(self) -> bool:
        """Whether a container is about to get CPUs that partitions still keep, to its harm.

        It is moved by a write, by a message, or by a look that finds that the runtime has lost its
        change. CPUs that it shares with a partition are not its own: with no others it would run on
        all CPUs of the cgroup above. By a file it gets more CPUs only once no partition keeps them;
        by a message or a look at once, and the kernel calls a sibling's partition invalid.
        """
        if not self.partitions or not (self.pending or self.in_flight):
            return False
        kept = {each: cpus for each, cpus in self._kept_by_partitions().items() if cpus}
        every = CPUSet.union(kept.values())
        for each in (*self.pending, *self.in_flight) if kept else ():
            new, has = self.desired.placement(each), self.records[each].observed
            if new is None or has is None or not new.cpus & every:
                continue
            if not has.cpus & (new.cpus - every):
                return True
            gained = EMPTY if each in self.by_file else new.cpus - has.cpus
            if any(gained & kept[one] for one in kept if self.desired.are_siblings(one, each)):
                return True
        return False

    @property
    def kept(self) -> CPUSet:
        """The CPUs that partitions still keep although no decision gives them these CPUs."""
        return CPUSet.union(self._kept_by_partitions().values())

    def kept_by_partitions(self, own: CPUSet) -> Collection[str]:
        """Return the containers that lost some of these CPUs, which the kernel still keeps."""
        return [each for each, cpus in self._kept_by_partitions().items() if cpus & own]

    def _kept_by_partitions(self) -> dict[str, CPUSet]:
        """Return these CPUs by container."""
        kept = {}
        for each in self.partitions:
            held, due = self.records[each].partition.held, self.desired.placement(each)
            if held is not None and due is not None:
                kept[each] = held.cpus - due.cpus
        return kept
