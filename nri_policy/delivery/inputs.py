"""Inputs: all that the machine takes in, what it is asked, and what it says.

Values only. Numbers of seconds are of a monotonic clock that whoever makes an input reads. A
*change* has no more than is to be changed; what the engine wants in all is `Desired.placement`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from enum import Enum
from typing import Protocol

from msgspec import Struct

from nri_policy.delivery.record import Cpuset, Phase, cpuset_of
from nri_policy.engine.grant import Changes, Placement
from nri_policy.foundation.cpuset import EMPTY, CPUSet
from nri_policy.workload.pod import Resources

# ---- what the machine knows of the decisions


class Desired(Protocol):
    """What the engine decided last: the machine only reads it."""

    def placement(self, container_id: str) -> Placement | None:
        """Return what a container is to have in all; None if it holds no grant."""
        ...

    def unmanaged(self, container_id: str) -> Placement:
        """Return what one that holds a grant would have if there were no policy."""
        ...

    def own(self, container_id: str) -> CPUSet:
        """Return the CPUs that only this one that holds a grant may use, those it keeps too."""
        ...

    @property
    def taken(self) -> CPUSet:
        """All CPUs that are any container's own."""
        ...

    def __iter__(self) -> Iterator[str]:
        """Yield the ids of all that hold a grant."""
        ...


# ---- inputs


class Decided(Struct, frozen=True, kw_only=True):
    """The engine has changed what containers are to have; each change replaces the one before."""

    changes: Changes
    now: float
    hurry: bool = False  # no answer is waited for as long as usual


class RequestBegan(Struct, frozen=True, kw_only=True):
    """A request of the runtime has come: it has handled all answers before it."""

    now: float


class Superseded(Struct, frozen=True):
    """The answer to come is about this container: it replaces what was pending for it."""

    container_id: str


class Answered(Struct, frozen=True, kw_only=True):
    """An answer was given that the runtime still waits for."""

    now: float
    about: str = ""  # the container that was asked about, if any
    own: Placement | None = None  # what the answer says of it
    creating: bool = False  # the answer is to its CREATE
    updates: Changes = {}  # of others, as far as they went into the answer of `answer`


class PhaseChanged(Struct, frozen=True, kw_only=True):
    """The runtime has gone on with a container."""

    container_id: str
    phase: Phase
    now: float


class Observed(Struct, frozen=True, kw_only=True):
    """A cgroup was read by the way, with nothing in flight for it; None: it is not visible."""

    container_id: str
    cpuset: Cpuset | None


class BatchBegan(Struct, frozen=True, kw_only=True):
    """CPUs are being written, which may be in force at any moment until `BatchEnded`."""

    giving: Mapping[str, CPUSet]  # what containers may get


class BatchEnded(Struct, frozen=True):
    """What was being written is written."""


class Written(Struct, frozen=True, kw_only=True):
    """A cgroup was written that `shrink` or `grow` named, or was found as it is to be."""

    container_id: str
    placement: Placement  # what was to be written
    cpus: CPUSet | None  # that it has now; None: it is not visible
    error: str = ""  # why it does not have what it was to have
    now: float


class Checked(Struct, frozen=True, kw_only=True):
    """Cgroups were read that `begin_check` named, and written as `leaving` and `gaining` say."""

    checks: Sequence[CpusetCheck]
    now: float


class WritesMissed(Struct, frozen=True):
    """An answer could not wait any longer for those that are to shrink: it carries them."""


class ActionBegan(Struct, frozen=True):
    """What a plan named is being done; what comes up from now on is for the next time."""

    action: Action


class ActionEnded(Struct, frozen=True, kw_only=True):
    """It is over, whatever became of it."""

    action: Action
    now: float
    pause: float = math.inf  # seconds until INFORM or OVERLAPS is due again, if nothing comes up


class Rechecked(Struct, frozen=True, kw_only=True):
    """All that can be written by files is about to be: those that failed or were late too."""

    now: float


class Probed(Struct, frozen=True, kw_only=True):
    """A cgroup was written as it is, to see whether any can be; none if none is visible."""

    proven: bool = False
    error: str = ""  # why it could not
    now: float


class CallSent(Struct, frozen=True, kw_only=True):
    """A call is on its way that informs of what is in force."""

    changes: Changes
    now: float


class CallEnded(Struct, frozen=True, kw_only=True):
    """A call of ours was answered."""

    changes: Changes  # that it carried
    failed: Collection[str] = ()  # ids of those that the runtime could not do
    informing: bool = False  # it was told of by `CallSent`
    now: float


class CallLost(Struct, frozen=True, kw_only=True):
    """Nobody knows whether the runtime has heard a call that informed of these."""

    changes: Changes
    now: float


class Listed(Struct, frozen=True, kw_only=True):
    """The runtime has listed its containers, and their cgroups were read."""

    recorded: Mapping[str, Cpuset]  # what the list says
    observed: Mapping[str, Cpuset]  # of those whose cgroup is visible


class Registered(Struct, frozen=True, kw_only=True):
    """The engine has taken the list in: what the runtime was sent before is over."""

    phases: Mapping[str, Phase]  # of all that are listed or under creation
    changes: Changes  # where those differ from the list that are not where they are to be
    unseen: Changes  # where those are to be of which the list may be wrong
    listed: Changes  # where all that are listed are to be
    now: float


class ScopeSet(Struct, frozen=True, kw_only=True):
    """systemd was asked to keep what a container has; *error* says why it does not."""

    container_id: str
    error: str
    now: float


class ResizeEnded(Struct, frozen=True, kw_only=True):
    """The runtime says that a resize is in force (POST_UPDATE)."""

    container_id: str
    now: float


class ResizeTakenBack(Struct, frozen=True, kw_only=True):
    """A resize has not ended in the time that it may take: the runtime has refused it."""

    container_id: str
    now: float


class ResizeDoubted(Struct, frozen=True, kw_only=True):
    """A resize may come into force late; one that was *refused* as it seems asked for that."""

    container_id: str
    refused: Resources | None
    now: float


class ResizeSettled(Struct, frozen=True, kw_only=True):
    """Nothing is left to be seen of what a container asked for."""

    container_id: str


class OverlapsSeen(Struct, frozen=True, kw_only=True):
    """All cpusets were read: these containers have CPUs of another's own."""

    container_ids: Collection[str]


class CpusetsTouched(Struct, frozen=True, kw_only=True):
    """A cpuset may be another than before, or one is to be: all are looked at soon."""

    now: float


class PodsChanged(Struct, frozen=True, kw_only=True):
    """Containers of pods have changed, or the kubelet may write the quotas of these pods."""

    pod_ids: Collection[str]
    now: float


class PodGone(Struct, frozen=True):
    """A pod is gone."""

    pod_id: str


class QuotaWritten(Struct, frozen=True, kw_only=True):
    """The quota of a pod was written, or found as it is to be."""

    pod_id: str
    quota: int  # µs a period, NO_QUOTA for none
    before: int  # what was found


class Gone(Struct, frozen=True, kw_only=True):
    """A container is gone, or was refused."""

    container_id: str
    now: float


class Leaving(Struct, frozen=True, kw_only=True):
    """The policy leaves: all containers are to run wherever they like, from now on."""

    now: float


class Elapsed(Struct, frozen=True, kw_only=True):
    """Time has passed."""

    now: float


Input = (
    Decided
    | RequestBegan
    | Superseded
    | Answered
    | PhaseChanged
    | Observed
    | BatchBegan
    | BatchEnded
    | Written
    | Checked
    | WritesMissed
    | ActionBegan
    | ActionEnded
    | Rechecked
    | Probed
    | CallSent
    | CallEnded
    | CallLost
    | Listed
    | Registered
    | ScopeSet
    | ResizeEnded
    | ResizeTakenBack
    | ResizeDoubted
    | ResizeSettled
    | OverlapsSeen
    | CpusetsTouched
    | PodsChanged
    | PodGone
    | QuotaWritten
    | Gone
    | Leaving
    | Elapsed
)


# ---- what comes of them


class Action(Enum):
    """What there is to do beside requests."""

    WRITE = "write"  # `shrink`, then `grow`
    READ = "read"  # `begin_check`, then `leaving` and `gaining`
    SEND = "send"  # `waiting`: a call, or a new registration
    PERSIST = "persist"  # `volatile`: have systemd keep them
    INFORM = "inform"  # `inform`: a call, for one at a time, on a quiet node
    RESIZES = "resizes"  # `resizes`: see whether they have come into force
    QUOTAS = "quotas"  # `doubtful_pods`, or all pods with exclusive CPUs: write their quotas
    OVERLAPS = "overlaps"  # look at all cpusets for CPUs that are another's own


class Plan(Struct, frozen=True, kw_only=True):
    """When each action is due, in seconds of the clock; those that are not in it are not due."""

    due: Mapping[Action, float]


class Event(Enum):
    """What people are to know of an input; its value is the log's event."""

    ENFORCED = "enforced"
    NOT_WRITABLE = "not-writable"
    SENT_AGAIN = "sending-again"
    NOT_IN_FORCE = "not-in-force"
    REFUSED = "update-refused"
    OVERLAP = "overlap"


class Report(Struct, frozen=True, kw_only=True):
    """Something that people are to know of one container."""

    event: Event
    container_id: str
    cpus: CPUSet = EMPTY
    mems: CPUSet = EMPTY
    error: str = ""


class CpusetCheck(Struct, kw_only=True):
    """A container whose cgroup is read: what is decided, then what was found and done."""

    container_id: str
    placement: Placement
    own: CPUSet  # CPUs that nobody else may use
    lost: bool
    settled: bool  # nothing about it is under way
    found: Resources | None = None
    cpus: CPUSet = EMPTY  # of the cgroup, at the end
    overlap: CPUSet = EMPTY  # those that were found in it, and are another's own
    written: bool = False
    error: str = ""

    def see(self, found: Resources | None) -> None:
        """Take in what the cgroup has; None if it is not visible."""
        self.found = found
        self.cpus = EMPTY if found is None else cpuset_of(found).cpus
