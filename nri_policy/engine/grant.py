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
    home: int | None = None  # the pool that it was first moved up from, and returns to
    returned: bool = False  # it has returned once, and stays after the next move
    tenant: bool = False  # the pod's room books the CPUs (§3.3)
    rest: CPUSet = EMPTY  # CPUs of the room that a tenant shares with other tenants
    claimed: CPUSet = EMPTY  # CPUs of the claims that it uses, which hold them (dra.md §2.3)
    # of a room: slices of ended containers, by name; a restarted container gets its slice back
    ended: Mapping[str, CPUSet] = {}
    preserved: CPUSet = EMPTY  # the kubelet's cpuset, with cpu.preserve; empty: none
    ending: bool = False  # of a claim: it ends with the last container that uses it

    @property
    def own(self) -> CPUSet:
        """The CPUs that only this container, or other users of its claims, may use."""
        return self.exclusive | self.claimed


class Moved(Struct, frozen=True, kw_only=True):
    """A container with shared CPUs that was booked on another pool to make room for another."""

    container_id: str
    before: int  # pool id
    after: int


class HeldGrant(Struct, frozen=True, kw_only=True):
    """What a container held until now, taken back already."""

    grant: Grant
    booked: int = -1  # bytes of memory that stay its own on the grant's nodes; -1: not even none
    stays: bool = False  # in this pool, or it is refused

    def covers(self, request: Request) -> bool:
        """Return whether *request* asks for no more of anything."""
        grant = self.grant
        return (
            request.sort is grant.sort is Sort.NORMAL
            and request.exclusive <= len(grant.exclusive)
            and request.shared <= grant.shared
            and request.shares <= grant.shares
            and request.memory <= self.booked
        )


# the cause of a Placement that repeats the one before
AGAIN = "the runtime was told again: it had not set it"


class Placement(Struct, frozen=True, omit_defaults=True):
    """The CPUs, memory and limits to send for a container; None and empty sets mean: unchanged.

    A decision may change hundreds of containers that share CPUs: these have the same object.
    """

    cpus: CPUSet
    mems: CPUSet
    shares: int | None  # cgroup cpu.shares; only for the container asked about
    cause: str  # why, for people
    quota: int | None = None  # µs a period, NO_QUOTA for none; None: leave alone
    # what to write to files of its cgroup about I/O; empty: leave alone
    limits: Mapping[str, str] = {}

    def after(self, before: Placement) -> Placement:
        """Merge this placement into *before*, an earlier one that was not sent."""
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
    """Return the placements that replace two sets of changes in a row."""
    both = first.keys() & then.keys()
    return {**first, **then, **{each: then[each].after(first[each]) for each in both}}


class Decision(Struct, frozen=True, kw_only=True):
    """The outcome of one event."""

    container_id: str | None = None  # the container asked about
    grant: Grant | None = None
    placement: Placement | None = None
    classes: Classes | None = None  # of this container; None: no class
    # updates of other containers: sharers by pool, in order of placement, then moved containers
    changes: Changes = {}
    moved: tuple[Moved, ...] = ()  # others, to another pool
    explanation: Explanation | None = None
    released: tuple[str, ...] = ()  # namespace/pod/name of those that released their grants
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()  # on annotations and their effects


Outcome = Decision | Refused  # of an event
