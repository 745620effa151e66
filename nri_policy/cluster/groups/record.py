"""The records of one placement group and one pod; the engine has the places in use.

`table` alone replaces the records of groups, `members` those of pods.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from math import inf
from types import MappingProxyType

from msgspec import Struct
from msgspec.structs import replace

from nri_policy.cluster.engine.occupants import Occupants
from nri_policy.cluster.groups.assembly import Member
from nri_policy.cluster.groups.writes import (
    CreateGroup,
    GroupWrite,
    OpenGate,
    PodWrite,
    WriteStatus,
)
from nri_policy.cluster.objects.pod import Pod
from nri_policy.cluster.requests.group import GroupStatus, PlacementGroup
from nri_policy.foundation.backoff import backoff

INTERNAL_ERROR = "InternalError"  # the condition of a group that could not be handled
_pause = partial(backoff, least=0.5, most=30.0, chance=lambda: 1.0)  # seconds


class SeenGroup(Struct, frozen=True):
    """A PlacementGroup as it was seen."""

    group: PlacementGroup
    revision: str
    owners: frozenset[str]  # uids

    def write(self, status: GroupStatus, *, promised: bool = False) -> WriteStatus:
        """Return the write of another status; see `WriteStatus`."""
        return WriteStatus(replace(self.group, status=status), self.revision, promised)

    @property
    def has_failed(self) -> bool:
        """Whether its status tells of an internal error."""
        return any(each.type == INTERNAL_ERROR for each in self.group.status.conditions)

    def lacks_other_pods(self, group: PlacementGroup) -> bool:
        """Whether *group*, as it is now, asks for other pods: a refusal of those tells nothing."""
        before, after = self.group.status.unhealthy_nodes, group.status.unhealthy_nodes
        return self.group.pod_sets != group.pod_sets or bool(before and not after)

    def makes_way(self, group: PlacementGroup) -> bool:
        """Whether others may fit now: *group* left room, or its JobSet another domain to share."""
        before, after = self.group.status, group.status
        moved = bool(group.job_set) and before.assignments != after.assignments
        return moved or before.given_back < after.given_back


class BackOff(Struct, frozen=True):
    """Failures in a row, a longer pause after each; no other object waits for it."""

    failures: int = 0
    until: float = -inf
    text: str = ""  # the latest reason

    def after_failure(self, now: float, text: str = "", wait: float = 0.0) -> BackOff:
        """Return this after one more failure, with a pause of *wait* seconds at least."""
        failures = self.failures + 1
        return BackOff(failures, now + max(_pause(failures), wait), text or self.text)


NO_FAILURE = BackOff()
NONE: Mapping[str, int] = MappingProxyType({})
Rank = tuple[int, bool, str, float]  # lower goes first


def rank_of(priority: int, since: float, created: str = "", *, runs: bool = False) -> Rank:
    """Return the rank of a group that waits *since* then.

    Of equal priority those that have places and lack some (*runs*) go first, then the one that was
    *created* first.
    """
    return -priority, not runs, created, since


class QueuePlace(Struct, frozen=True):
    """A group's place in the queue."""

    rank: Rank
    topology: str = ""
    holds: bool = False  # whatever it has waited
    ended: int = 0  # holds that found it no place
    paused_until: float = -inf  # it holds no hosts before
    tried: int = -1  # change number at the last attempt
    refused: bool = False
    hopeless: bool = False
    barred: bool = False  # no hosts could hold this group
    final: bool = False  # free room does not help

    @property
    def since(self) -> float:
        """From when on the group waits."""
        return self.rank[3]

    @property
    def runs(self) -> bool:
        """Whether the group has places, and lacks some."""
        return not self.rank[1]

    @property
    def was_tried(self) -> bool:
        """Whether the group was tried as it is now."""
        return self.tried >= 0


class Reservation(Struct, frozen=True):
    """Hosts that are set aside for a group."""

    hosts: tuple[str, ...]
    since: float
    progress: float  # last time that a pod there ended, or more of its pods fitted
    fitting: int = 0  # most of its pods that fitted until now
    occupants: Occupants | None = None  # None until the first check


class Group(Struct, frozen=True, kw_only=True):
    """The record of one group; the default is an unknown group."""

    revision: str = ""  # the latest from the watch, even if the object is malformed
    seen: SeenGroup | None = None  # the latest well-formed object
    write: GroupWrite | None = None  # sent, until the watch shows its outcome
    unanswered: bool = False  # no answer arrived: the write is sent again
    back_off: BackOff = NO_FAILURE  # of its writes
    error: BackOff = NO_FAILURE  # internal errors while it was handled
    look_at: float = inf  # when to reconcile it again without an event
    problem: str = ""  # what it lacks, as the last Event says
    place: QueuePlace | None = None  # None: it is not in the queue
    reservation: Reservation | None = None
    more: Mapping[str, int] = NONE  # pods that it lacks beside its places, by pod set
    counts_others: bool = False  # a rule about places of other groups refused it

    def pauses(self, now: float) -> bool:
        """Whether no write is to be sent yet, because the latest ones failed."""
        return self.back_off.until > now

    def with_look(self, at: float) -> Group:
        """Return this, looked at then at the latest, without news."""
        return replace(self, look_at=at) if at < self.look_at else self

    def is_busy(self, now: float) -> bool:
        """Whether a write is pending, or paused after a failure."""
        return self.write is not None or self.pauses(now)

    def check(self) -> None:
        """Assert what must hold of any record."""
        assert self.write is not None or not self.unanswered, "only a pending write is repeated"
        assert self.write is None or isinstance(self.write, CreateGroup) == (self.seen is None), (
            "an object is created while there is none, and changed while there is one"
        )
        assert self.place is None or not self.place.final or self.place.hopeless, (
            "only a group that fits nowhere is refused for good"
        )


class PodState(Struct, frozen=True, gc=False, kw_only=True):
    """Pending changes of a pod, and its problems; most pods share the default."""

    write: PodWrite | None = None  # sent, until the watch shows another revision
    unanswered: bool = False  # no answer arrived: the write is sent again
    back_off: BackOff = NO_FAILURE  # of its writes
    ended: str = ""  # reason of its removal in the last Event
    problem: str = ""  # what is wrong with it, as the last Event says
    unbound: tuple[float, str] | None = (
        None  # since when kube-scheduler finds no node, and its message
    )
    elsewhere: bool = False  # it is bound outside the places of its group

    def may_change(self, now: float) -> bool:
        """Whether a write may be sent: none is pending, and none has just failed."""
        return self.write is None and self.back_off.until <= now


IDLE = PodState()


class PodRecord(Struct, frozen=True, gc=False):
    """The record of one pod, in a group or not."""

    pod: Pod
    member: Member | None  # of its group, if it has one
    state: PodState = IDLE

    def check(self) -> None:
        """Assert what must hold of any record."""
        state = self.state
        assert isinstance(state.write, OpenGate) or not state.unanswered, "only gates are repeated"
        assert self.member is not None or not state.elsewhere, "a pod of no group has no place"
        assert state.unbound is None or not self.pod.node, "a bound pod is bound"
