"""Inputs and outputs of the delivery state.

Values only. A *change* contains only differences; `Desired.placement` is the engine's full
decision.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from enum import Enum, StrEnum

from msgspec import Struct

from nri_policy.delivery.cpuset_checks import CpusetCheck
from nri_policy.delivery.partition_files import PartitionOutcome
from nri_policy.delivery.record import Cpuset, Phase
from nri_policy.engine.grant import Changes, Placement
from nri_policy.engine.state.partition_rules import Partition
from nri_policy.foundation.cpuset import EMPTY, CPUSet
from nri_policy.workload.pod import Resources

# ---- inputs


class Input(Struct, frozen=True):
    """Something that has happened."""


class Decided(Input, frozen=True, kw_only=True):
    """The engine has changed what containers are to have; each change replaces the one before."""

    changes: Changes
    hurry: bool = False  # send it after `PATIENCE` even where that needs a registration


class RequestBegan(Input, frozen=True):
    """The runtime sent a request, so all earlier answers are handled."""


class Superseded(Input, frozen=True):
    """An answer about this container follows, and replaces its pending change."""

    container_id: str


class Answered(Input, frozen=True, kw_only=True):
    """An answer was given that the runtime still waits for."""

    about: str = ""  # the container that was asked about, if any
    own: Placement | None = None  # what the answer says of it
    creating: bool = False  # the answer is to its CREATE
    updates: Changes = {}  # of other containers, from `answer`, limited by the size of a message


class PhaseChanged(Input, frozen=True, kw_only=True):
    """A container is in another phase."""

    container_id: str
    phase: Phase


class StartAnswered(Input, frozen=True):
    """The answer to START of this container is on its way."""

    container_id: str


class Observed(Input, frozen=True, kw_only=True):
    """A cgroup was read outside of a check; the cpuset is None if it is not visible."""

    container_id: str
    cpuset: Cpuset | None


class Written(Input, frozen=True, kw_only=True):
    """A cgroup from `shrink` or `grow` was written, or already had the right value."""

    container_id: str
    placement: Placement  # the intended one
    cpus: CPUSet | None  # the cgroup's CPUs after the write; None: not visible
    error: str = ""  # why the cpuset could not be set


class Checked(Input, frozen=True):
    """The cgroups of `begin_check` were read, and written as far as that could not wait."""

    checks: Sequence[CpusetCheck]


class WritesMissed(Input, frozen=True):
    """The batch was too slow for an answer, which carries the remaining shrinks instead."""


class ActionBegan(Input, frozen=True):
    """A planned action has begun; later inputs count for its next run."""

    action: Action


class ActionEnded(Input, frozen=True, kw_only=True):
    """A planned action has ended, with or without success."""

    action: Action
    pause: float = math.inf  # seconds until INFORM or OVERLAPS is due again


class Rechecked(Input, frozen=True):
    """A write of all pending files begins; failed and late ones are tried again."""


class Probed(Input, frozen=True, kw_only=True):
    """Writing was tried on one cgroup, with its own value; not proven if none is visible."""

    proven: bool = False
    error: str = ""  # why it could not


class CallSent(Input, frozen=True):
    """A call that informs the runtime was begun."""

    changes: Changes


class CallEnded(Input, frozen=True, kw_only=True):
    """The runtime has answered a call."""

    changes: Changes  # that it carried
    failed: Collection[str] = ()  # ids of the containers whose update failed
    informing: bool = False  # it began with `CallSent`


class CallLost(Input, frozen=True):
    """A call that informs failed; the runtime may have handled it."""

    changes: Changes


class Listed(Input, frozen=True, kw_only=True):
    """The runtime has listed its containers, and their cgroups were read."""

    recorded: Mapping[str, Cpuset]  # the cpusets in the list
    observed: Mapping[str, Cpuset]  # the cpusets of visible cgroups
    blind: bool = False  # some run, and no cgroup was visible


class Registered(Input, frozen=True, kw_only=True):
    """The engine has handled the list; earlier changes are no longer in flight."""

    phases: Mapping[str, Phase]  # of listed containers, and containers under creation
    changes: Changes  # placements that differ from the list
    unseen: Changes  # placements of containers for which the list may be stale
    listed: Changes  # the placements of all listed containers
    new: Collection[str]  # those that this daemon did not know


class ScopeSet(Input, frozen=True, kw_only=True):
    """systemd was asked to keep a cpuset; *error* is its refusal, or empty."""

    container_id: str
    asked: Cpuset | None  # the cgroup's cpuset at that time; None without a cgroup
    error: str


class ResizeConfirmed(Input, frozen=True):
    """The runtime says that a resize is in force (POST_UPDATE)."""

    container_id: str


class ResizeTakenBack(Input, frozen=True, kw_only=True):
    """A resize did not end in time: the runtime has refused it; *mems* of the cgroup were read."""

    container_id: str
    mems: CPUSet | None = None


class ResizeDoubted(Input, frozen=True, kw_only=True):
    """A resize may come into force late; *refused* is what it asked for, if it seems refused."""

    container_id: str
    refused: Resources | None


class ResizeSettled(Input, frozen=True):
    """A late resize of this container can no longer happen."""

    container_id: str


class OverlapsSeen(Input, frozen=True):
    """All cpusets were read, with these containers on exclusive CPUs of others."""

    container_ids: Collection[str]


class CpusetsTouched(Input, frozen=True, kw_only=True):
    """A cpuset was written, or a decision made: all cpusets are checked soon."""

    partitions: bool = False  # a container may have to become a kernel partition


class PodsChanged(Input, frozen=True):
    """The quotas of these pods may have changed, or may change soon."""

    pod_ids: Collection[str]


class PodGone(Input, frozen=True):
    """A pod is gone."""

    pod_id: str


class QuotaWritten(Input, frozen=True, kw_only=True):
    """The quota of a pod was written, or already had the right value."""

    pod_id: str
    quota: int  # µs a period, NO_QUOTA for none
    before: int  # the value before


class PartitionsSettled(Input, frozen=True, kw_only=True):
    """Partitions were written, or already had the values that are due."""

    wanted: Mapping[str, Partition | None]
    outcomes: Mapping[str, PartitionOutcome]  # of those whose cgroups are here


class Gone(Input, frozen=True):
    """A container has ended, or was refused."""

    container_id: str


class Leaving(Input, frozen=True):
    """The daemon leaves: all containers may use all CPUs and nodes from now on."""


class TimePassed(Input, frozen=True):
    """Time has passed."""


# ---- what comes of them


class Action(StrEnum):
    """An action of the executor outside of requests."""

    WRITE = "write"  # `shrink`, then `grow`
    READ = "read"  # `begin_check`, then `cpuset_checks.enforce`
    SEND = "send"  # `waiting`: a call, or a new registration
    PERSIST = "persist"  # `volatile`: have systemd keep them
    INFORM = "inform"  # `inform`: a call, for one at a time, on a quiet node
    RESIZES = "resizes"  # `resizes`: see whether they have come into force
    QUOTAS = (
        "quotas"  # `PodQuotaRecords.doubtful`, or all pods with exclusive CPUs: write their quotas
    )
    PARTITIONS = "partitions"  # make containers partitions, or none, as the kernel has them
    OVERLAPS = "overlaps"  # look at all cpusets for CPUs that are another's own


class Event(Enum):
    """A kind of fact for the log; the value is the log's event."""

    ENFORCED = "enforced"
    NOT_WRITABLE = "not-writable"
    SENT_AGAIN = "sending-again"
    NOT_IN_FORCE = "not-in-force"
    REFUSED = "update-refused"
    OVERLAP = "overlap"
    NO_PARTITION = "no-partition"


class Report(Struct, frozen=True, kw_only=True):
    """A fact about one container, for the log and the metrics."""

    event: Event
    container_id: str
    cpus: CPUSet = EMPTY
    mems: CPUSet = EMPTY
    error: str = ""
