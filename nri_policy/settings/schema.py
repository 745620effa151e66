"""The settings: their fields, defaults, and names in YAML. No other place has them.

A field's annotation has its reader (`readers`); fields without one describe the document.
`LATER` names settings that are accepted but have no effect yet.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Annotated, ClassVar

from msgspec import field

from nri_policy.foundation.glob import Glob
from nri_policy.foundation.units import format_quantity
from nri_policy.foundation.wording import counted, did_you_mean, quoted
from nri_policy.hardware.machine import MemoryKind
from nri_policy.manifests.quality_of_service import QoS
from nri_policy.settings import readers
from nri_policy.settings.blockio import BlockIOSettings
from nri_policy.settings.cpu_classes import ControlCPU, CPUClass, find_contradictions
from nri_policy.settings.rdt import RDT
from nri_policy.settings.scheduling import SchedulingClass, find_duplicates
from nri_policy.settings.section import Fault, Section
from nri_policy.settings.value_types import (
    Address,
    Alignment,
    Audit,
    CPUAmount,
    CPUQuantity,
    ExclusivePartitions,
    ExclusiveQuota,
    FullCores,
    IsolateInterrupts,
    JournalSync,
    Level,
    ListedCPUs,
    MakeRoom,
    OnExit,
    Packing,
    PodEvents,
    PodRooms,
    PodSpecs,
    Preserve,
    Priority,
    Unsupported,
)

Flag = Annotated[bool, readers.flag]
Bytes = Annotated[int, readers.memory]


class Available(Section, frozen=True, kw_only=True):
    """Resources of the node that containers may get; None for no restriction."""

    cpu: Annotated[ListedCPUs | None, readers.available_cpus] = None
    memory: Annotated[int | None, readers.memory] = None  # bytes


class Reserved(Section, frozen=True, kw_only=True):
    """The resources for the system's own containers."""

    cpu: Annotated[CPUAmount, readers.reserved_cpus]
    memory: Bytes = 0


class Agent(Section, frozen=True, kw_only=True):
    """What the daemon asks the kubelet and the cluster, and publishes."""

    node_resource_topology: Flag = field(name="nodeResourceTopology", default=True)
    pod_resource_api: Flag = field(name="podResourceAPI", default=False)
    numa_placement: Flag = field(name="numaPlacement", default=False)
    pod_specs: Annotated[PodSpecs, readers.choice(PodSpecs)] = field(
        name="podSpecs", default=PodSpecs.AUTO
    )


class Readiness(Section, frozen=True, kw_only=True):
    """How the Node shows that the daemon is ready."""

    taint: Flag = False  # removed when the daemon is ready
    condition: Flag = False
    while_away: Flag = field(name="whileAway", default=False)  # mark the Node of a dead daemon

    def find_faults(self) -> Iterator[Fault]:
        """Yield a problem if there is nothing to write."""
        if self.while_away and not (self.taint or self.condition):
            yield "whileAway", "it needs taint or condition: there is nothing to write without them"


class MakeWay(Section, frozen=True, kw_only=True):
    """Containers that share CPUs may move to a wider pool to keep exclusive CPUs together."""

    movers: Annotated[int, readers.movers] = 4  # maximum for one container; 0: no moves


class MetricGroups(Section, frozen=True, kw_only=True):
    """The groups of metrics that are exported."""

    enabled: Annotated[tuple[Glob, ...], readers.globs] = ()
    polled: Annotated[tuple[Glob, ...], readers.globs] = ()


class Instrumentation(Section, frozen=True, kw_only=True):
    """Metrics and probes."""

    LATER = frozenset(
        {
            "logExportPeriod",
            "logExporter",
            "metrics",
            "metricsExporter",
            "samplingRatePerMillion",
            "tracingCollector",
        }
    )

    http_endpoint: Annotated[Address | None, readers.endpoint] = field(
        name="httpEndpoint", default=None
    )
    prometheus_export: Flag = field(name="prometheusExport", default=False)
    report_period: Annotated[float, readers.period] = field(name="reportPeriod", default=30.0)
    tracing_collector: Annotated[str | None, readers.OneOf(("otlp-http", "otlp-grpc"))] = field(
        name="tracingCollector", default=None
    )
    sampling_rate: Annotated[int, readers.natural] = field(name="samplingRatePerMillion", default=0)
    metrics: MetricGroups = MetricGroups()
    metrics_exporter: Annotated[
        str | None, readers.OneOf(("prometheus", "otlp-http", "otlp-grpc"))
    ] = field(name="metricsExporter", default=None)
    log_exporter: Annotated[str | None, readers.OneOf(("otlp-http", "otlp-grpc"))] = field(
        name="logExporter", default=None
    )
    log_export_period: Annotated[float | None, readers.period] = field(
        name="logExportPeriod", default=None
    )

    def find_faults(self) -> Iterator[Fault]:
        """Yield contradictions."""
        if self.prometheus_export and self.metrics_exporter not in {None, "prometheus"}:
            yield "metricsExporter", f"{quoted(self.metrics_exporter)} contradicts prometheusExport"


class Log(Section, frozen=True, kw_only=True):
    """The content of the log."""

    LATER = frozenset({"klog", "source"})

    debug: Annotated[tuple[str, ...], readers.loggers] = ()  # logger names, `*` for all
    source: Flag = False
    klog: Annotated[Mapping[str, object], readers.klog] = field(default_factory=dict)


class ControlSettings(Section, frozen=True, kw_only=True):
    """Resources other than CPUs and memory."""

    LATER = frozenset({"cpu"})
    INSTEAD: ClassVar[Mapping[str, str]] = {"cpu": "cpuClasses"}

    cpu: ControlCPU = ControlCPU()
    rdt: RDT = RDT()
    blockio: BlockIOSettings = BlockIOSettings()


class JournalSettings(Section, frozen=True, kw_only=True):
    """How decisions are stored."""

    sync: Annotated[JournalSync, readers.choice(JournalSync)] = JournalSync.BACKGROUND


class DRA(Section, frozen=True, kw_only=True):
    """Dynamic resource allocation: the daemon as a driver that hands out CPUs by claims."""

    enabled: Flag = False
    make_room: Annotated[MakeRoom, readers.choice(MakeRoom)] = field(
        name="makeRoom", default=MakeRoom.SHARED
    )


class Settings(Section, frozen=True, kw_only=True):
    """The `spec` of a TopologyAwarePolicy, checked and typed."""

    origin: str  # the file or object of the settings
    notices: tuple[str, ...] = ()  # about settings without effect
    given: frozenset[str] = frozenset()  # paths in `spec` of the given fields

    pin_cpu: Flag = field(name="pinCPU", default=True)
    pin_memory: Flag = field(name="pinMemory", default=True)
    prefer_isolated_cpus: Flag = field(name="preferIsolatedCPUs", default=True)
    prefer_shared_cpus: Flag = field(name="preferSharedCPUs", default=False)
    colocate_pods: Flag = field(name="colocatePods", default=False)
    colocate_namespaces: Flag = field(name="colocateNamespaces", default=False)
    reserved_pool_namespaces: Annotated[tuple[Glob, ...], readers.globs] = field(
        name="reservedPoolNamespaces", default=()
    )
    preserve_namespaces: Annotated[tuple[Glob, ...], readers.globs] = field(
        name="preserveNamespaces", default=(Glob.parse("*"),)
    )
    preserve: Annotated[Preserve, readers.choice(Preserve)] = Preserve.ALL
    available: Available = field(name="availableResources", default=Available())
    reserved: Reserved = field(name="reservedResources")
    default_cpu_priority: Annotated[Priority, readers.choice(Priority)] = field(
        name="defaultCPUPriority", default=Priority.NONE
    )
    unlimited_burstable: Annotated[Level, readers.level] = field(
        name="unlimitedBurstable", default=Level.PACKAGE
    )
    memory_kinds: Annotated[Mapping[int, MemoryKind], readers.memory_kinds] = field(
        name="memoryKinds", default_factory=dict
    )
    shrink_memory: Flag = field(name="shrinkMemory", default=False)
    distribute_cpus: Flag = field(name="distributeCPUsAcrossNUMA", default=False)
    alignment: Annotated[Alignment, readers.alignment] = Alignment.NONE
    packing: Annotated[Packing, readers.choice(Packing)] = Packing.SPREAD
    full_cores: Annotated[FullCores, readers.choice(FullCores)] = field(
        name="fullCores", default=FullCores.OFF
    )
    exclusive_quota: Annotated[ExclusiveQuota, readers.choice(ExclusiveQuota)] = field(
        name="exclusiveQuota", default=ExclusiveQuota.NONE
    )
    exclusive_partitions: Annotated[ExclusivePartitions, readers.choice(ExclusivePartitions)] = (
        field(name="exclusivePartitions", default=ExclusivePartitions.OFF)
    )
    pod_rooms: Annotated[PodRooms, readers.choice(PodRooms)] = field(
        name="podRooms", default=PodRooms.OFF
    )
    make_way: MakeWay = field(name="makeWay", default=MakeWay())
    audit: Annotated[Audit, readers.choice(Audit)] = Audit.REPORT
    events: Annotated[PodEvents, readers.choice(PodEvents)] = PodEvents.OFF
    pod_explanations: Annotated[bool, readers.flag] = field(name="podExplanations", default=False)
    on_exit: Annotated[OnExit, readers.choice(OnExit)] = field(name="onExit", default=OnExit.KEEP)
    journal: JournalSettings = JournalSettings()
    unsupported_annotations: Annotated[Unsupported, readers.choice(Unsupported)] = field(
        name="unsupportedAnnotations", default=Unsupported.WARN
    )
    scheduling_classes: tuple[SchedulingClass, ...] = field(name="schedulingClasses", default=())
    class_of_namespace: Annotated[Mapping[str, str], readers.class_by_namespace] = field(
        name="namespaceSchedulingClasses", default_factory=dict
    )
    class_of_qos: Annotated[Mapping[str, str], readers.class_by_qos] = field(
        name="podQoSSchedulingClasses", default_factory=dict
    )
    control: ControlSettings = ControlSettings()
    cpu_classes: tuple[CPUClass, ...] = field(name="cpuClasses", default=())
    shared_cpu_class: Annotated[str | None, readers.class_name] = field(
        name="sharedPoolCPUClass", default=None
    )
    reserved_cpu_class: Annotated[str | None, readers.class_name] = field(
        name="reservedPoolCPUClass", default=None
    )
    exclusive_cpu_class: Annotated[str | None, readers.class_name] = field(
        name="defaultExclusiveCPUClass", default=None
    )
    controllable_interrupts: Annotated[tuple[Glob, ...], readers.globs] = field(
        name="controllableInterrupts", default=(Glob.parse("*"),)
    )
    isolate_interrupts: Annotated[IsolateInterrupts, readers.choice(IsolateInterrupts)] = field(
        name="isolateInterrupts", default=IsolateInterrupts.OFF
    )
    crio_annotation_namespaces: Annotated[tuple[Glob, ...], readers.globs] = field(
        name="crioAnnotationNamespaces", default=()
    )
    dra: DRA = DRA()
    agent: Agent = Agent()
    readiness: Readiness = Readiness()
    instrumentation: Instrumentation = Instrumentation()
    log: Log = Log()

    def list_checks(self) -> Iterator[tuple[Collection[str], Iterator[Fault]]]:
        """Yield the checks of classes and of reserved resources."""
        scheduling = ("scheduling_classes", "class_of_namespace", "class_of_qos")
        cpu = ("shared_cpu_class", "reserved_cpu_class", "exclusive_cpu_class")
        yield scheduling, self._scheduling_faults()
        yield ("cpu_classes", *cpu), self._cpu_class_faults()
        yield ("available", "reserved"), self._reserved_faults()

    def _reserved_faults(self) -> Iterator[Fault]:
        """Yield reserved resources that are not available on any machine."""
        reserved, available = self.reserved.cpu, self.available.cpu
        if isinstance(reserved, ListedCPUs) and available is not None and not reserved.excluded:
            both = reserved.cpus & available.cpus
            if beyond := both if available.excluded else reserved.cpus - available.cpus:
                text = f"{beyond} is not in the CPUs of availableResources.cpu"
                yield "reservedResources.cpu", text
        count = None if available is None or available.excluded else len(available.cpus)
        if count is not None and isinstance(reserved, CPUQuantity) and reserved.whole > count:
            text = f"{counted(reserved.whole, 'CPU')} of {count} in availableResources.cpu"
            yield "reservedResources.cpu", f"cannot reserve {text}"
        most = self.available.memory
        if most is not None and self.reserved.memory > most:
            text = (
                f"{format_quantity(self.reserved.memory)} is more than the {format_quantity(most)}"
                " of availableResources.memory"
            )
            yield "reservedResources.memory", text

    def _scheduling_faults(self) -> Iterator[Fault]:
        """Yield duplicate classes, and references to missing ones."""
        scheduling = [each.name for each in self.scheduling_classes]
        yield from find_duplicates("schedulingClasses", scheduling)
        for path, by_key in (
            ("namespaceSchedulingClasses", self.class_of_namespace),
            ("podQoSSchedulingClasses", self.class_of_qos),
        ):
            for key, name in by_key.items():
                yield from _find_absent(f"{path}.{key}", name, scheduling, "schedulingClasses")

    def _cpu_class_faults(self) -> Iterator[Fault]:
        cpu = [each.name for each in self.cpu_classes]
        yield from find_duplicates("cpuClasses", cpu)
        yield from find_contradictions(self.cpu_classes)
        for path, given in (
            ("sharedPoolCPUClass", self.shared_cpu_class),
            ("reservedPoolCPUClass", self.reserved_cpu_class),
            ("defaultExclusiveCPUClass", self.exclusive_cpu_class),
        ):
            if given is not None:
                yield from _find_absent(path, given, cpu, "cpuClasses")
        if cpu and self.shared_cpu_class is None:
            yield "sharedPoolCPUClass", "it is required with cpuClasses"

    def remarks(self) -> Iterator[str]:
        """Yield remarks on settings that may not be intended."""
        for each in self.scheduling_classes:
            for remark in each.remarks():
                yield f"scheduling class {each.name}: {remark}"
        if self.control.blockio.classes and not self.control.blockio.enable:
            yield "control.blockio.enable is false: its classes have no effect"
        if self.prefer_shared_cpus and self.pod_rooms is PodRooms.GUARANTEED:
            yield "podRooms: Guaranteed pods get exclusive CPUs, although preferSharedCPUs is true"
        for setting, pinned, what in (
            ("pinCPU", self.pin_cpu, "CPUs"),
            ("pinMemory", self.pin_memory, "memory nodes"),
        ):
            if self.audit is Audit.REPAIR and not pinned:
                yield f"audit: {what} are not repaired, because {setting} is false"
        yield from self._ineffective()

    def _ineffective(self) -> Iterator[str]:
        """Yield settings without effect because of another setting."""
        exports = self.instrumentation.prometheus_export
        isolates = self.isolate_interrupts is not IsolateInterrupts.OFF
        for found, remark in (
            (
                self.shrink_memory and not self.pin_memory,
                "shrinkMemory: memory nodes are not set, because pinMemory is false",
            ),
            (
                self.events is not PodEvents.OFF and self.pins_nothing,
                "events: pods get none, because pinCPU and pinMemory are false",
            ),
            (
                self.dra.enabled and not self.pin_cpu,
                "dra.enabled: no CPUs are published for claims, because pinCPU is false",
            ),
            (
                self.full_cores is not FullCores.OFF and not self.pin_cpu,
                "fullCores: containers are not kept to their cores, because pinCPU is false",
            ),
            (
                self.exclusive_partitions is not ExclusivePartitions.OFF and not self.pin_cpu,
                "exclusivePartitions: no partition is made, because pinCPU is false",
            ),
            (
                isolates and not self.pin_cpu,
                "isolateInterrupts: no interrupt is moved, because pinCPU is false",
            ),
            (
                isolates and not self.controllable_interrupts,
                "isolateInterrupts: no interrupt is moved, because controllableInterrupts is empty",
            ),
            (
                self.dra.make_room is not MakeRoom.SHARED and not self.dra.enabled,
                "dra.makeRoom: it has no effect, because dra.enabled is false",
            ),
            (
                exports and self.instrumentation.http_endpoint is None,
                "instrumentation.prometheusExport: it has no effect without httpEndpoint",
            ),
        ):
            if found:
                yield remark

    @property
    def reserves_all(self) -> bool:
        """Whether the available CPUs are a list and all of them are reserved, on any machine."""
        reserved, available = self.reserved.cpu, self.available.cpu
        if available is None or available.excluded:
            return False
        if isinstance(reserved, CPUQuantity):
            return reserved.whole >= len(available.cpus)
        left = (
            available.cpus & reserved.cpus if reserved.excluded else available.cpus - reserved.cpus
        )
        return not left

    @property
    def pins_nothing(self) -> bool:
        """Whether decisions are only recorded, and containers are never refused."""
        return not (self.pin_cpu or self.pin_memory)

    @property
    def gives_classes(self) -> bool:
        """Whether containers without an annotation can be in a class."""
        by_default = self.class_of_namespace or self.class_of_qos
        return bool(by_default) or any(
            each.enable and each.qos_is_default for each in (self.control.blockio, self.control.rdt)
        )

    def list_tuned(self) -> Iterator[str]:
        """Yield the settings that only the tuner can put into force."""
        for found, name in (
            (self.cpu_classes, "cpuClasses"),
            (self.isolate_interrupts is not IsolateInterrupts.OFF, "isolateInterrupts"),
            (self.control.rdt.enable and self.control.rdt.partitions, "control.rdt.partitions"),
        ):
            if found:
                yield name

    def list_unreferenced(self) -> Iterator[str]:
        """Yield the classes that containers are in only by annotation."""
        blockio, rdt = self.control.blockio, self.control.rdt
        pools = (self.shared_cpu_class, self.reserved_cpu_class, self.exclusive_cpu_class)
        for kind, every, given in (
            (
                "scheduling",
                [each.name for each in self.scheduling_classes],
                (*self.class_of_namespace.values(), *self.class_of_qos.values()),
            ),
            ("block I/O", blockio.classes, tuple(QoS) if blockio.qos_is_default else ()),
            ("CPU", [each.name for each in self.cpu_classes], pools),
            ("RDT", rdt.classes, tuple(QoS) if rdt.qos_is_default else ()),
        ):
            names = [each for each in every if each not in given]
            if names:
                yield f"{kind} classes that only annotations can ask for: {', '.join(names)}"


def _find_absent(path: str, name: str, known: list[str], where: str) -> Iterator[Fault]:
    """Yield a problem if a class is not among those *known*."""
    if name not in known:
        hint = did_you_mean(name, known)
        yield path, f"{quoted(name)} is not one of {where} ({', '.join(known) or 'none'}){hint}"
