"""The record of one container: what is known about the way of a decision to its cgroup.

The words are those of spec delivery.md §1. `delivery_state` replaces records, and no other module
keeps state of a delivery.
"""

from __future__ import annotations

import math
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from nri_policy.engine.grant import Placement
from nri_policy.engine.state.partition_rules import Partition
from nri_policy.foundation.cpuset import EMPTY, CPUSet
from nri_policy.workload.pod import Resources, parse_cpus


class Phase(StrEnum):
    """What the runtime is doing with a container (nri.md §3.6)."""

    CREATING = "creating"  # from the answer of its CREATE to START
    CREATED = "created"  # listed before its START
    STARTING = "starting"  # to POST_START, or until a look after START finds its cgroup
    RUNNING = "running"  # from then or POST_UPDATE to UPDATE or STOP
    UPDATING = "updating"  # from the answer of its UPDATE to POST_UPDATE


# In these phases a cgroup changes only by a write: the runtime has read the spec.
SETTLED = (Phase.STARTING, Phase.RUNNING)
# In these there is a cgroup to look at, whenever one looks.
LIVING = (Phase.STARTING, Phase.RUNNING, Phase.UPDATING)


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


class InFlight(Struct, frozen=True, kw_only=True):
    """The latest change of a container that was sent and not seen in force."""

    since: float  # seconds of a monotonic clock
    request: int  # the number of the runtime's latest request when it was sent
    lost: bool  # the runtime may never write it to the cgroup (nri.md §3.6)
    # The daemon wrote the same cpuset to the cgroup. So a look that finds it does not show that the
    # runtime has handled the answer, which would undo the next write (nri.md §3.7a 10).
    written: bool = False


class PartitionState(Struct, frozen=True, kw_only=True):
    """The kernel partition of a container: what there is, and the tries to make another."""

    due: Partition | None = None  # the one decided when this was last looked at
    held: Partition | None = None  # the valid one that its cgroup is
    error: str = ""  # why `held` differs from `due`, as the kernel reports
    tries: int = 0  # that failed in a row
    retry_at: float = -math.inf  # not before then


NO_PARTITION = PartitionState()


class Delivery(Struct, frozen=True, kw_only=True):
    """The record of one container; the default is an unknown container that runs."""

    # The decided change that is neither in force nor in flight. It has only the settings to change;
    # `Desired.placement` has all.
    pending: Placement | None = None
    # The cpuset of the cgroup, or, while it is not `visible`, of its creation; None: unknown.
    observed: Cpuset | None = None
    visible: bool = False  # the cgroup was read or written
    recorded: Cpuset | None = None  # what the runtime's specification has; None: unknown
    unrecorded: float | None = None  # since when it is in force, but not recorded
    in_flight: InFlight | None = None
    phase: Phase = Phase.RUNNING
    # when its START was answered; None once an event shows that the runtime has started it
    started_at: float | None = None
    persistent: bool = True  # systemd keeps what was written, or does not manage this cgroup
    failed_at: float | None = None  # when its cgroup could not be written
    late: bool = False  # its file was not written in time: a message carries the pending change
    attempts: int = 0  # calls about it that failed in a row
    resent: int = 0  # repeated sends since the change was last in force
    refused: Placement | None = None  # the change that failed in all attempts
    carrier: str = ""  # the container under creation whose answer carried its change
    overlap: CPUSet = EMPTY  # another's own CPUs that it cannot be made to leave, as reported
    partition: PartitionState = NO_PARTITION
    refused_resize: Resources | None = None  # the amounts of a resize that seems refused
    resize_until: float | None = None  # until when that may come into force all the same

    @property
    def moves(self) -> bool:
        """Whether the pending change leaves none of the CPUs that the cgroup has."""
        if self.pending is None or self.observed is None:
            return False
        return bool(self.pending.cpus) and not self.observed.cpus & self.pending.cpus

    def without_pending(self) -> Delivery:
        """Return this without a pending change."""
        if self.pending is None:
            return self
        return replace(self, pending=None, attempts=0, late=False)

    def seen(self, cpuset: Cpuset | None) -> Delivery:
        """Return the record after a read of the cgroup; None: the cgroup is not visible."""
        return replace(self, observed=cpuset, visible=cpuset is not None)

    def informed(self, placement: Placement, *, lost: bool) -> Delivery:
        """Return this after the runtime was sent a *placement*.

        It has systemd set it, too, unless it is busy with the container: then it may be *lost*.
        """
        recorded = (self.recorded or Cpuset()).overlaid(placement)
        persistent = self.persistent or not lost
        return replace(self, recorded=recorded, unrecorded=None, persistent=persistent)

    def check(self) -> None:
        """Assert what must hold of any record."""
        assert not self.visible or self.observed is not None, "a visible cgroup has a cpuset"
        assert self.pending is None or self.refused is None, "a pending change is not given up"
        assert self.pending is not None or not (self.attempts or self.late), "nothing is tried"
