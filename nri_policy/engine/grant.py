"""Grant, Change and Decision: what the engine gives out.

Values only; frozen, so that a decision can be kept, sent and compared.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field
from msgspec.structs import replace

from nri_policy.classes import Classes, join_changes
from nri_policy.engine.explanation import Explanation
from nri_policy.foundation.cpuset import EMPTY, CPUSet
from nri_policy.foundation.refusal import Refused
from nri_policy.workload.request import Request, Sort


class Grant(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one container, a room, or a part of a claim, holds."""

    pool: int  # id in the tree
    sort: Sort
    exclusive: CPUSet
    isolated: bool  # whether the exclusive CPUs are kernel-isolated ones
    shared: int  # milli-CPU
    shares: bool  # whether it uses its pool's free CPUs
    # shares without a request, and may be moved to make room; stored by its first name
    preemptible: bool = field(name="guest")
    mems: CPUSet  # node ids
    home: int | None = None  # the pool that it was moved up from first, where it goes back to
    returned: bool = False  # it has been back, and stays wherever it is moved now
    tenant: bool = False  # its CPUs are its pod's room's, which are booked for the room (§3.3)
    rest: CPUSet = EMPTY  # what a tenant shares with others of its room
    claimed: CPUSet = EMPTY  # CPUs of the claims that it uses, which hold them (dra.md §2.3)
    # of a room: slices that containers had when they ended, by name; they come back to them
    ended: Mapping[str, CPUSet] = {}
    preserved: CPUSet = EMPTY  # CPUs that one with cpu.preserve came with; empty: no cpuset
    ending: bool = False  # of a claim: it is held until the last container that uses it ends

    @property
    def own(self) -> CPUSet:
        """The CPUs that nobody else uses but those who hold them with it: its own and claimed."""
        return self.exclusive | self.claimed


class Moved(Struct, frozen=True, kw_only=True):
    """A container that others share CPUs with, booked on another pool for somebody else."""

    container_id: str
    before: int  # pool id
    after: int


class Held(Struct, frozen=True, kw_only=True):
    """What a container held until now, taken back already."""

    grant: Grant
    booked: int = -1  # bytes of memory that stay its own on the grant's nodes; -1: not even none
    stays: bool = False  # in this pool, or it is refused

    def covers(self, request: Request) -> bool:
        """Whether *request* asks for no more of anything."""
        grant = self.grant
        return (
            request.sort is grant.sort is Sort.NORMAL
            and request.exclusive <= len(grant.exclusive)
            and request.shared <= grant.shared
            and request.shares <= grant.shares
            and request.memory <= self.booked
        )


# the cause of a Placement that is no other than the one before
AGAIN = "the runtime was told again: it had not set it"


class Placement(Struct, frozen=True, omit_defaults=True):
    """What the runtime is told of a container; None and an empty set mean: leave alone.

    One decision may change hundreds of containers that share CPUs: they have one of these together.
    """

    cpus: CPUSet
    mems: CPUSet
    shares: int | None  # cgroup cpu.shares; only for the container asked about
    cause: str  # why, for people
    quota: int | None = None  # µs a period, NO_QUOTA for none; None: leave alone
    # what to write to files of its cgroup about I/O; empty: leave alone
    limits: Mapping[str, str] = {}

    def after(self, before: Placement) -> Placement:
        """Return what to tell a container that has not heard of *before* either."""
        if before.shares is None and before.quota is None and not before.limits:
            return self
        return replace(
            self,
            shares=before.shares if self.shares is None else self.shares,
            quota=before.quota if self.quota is None else self.quota,
            limits=join_changes(before.limits, self.limits) if before.limits else self.limits,
        )


Changes = Mapping[str, Placement]  # by container id


def join(first: Changes, then: Changes) -> dict[str, Placement]:
    """Return what to tell containers for two sets of changes, one after the other."""
    both = first.keys() & then.keys()
    return {**first, **then, **{each: then[each].after(first[each]) for each in both}}


class Decision(Struct, frozen=True, kw_only=True):
    """The outcome of one event."""

    container_id: str | None = None  # the container asked about
    grant: Grant | None = None
    placement: Placement | None = None
    classes: Classes | None = None  # of the container asked about, if it is in any
    # to other containers: pool by pool, each in order of placement, then to those that have moved
    changes: Changes = {}
    moved: tuple[Moved, ...] = ()  # others, to another pool
    explanation: Explanation | None = None
    released: tuple[str, ...] = ()  # namespace/pod/name of those that gave back what they held
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()  # on what it was asked for, and did


Outcome = Decision | Refused  # of an event
