"""The ledger: of each container the cpuset that its cgroup has, and the one the runtime knows.

They differ where the daemon has written the cgroup itself (nri.md §3.7a). Such a container is
*untold*: nothing is wrong with it until the runtime writes what it knows, as it does at a resize
while the daemon is away. What was written is *fleeting* until it is known that systemd does not
undo it. Knows no files, no clock and no pace: `writing`, `enforcement`, `lasting` and
`update_queue` enter what they did.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Mapping

from msgspec import Struct

from nri_policy.engine.grant import Changes, Placement
from nri_policy.engine.listing import parse_cpus
from nri_policy.foundation.cpuset import EMPTY, CPUSet
from nri_policy.workload.pod import Resources


class Cpuset(Struct, frozen=True, kw_only=True):
    """CPUs and memory nodes; an empty set where nothing is known or set."""

    cpus: CPUSet = EMPTY
    mems: CPUSet = EMPTY

    def overlaid(self, placement: Placement) -> Cpuset:
        """Return this with what *placement* sets."""
        return Cpuset(cpus=placement.cpus or self.cpus, mems=placement.mems or self.mems)

    def has(self, placement: Placement) -> bool:
        """Return whether this is what *placement* sets."""
        return self.overlaid(placement) == self


def cpuset_of(resources: Resources) -> Cpuset:
    """Return the cpuset of what a runtime lists, or a cgroup has."""
    return Cpuset(cpus=parse_cpus(resources.cpus), mems=parse_cpus(resources.mems))


class Ledger:
    """The cpusets of the containers of one runtime, by container id."""

    def __init__(self) -> None:
        self._in_force: dict[str, Cpuset] = {}
        self._visible: set[str] = set()  # containers whose cgroup was seen; others: as created
        self._known: dict[str, Cpuset] = {}  # to the runtime; absent: nobody can say
        self._untold: dict[str, float] = {}  # since when; oldest first
        self._fleeting: dict[str, None] = {}  # written, and perhaps undone by systemd
        self.fresh = asyncio.Event()  # set whenever something was written
        self.some_untold = asyncio.Event()  # set while there are any

    @property
    def untold(self) -> Mapping[str, float]:
        """Since when containers are right that the runtime believes elsewhere; oldest first."""
        return self._untold

    @property
    def fleeting(self) -> Collection[str]:
        """The containers whose cpuset was written, and is not known to last; oldest first."""
        return self._fleeting.keys()

    def by_urgency(self) -> Iterator[str]:
        """Yield the untold: first those whose cpuset may not last, each part oldest first."""
        yield from (each for each in self._fleeting if each in self._untold)
        yield from (each for each in self._untold if each not in self._fleeting)

    def in_force(self, container_id: str) -> Cpuset | None:
        """Return what a container's cgroup has, or will be made with; None if nobody can say."""
        return self._in_force.get(container_id)

    def is_visible(self, container_id: str) -> bool:
        """Whether a container's cgroup was seen, and so can be written."""
        return container_id in self._visible

    def known(self, container_id: str) -> Cpuset | None:
        """Return what the runtime knows of a container, None if nobody can say."""
        return self._known.get(container_id)

    def created(self, container_id: str, placement: Placement) -> None:
        """Enter what a container is created with."""
        cpuset = Cpuset(cpus=placement.cpus, mems=placement.mems)
        self._known[container_id] = self._in_force[container_id] = cpuset

    def told(self, container_id: str, placement: Placement) -> None:
        """Enter what was sent to the runtime."""
        self._known[container_id] = self._known.get(container_id, Cpuset()).overlaid(placement)
        self._fleeting.pop(container_id, None)  # the runtime has systemd set it
        self._note_told(container_id)

    def seen(self, container_id: str, cpuset: Cpuset | None) -> None:
        """Enter what a cgroup was found to have, None if it cannot be seen."""
        if cpuset is None:
            self._in_force.pop(container_id, None)
            self._visible.discard(container_id)
        else:
            self._in_force[container_id] = cpuset
            self._visible.add(container_id)

    def written(self, container_id: str, placement: Placement, cpus: CPUSet, now: float) -> None:
        """Enter which CPUs were written for a *placement*, *now* in seconds."""
        before = self._in_force.get(container_id, Cpuset())
        self._in_force[container_id] = Cpuset(cpus=cpus, mems=before.mems)
        known = self._known.get(container_id)
        self._fleeting.setdefault(container_id)
        self.fresh.set()
        if known is not None and known == known.overlaid(placement) and known.cpus == cpus:
            self._note_told(container_id)
        else:
            self.owe(container_id, now)

    def lasts(self, container_id: str) -> None:
        """Enter that nobody undoes what was written."""
        self._fleeting.pop(container_id, None)

    def unsure(self, container_id: str) -> None:
        """Enter that nobody can say what the runtime knows of a container."""
        self._known.pop(container_id, None)

    def forget(self, container_id: str) -> None:
        """Forget a container that is gone."""
        self.seen(container_id, None)
        self._known.pop(container_id, None)
        self._fleeting.pop(container_id, None)
        self._note_told(container_id)

    def restart(self, listed: Mapping[str, Cpuset], found: Mapping[str, Cpuset]) -> None:
        """Take what the runtime has *listed* for what it knows, what was *found* for in force."""
        self._known = {**listed}
        self._in_force, self._visible = {**found}, {*found}
        self._untold.clear()
        self.some_untold.clear()
        self._fleeting = {each: None for each in self._fleeting if each in found}

    def compare(self, due: Changes, now: float) -> None:
        """Enter as untold those that are where they are to be, and listed elsewhere.

        An earlier daemon wrote them, and may have ended before systemd had heard of it.
        """
        for each, placement in due.items():
            in_force, known = self._in_force.get(each), self._known.get(each)
            if in_force is None or not in_force.has(placement):
                continue
            if known is None or not known.has(placement):
                self.owe(each, now)
                self._fleeting.setdefault(each)
                self.fresh.set()

    def owe(self, container_id: str, now: float) -> None:
        """Enter that a container is where it is to be, and the runtime has something to hear."""
        self._untold.setdefault(container_id, now)
        self.some_untold.set()

    def _note_told(self, container_id: str) -> None:
        self._untold.pop(container_id, None)
        if not self._untold:
            self.some_untold.clear()
