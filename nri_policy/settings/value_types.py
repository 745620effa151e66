"""The types of values in settings: enumerations, lists and amounts of CPUs, an address."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from nri_policy.foundation.cpuset import CPUSet


class Level(StrEnum):
    """A level of the pool tree, coarsest first."""

    SYSTEM = "system"
    PACKAGE = "package"
    DIE = "die"
    NUMA = "numa"
    L3CACHE = "l3cache"


# a pool of a package is named socket
LEVEL_NAMES = {**{str(level): level for level in Level}, "socket": Level.PACKAGE}


class Priority(StrEnum):
    """The class of CPUs that an exclusive grant prefers; NONE ignores classes."""

    HIGH = "high"
    NORMAL = "normal"
    LOW = "low"
    NONE = "none"


class Alignment(StrEnum):
    """NUMA refuses a Guaranteed container with exclusive CPUs that fits in no NUMA pool."""

    NONE = "none"
    NUMA = "numa"


class PodSpecs(StrEnum):
    """Whether the objects of pods are read, if the daemon has the right."""

    OFF = "off"
    AUTO = "auto"


class Preserve(StrEnum):
    """The CPUs that a container with `cpu.preserve` may run on."""

    ALL = "all"  # the policy does not change them
    UNOWNED = "unowned"  # its CPUs so far, minus exclusive CPUs of other containers


class Packing(StrEnum):
    """Which of equal pools gives exclusive CPUs: the one with most free CPUs, or with fewest."""

    SPREAD = "spread"
    TIGHT = "tight"


class FullCores(StrEnum):
    """Whether the exclusive CPUs of two containers may share a core."""

    OFF = "off"
    PREFER = "prefer"
    REQUIRE = "require"


class ExclusiveQuota(StrEnum):
    """The CFS quota of a container that has only exclusive CPUs."""

    NONE = "none"  # its cpuset is its limit
    KEEP = "keep"  # as the kubelet set it


class ExclusivePartitions(StrEnum):
    """Whether the kernel keeps all others off the CPUs of a container that has only exclusive ones.

    The values but `off` are those of `cpuset.cpus.partition`.
    """

    OFF = "off"
    ROOT = "root"
    ISOLATED = "isolated"  # also load balancing, and kernel work that is bound to no CPU


class PodRooms(StrEnum):
    """Which pods have their CPUs as a whole, unless annotated otherwise; spec placement.md §3.3."""

    OFF = "off"
    GUARANTEED = "guaranteed"


class MakeRoom(StrEnum):
    """Which containers move for a resource claim that the scheduler has allocated; dra.md §2.3."""

    NONE = "none"  # only containers without a CPU request
    SHARED = "shared"  # also containers that share CPUs: they move to wider pools
    EXCLUSIVE = "exclusive"  # also containers with exclusive CPUs: they move to other pools


class Audit(StrEnum):
    """The action for a running container whose cgroup differs from its decision."""

    OFF = "off"
    REPORT = "report"
    REPAIR = "repair"


class PodEvents(StrEnum):
    """Which decisions about a pod's containers become events of the pod."""

    OFF = "off"
    REFUSALS = "refusals"
    ALL = "all"


class Unsupported(StrEnum):
    """What happens to a container with an annotation that this node does not support."""

    WARN = "warn"  # it starts without its effect
    REFUSE = "refuse"


class OnExit(StrEnum):
    """The cpusets of running containers after the daemon is stopped for good."""

    KEEP = "keep"
    WIDEN = "widen"


class IsolateInterrupts(StrEnum):
    """The CPUs that no interrupt may use without being asked for."""

    OFF = "off"
    EXCLUSIVE = "exclusive"


class JournalSync(StrEnum):
    """When the journal is synced to the disk; it only matters at a power cut."""

    BACKGROUND = "background"
    COMMIT = "commit"


class ListedCPUs(Struct, frozen=True):
    """The CPUs of a list (`cpuset:LIST`), or all others (`exclude-cpuset:LIST`)."""

    cpus: CPUSet
    excluded: bool = False


class CPUQuantity(Struct, frozen=True):
    """An amount of CPU; the policy chooses the CPUs."""

    milli_cpu: int

    @property
    def whole(self) -> int:
        """The number of CPUs that it takes."""
        return -(-self.milli_cpu // 1000)


CPUAmount = ListedCPUs | CPUQuantity


class Address(Struct, frozen=True):
    """The address of a server; an empty host means all addresses."""

    host: str
    port: int
