"""The settings: their fields, defaults, and names in YAML. The only place that has them.

A field's annotation holds its reader (`values`); fields without one are about the document, not in
it. `LATER` names what is accepted but not supported yet.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar

from msgspec import Struct, field

from nri_policy.glob import Glob
from nri_policy.hardware.machine import MemoryKind
from nri_policy.settings import values
from nri_policy.settings.values import (
    Alignment,
    Audit,
    CPUAmount,
    Endpoint,
    FullCores,
    Level,
    Listed,
    OnExit,
    Packing,
    PodEvents,
    Priority,
    Rebalance,
)

Flag = Annotated[bool, values.flag]
Bytes = Annotated[int, values.memory]


class Section(Struct, frozen=True, kw_only=True):
    """A map of the document with known keys."""

    LATER: ClassVar[frozenset[str]] = frozenset()

    def faults(self) -> Iterator[tuple[str, str]]:
        """Yield what the reader of one field cannot see: the path below, and what is wrong."""
        yield from ()


class Available(Section, frozen=True, kw_only=True):
    """What of the node may be handed out; None is all of it."""

    cpu: Annotated[Listed | None, values.available_cpus] = None
    memory: Annotated[int | None, values.memory] = None  # bytes


class Reserved(Section, frozen=True, kw_only=True):
    """What is kept for the system's own containers."""

    cpu: Annotated[CPUAmount, values.reserved_cpus]
    memory: Bytes = 0


class Agent(Section, frozen=True, kw_only=True):
    """What is asked of, and told to, the cluster."""

    node_resource_topology: Flag = field(name="nodeResourceTopology", default=True)
    pod_resource_api: Flag = field(name="podResourceAPI", default=False)


class Instrumentation(Section, frozen=True, kw_only=True):
    """Metrics and probes."""

    LATER = frozenset(
        {
            "logExporter",
            "metrics",
            "metricsExporter",
            "samplingRatePerMillion",
            "tracingCollector",
        }
    )

    http_endpoint: Annotated[Endpoint | None, values.endpoint] = field(
        name="httpEndpoint", default=None
    )
    prometheus_export: Flag = field(name="prometheusExport", default=False)
    report_period: Annotated[float, values.period] = field(name="reportPeriod", default=30.0)


class Log(Section, frozen=True, kw_only=True):
    """What is logged."""

    LATER = frozenset({"klog", "source"})

    debug: Annotated[tuple[str, ...], values.names] = ()  # logger names, `*` for all


class Settings(Section, frozen=True, kw_only=True):
    """The `spec` of a TopologyAwarePolicy, checked and typed."""

    LATER = frozenset(
        {
            "control",
            "controllableInterrupts",
            "cpuClasses",
            "defaultExclusiveCPUClass",
            "namespaceSchedulingClasses",
            "podQoSSchedulingClasses",
            "rebalance",
            "reservedPoolCPUClass",
            "schedulingClasses",
            "sharedPoolCPUClass",
        }
    )

    origin: str  # the file or object that they come from
    notices: tuple[str, ...] = ()  # what was accepted but has no effect yet
    given: frozenset[str] = frozenset()  # the fields that it sets, by their paths in `spec`

    pin_cpu: Flag = field(name="pinCPU", default=True)
    pin_memory: Flag = field(name="pinMemory", default=True)
    prefer_isolated_cpus: Flag = field(name="preferIsolatedCPUs", default=True)
    prefer_shared_cpus: Flag = field(name="preferSharedCPUs", default=False)
    colocate_pods: Flag = field(name="colocatePods", default=False)
    colocate_namespaces: Flag = field(name="colocateNamespaces", default=False)
    reserved_pool_namespaces: Annotated[tuple[Glob, ...], values.globs] = field(
        name="reservedPoolNamespaces", default=()
    )
    available: Available = field(name="availableResources", default=Available())
    reserved: Reserved = field(name="reservedResources")
    default_cpu_priority: Annotated[Priority, values.choice(Priority)] = field(
        name="defaultCPUPriority", default=Priority.NONE
    )
    unlimited_burstable: Annotated[Level, values.choice(Level)] = field(
        name="unlimitedBurstable", default=Level.PACKAGE
    )
    memory_kinds: Annotated[Mapping[int, MemoryKind], values.memory_kinds] = field(
        name="memoryKinds", default_factory=dict
    )
    shrink_memory: Flag = field(name="shrinkMemory", default=False)
    alignment: Annotated[Alignment, values.choice(Alignment)] = Alignment.NONE
    packing: Annotated[Packing, values.choice(Packing)] = Packing.SPREAD
    full_cores: Annotated[FullCores, values.choice(FullCores)] = field(
        name="fullCores", default=FullCores.OFF
    )
    audit: Annotated[Audit, values.choice(Audit)] = Audit.REPORT
    events: Annotated[PodEvents, values.choice(PodEvents)] = PodEvents.OFF
    on_exit: Annotated[OnExit, values.choice(OnExit)] = field(name="onExit", default=OnExit.KEEP)
    rebalance: Annotated[Rebalance, values.choice(Rebalance)] = Rebalance.ADVISE
    agent: Agent = Agent()
    instrumentation: Instrumentation = Instrumentation()
    log: Log = Log()
