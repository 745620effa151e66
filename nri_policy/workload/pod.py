"""Pods and containers as the runtime describes them.

Owns the values, and the arithmetic between amounts in Kubernetes and in cgroups; knows no protocol.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import IntEnum

from msgspec import Struct
from msgspec.structs import asdict, replace

from nri_policy.foundation.cpuset import EMPTY, CPUSet
from nri_policy.foundation.refusal import Refused
from nri_policy.manifests.quality_of_service import QoS
from nri_policy.workload.claim import ClaimPart
from nri_policy.workload.hints import Hint, UsedDevice
from nri_policy.workload.requirements import Requirements

#: What the kernel takes: shares (more count as so many), µs of a period, µs of quota in one.
MOST_SHARES = 1 << 18
SHARES = range(1, MOST_SHARES + 1)
PERIODS = range(1000, 1_000_001)
QUOTAS = range(1000, 1 << 44)


class ContainerState(IntEnum):
    """Where a container is in its life; the values order what is kept of two duplicates."""

    STOPPED = 0
    CREATED = 1
    RUNNING = 2


class Resources(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A container's cgroup settings as the runtime holds them; 0 and "" mean not set."""

    cpu_shares: int = 0
    cpu_quota: int = 0  # µs a period; -1 for no limit
    cpu_period: int = 0  # µs
    memory_limit: int = 0  # bytes
    oom_score_adj: int = 0
    hugepages: tuple[
        tuple[int, int], ...
    ] = ()  # (bytes of a page, bytes); limits of 0 are left out
    cpus: str = ""  # kernel list
    mems: str = ""

    @property
    def cpu_request(self) -> int:
        """Milli-CPU requested: the inverse of `shares_of`; the kubelet's minimum of 2 is none."""
        shares = min(self.cpu_shares, MOST_SHARES)
        return 0 if shares <= 2 else -(-shares * 1000 // 1024)

    @property
    def cpu_limit(self) -> int | None:
        """The limit in milli-CPU; None: no limit."""
        if self.cpu_quota <= 0 or self.cpu_period <= 0:
            return None
        return -(-self.cpu_quota * 1000 // self.cpu_period)


def parse_cpus(text: str) -> CPUSet:
    """Return the set that the runtime's text names, empty where it names none."""
    try:
        return CPUSet.parse(text)
    except ValueError:
        return EMPTY


class AmountsError(Refused):
    """CPU amounts of a container that the kernel would not take."""


def check_amounts(resources: Resources) -> None:
    """Raise AmountsError for amounts that the kernel would not take.

    With them the runtime would fail, or set other ones: it passes on a negative amount as a number
    just below 2^64.
    """
    for name, value, accepted in (
        ("shares", resources.cpu_shares, SHARES),
        ("period", resources.cpu_period, PERIODS),
        ("quota", max(0, resources.cpu_quota), QUOTAS),  # less than 0 is no limit, as 0
    ):
        if value and value not in accepted:
            text = f"CPU {name} of {value}: the kernel takes {accepted[0]} to {accepted[-1]}"
            raise AmountsError(text)


def overlay(old: Resources, new: Resources) -> Resources:
    """Return *old* with the amounts that *new* names; the cpuset stays ours (nri.md §3.9)."""
    named = {
        name: value for name, value in asdict(new).items() if value and name not in ("cpus", "mems")
    }
    return replace(old, **named)


class Pod(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A pod sandbox."""

    id: str
    uid: str
    name: str
    namespace: str
    qos: QoS
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    amounts: Resources | None = None  # of all its containers together; None: unknown
    hints: tuple[Hint, ...] = ()  # from the kubelet, of the devices of any container


class Container(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A container of a pod, or another holder of CPUs, with its id.

    Other holders are a pod as a whole (its room) and a part of a resource claim.
    """

    id: str
    pod: Pod
    name: str  # empty for another holder
    state: ContainerState
    created: int  # ns since the epoch, 0 if the runtime does not say
    labels: Mapping[str, str]
    resources: Resources
    hints: tuple[Hint, ...] = ()  # before its annotations select some of them
    devices: tuple[UsedDevice, ...] = ()  # likewise; only with an annotation that names them
    resized: bool = False  # the resources are newer than the pod's annotations
    requirements: Requirements | None = None  # from its pod's object; None: unknown
    pod_level: bool | None = None  # whether its pod has pod-level resources; None: unknown
    cgroup: str = ""  # the runtime's name for it (OCI's cgroupsPath)
    stands_for_pod: bool = False  # not a container, but the holder of its pod's room (§3.3)
    part: ClaimPart | None = None  # not a container, but the holder of this part (dra.md §2.3)
    claims: tuple[str, ...] = ()  # ids of the parts of claims that it uses
    ephemeral: bool = False  # missing in its pod's object: it was added to the running pod

    @property
    def joins_pod(self) -> bool:
        """Whether it was added to a running pod, such as by `kubectl debug`.

        NRI does not say so. Without the pod's object it is visible only in a Guaranteed pod: all
        its containers have limits, except in pods with pod-level resources.
        """
        has = self.resources
        return self.ephemeral or (
            self.pod.qos is QoS.GUARANTEED
            and not self.stands_in
            and has.cpu_request == 0
            and has.cpu_limit is None
            and not has.memory_limit
        )

    @property
    def stands_in(self) -> bool:
        """Whether it is no container, and the runtime knows nothing of it."""
        return self.stands_for_pod or self.part is not None

    @property
    def claim_part(self) -> ClaimPart:
        """The part of a claim that this container stands for, which must exist."""
        assert self.part is not None, "it stands for a part of a claim"
        return self.part

    @property
    def full_name(self) -> str:
        """`namespace/pod/container`, as people and messages name it; `namespace/pod` of a pod."""
        if self.part is not None:
            return self.part.full_name
        pod = f"{self.pod.namespace}/{self.pod.name}"
        return pod if self.stands_for_pod else f"{pod}/{self.name}"

    @property
    def identity(self) -> tuple[str, str]:
        """The pod's uid and `full_name`: a pod has one container of a name at a time.

        A pod that was deleted by force can still run beside its successor, which has its name. So
        can a container that has stopped be in the books beside its successor.
        """
        stopped = self.state is ContainerState.STOPPED
        return self.pod.uid, self.id if stopped else self.full_name


def shares_of(milli: int) -> int:
    """Return the cgroup's cpu.shares for *milli* milli-CPU (as the kubelet does: 2…262144)."""
    return max(2, min(MOST_SHARES, milli * 1024 // 1000))


def rounded_shares(shares: int) -> frozenset[int]:
    """Return what a kubelet can read of *shares* from a cgroup of version 2, where it is a weight.

    It writes it by a line through 1 for 2 shares and 10,000 for 262,144, or, as runc from 1.3.2 on,
    by a parabola of logarithms; it reads it by the line.
    """
    bits = math.log2(max(2, shares))
    line = 1 + (shares - 2) * 9999 // 262_142
    parabola = math.ceil(10 ** ((bits * bits + 125 * bits) / 612 - 7 / 34))
    return frozenset(2 + (weight - 1) * 262_142 // 9999 for weight in (line, parabola))
