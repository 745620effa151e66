"""Explanation: why a container is where it is.

Recorded with every decision as it stands, without making text; `report.explanation` does that when
asked.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from nri_policy.pools.supply import Table
from nri_policy.pools.tree import PoolTree
from nri_policy.workload.affinity import describe_unmatched
from nri_policy.workload.peers import Pull, Pulls
from nri_policy.workload.request import Request


class DecisionKind(StrEnum):
    """How a decision came about."""

    PLACED = "placed"
    MADE_ROOM = "placed, others made room"
    SPILLED = "placed on the reserved CPUs: no other is left"
    RESERVED = "on the reserved CPUs"
    PRESERVED = "left as it is"
    KEPT = "kept its place"
    TENANT = "in its pod's room"
    CLAIMED = "where its claim is allocated"
    RESIZED = "resized where it was"
    REFUSED = "refused"


class Explanation(Struct, frozen=True, kw_only=True):
    """What a decision was made from."""

    container: str  # namespace/pod/name
    kind: DecisionKind
    request: Request | None  # None where its annotations say nothing that makes sense
    room: Request | None = None  # of a tenant: what its pod's room is for, and was placed for
    tree: PoolTree
    pool: int | None  # id of the pool chosen
    scores: bytes | None  # the table of criteria, packed; None where pools were not compared
    # what drew it where, as it was found or as it was stored; None where it has no affinities
    pulls: Pulls | tuple[Pull, ...] | None = None
    notes: tuple[str, ...] = ()

    @property
    def table(self) -> Table | None:
        """The criteria of all pools, read anew each time; None where pools were not compared."""
        return None if self.scores is None else Table.unpack(self.scores, len(self.tree.pools))

    @property
    def compared(self) -> Request | None:
        """What pools were compared for, where they were: a tenant is where its pod's room is."""
        return self.room or self.request

    @property
    def pool_name(self) -> str | None:
        """The name of the pool chosen."""
        return None if self.pool is None else self.tree.pools[self.pool].name

    def of_tenant(self, why: Explanation, room: Request) -> Explanation:
        """Return this explanation of a tenant with *why* its pod's *room* is where it is."""
        return replace(
            self,
            room=room,
            pool=why.pool,
            scores=why.scores,
            pulls=why.pulls,
            notes=(*dict.fromkeys((*why.notes, *self.notes)),),
        )

    @property
    def unmatched(self) -> str:
        """What to say of affinities that drew it nowhere; empty where there are none of these."""
        if self.request is None or self.pulls is None:
            return ""
        found = self.pulls.terms if isinstance(self.pulls, Pulls) else self.pulls
        return "" if found else describe_unmatched(self.request.steering.affinities)
