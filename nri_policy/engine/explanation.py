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
    """The kind of a decision."""

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
    request: Request | None  # None if its annotations are malformed
    room: Request | None = None  # of a tenant: the request of its pod's room
    tree: PoolTree
    pool: int | None  # id of the pool chosen
    scores: bytes | None  # the table of criteria, packed; None if pools were not compared
    # the affinities that matched, as found or as stored; None without affinities
    pulls: Pulls | tuple[Pull, ...] | None = None
    notes: tuple[str, ...] = ()

    @property
    def table(self) -> Table | None:
        """The criteria of all pools, unpacked at each call; None if pools were not compared."""
        return None if self.scores is None else Table.unpack(self.scores, len(self.tree.pools))

    @property
    def compared(self) -> Request | None:
        """The request for which pools were compared: a tenant is in the pool of its room."""
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
        """Return a text if its affinities matched nothing; else ""."""
        if self.request is None or self.pulls is None:
            return ""
        found = self.pulls.terms if isinstance(self.pulls, Pulls) else self.pulls
        return "" if found else describe_unmatched(self.request.steering.affinities)
