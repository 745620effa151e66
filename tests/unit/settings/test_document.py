"""Settings documents: defaults, errors with their paths, notices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from nri_policy.foundation.cpuset import CPUSet
from nri_policy.foundation.glob import Glob
from nri_policy.foundation.yamltext import read
from nri_policy.hardware.machine import MemoryKind
from nri_policy.settings import (
    Address,
    Agent,
    Alignment,
    Audit,
    Available,
    BlockIOSettings,
    CPUClass,
    CPUQuantity,
    DeviceLimits,
    EffectiveSetting,
    ExclusivePartitions,
    ExclusiveQuota,
    FullCores,
    Instrumentation,
    IOClass,
    IsolateInterrupts,
    JournalSettings,
    JournalSync,
    Level,
    ListedCPUs,
    Log,
    MakeRoom,
    MakeWay,
    OnExit,
    Packing,
    PodEvents,
    PodRooms,
    PodSpecs,
    Preserve,
    Priority,
    Problem,
    Readiness,
    Reserved,
    SchedulingClass,
    SchedulingFlag,
    SchedulingPolicy,
    Section,
    Settings,
    SettingsError,
    Unsupported,
    effective,
    from_spec,
    load,
    to_spec,
)
from nri_policy.settings.document import _fields
from nri_policy.settings.rdt import (
    RDT,
    CacheShare,
    Class,
    OptionalResource,
    RDTOptions,
    RDTPartition,
)
from nri_policy.settings.schema import DRA, ControlSettings

SAMPLE = Path(__file__).parents[3] / "configs" / "settings.yaml"
WANTED = "it has to be a document with apiVersion, kind, metadata, spec"
HEAD = "apiVersion: config.nri/v1alpha1\nkind: TopologyAwarePolicy\nmetadata: {name: default}\n"
AUDITS = "off, report, repair"
LISTED = "a list of CPUs, such as cpuset:0-3,8 or exclude-cpuset:4-63"
MEMORY = "a memory quantity, such as 512Mi, 2G or 1073741824"
BALLOONS = (
    "it is of nri-plugins' balloons policy, and there are no balloons here;"
    " docs/migration.md says what replaces balloons"
)
ENDPOINT = "HOST:PORT, such as :8891 or 127.0.0.1:8891"
DURATION = "a duration, such as 60s, 1h30m or 250ms"
RESERVED = {"reservedResources": {"cpu": "750m"}}


def problems_of(spec: Any) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        from_spec(spec, "here")
    return [str(problem) for problem in caught.value.problems]


def test_a_document_needs_no_more_than_a_reservation() -> None:
    settings = load(HEAD + "spec: {reservedResources: {cpu: 750m}}", "a file")
    assert settings == Settings(
        origin="a file",
        notices=(),
        given=frozenset({"reservedResources.cpu"}),
        pin_cpu=True,
        pin_memory=True,
        prefer_isolated_cpus=True,
        prefer_shared_cpus=False,
        colocate_pods=False,
        colocate_namespaces=False,
        reserved_pool_namespaces=(),
        available=Available(cpu=None, memory=None),
        reserved=Reserved(cpu=CPUQuantity(750), memory=0),
        default_cpu_priority=Priority.NONE,
        unlimited_burstable=Level.PACKAGE,
        memory_kinds={},
        shrink_memory=False,
        alignment=Alignment.NONE,
        packing=Packing.SPREAD,
        distribute_cpus=False,
        full_cores=FullCores.OFF,
        exclusive_quota=ExclusiveQuota.NONE,
        exclusive_partitions=ExclusivePartitions.OFF,
        pod_rooms=PodRooms.OFF,
        make_way=MakeWay(movers=4),
        audit=Audit.REPORT,
        on_exit=OnExit.KEEP,
        journal=JournalSettings(sync=JournalSync.BACKGROUND),
        unsupported_annotations=Unsupported.WARN,
        scheduling_classes=(),
        class_of_namespace={},
        class_of_qos={},
        control=ControlSettings(),
        agent=Agent(node_resource_topology=True, pod_resource_api=False),
        instrumentation=Instrumentation(
            http_endpoint=None, prometheus_export=False, report_period=30
        ),
        log=Log(debug=()),
    )


def test_every_field_that_has_an_effect_is_told_with_who_set_it() -> None:
    text = "spec: {pinCPU: true, reservedResources: {cpu: 750m}, colocatePods: null, audit: off}"
    shown = {each.field: each for each in effective(load(HEAD + text, "a file"))}
    assert {field for field, each in shown.items() if each.origin == "a file"} >= {
        "pinCPU",
        "reservedResources.cpu",
    }
    assert shown["pinCPU"].value is True
    assert shown["colocatePods"] == EffectiveSetting(
        field="colocatePods", value=False, origin="default", is_default=True
    )
    assert (shown["pinCPU"].origin, shown["pinCPU"].is_default) == ("a file", True)
    assert (shown["audit"].origin, shown["audit"].is_default) == ("a file", False)
    assert shown["reservedResources.cpu"].value == "750m"
    assert not shown["reservedResources.cpu"].is_default, "it has no default"
    assert shown["availableResources.memory"].value is None
    assert "log.klog" not in shown, "it has no effect"


def test_every_field_is_read() -> None:
    spec = """
spec:
  pinCPU: false
  pinMemory: off
  preferIsolatedCPUs: false
  preferSharedCPUs: true
  colocatePods: true
  colocateNamespaces: true
  reservedPoolNamespaces: [monitoring, "log*"]
  preserveNamespaces: [monitoring]
  preserve: unowned
  availableResources: {cpu: "exclude-cpuset:0,8", memory: 1Gi}
  reservedResources: {cpu: "cpuset:1-2", memory: 500M}
  defaultCPUPriority: high
  unlimitedBurstable: numa
  memoryKinds: {2: pmem, "3": hbm, 4: device, 5: dram}
  shrinkMemory: true
  alignment: numa
  packing: tight
  distributeCPUsAcrossNUMA: true
  fullCores: off
  exclusiveQuota: keep
  exclusivePartitions: isolated
  podRooms: guaranteed
  makeWay: {movers: 2}
  audit: off
  events: refusals
  podExplanations: true
  onExit: widen
  journal: {sync: commit}
  unsupportedAnnotations: refuse
  schedulingClasses:
    - {name: calm, policy: batch, nice: 5, flags: [reset-on-fork], ioClass: be, ioPriority: 7}
    - {name: fast, policy: rr, priority: 9, allowedNamespaces: ["telco-*"]}
    - {name: due, policy: deadline, flags: [reset-on-fork], runtime: 1ms, deadline: 5000000}
  namespaceSchedulingClasses: {ci: calm}
  podQoSSchedulingClasses: {BestEffort: calm}
  cpuClasses: [{name: slow, maxFreq: base}]
  sharedPoolCPUClass: slow
  reservedPoolCPUClass: slow
  defaultExclusiveCPUClass: slow
  control:
    blockio:
      enable: true
      usePodQoSAsDefaultClass: true
      classes:
        slow: [{Devices: [/dev/sd?], ThrottleReadBps: 50M, ThrottleWriteIOPS: 100, Weight: "10"}]
    rdt:
      enable: true
      usePodQoSAsDefaultClass: true
      force: true
      options: {l2: {optional: true}, l3: {optional: true}, mb: {optional: true}}
      partitions:
        all:
          l3Allocation: {all: {unified: 50%}}
          classes: {gold: {allowedNamespaces: ["telco-*"]}}
  controllableInterrupts: ["PCI-*"]
  isolateInterrupts: exclusive
  crioAnnotationNamespaces: [telco-*]
  dra: {enabled: true, makeRoom: exclusive}
  agent: {nodeResourceTopology: false, podResourceAPI: true, numaPlacement: true, podSpecs: off}
  readiness: {taint: true, condition: true, whileAway: true}
  instrumentation: {httpEndpoint: "[::1]:8891", prometheusExport: true, reportPeriod: 1m}
  log: {debug: ["*"]}
status: {nodes: {}}
"""
    settings = load((HEAD + spec).encode(), "a file")
    assert {each.field for each in effective(settings)} <= settings.given, "and all are given"
    assert settings == Settings(
        origin="a file",
        given=settings.given,
        notices=(
            "podRooms: Guaranteed pods get exclusive CPUs, although preferSharedCPUs is true",
            "shrinkMemory: memory nodes are not set, because pinMemory is false",
            "events: pods get none, because pinCPU and pinMemory are false",
            "dra.enabled: no CPUs are published for claims, because pinCPU is false",
            "exclusivePartitions: no partition is made, because pinCPU is false",
            "isolateInterrupts: no interrupt is moved, because pinCPU is false",
        ),
        pin_cpu=False,
        pin_memory=False,
        prefer_isolated_cpus=False,
        prefer_shared_cpus=True,
        colocate_pods=True,
        colocate_namespaces=True,
        reserved_pool_namespaces=(Glob.parse("monitoring"), Glob.parse("log*")),
        preserve_namespaces=(Glob.parse("monitoring"),),
        preserve=Preserve.UNOWNED,
        available=Available(cpu=ListedCPUs(CPUSet([0, 8]), excluded=True), memory=2**30),
        reserved=Reserved(cpu=ListedCPUs(CPUSet([1, 2])), memory=500_000_000),
        default_cpu_priority=Priority.HIGH,
        unlimited_burstable=Level.NUMA,
        memory_kinds={
            2: MemoryKind.PMEM,
            3: MemoryKind.HBM,
            4: MemoryKind.DEVICE,
            5: MemoryKind.DRAM,
        },
        shrink_memory=True,
        make_way=MakeWay(movers=2),
        alignment=Alignment.NUMA,
        packing=Packing.TIGHT,
        distribute_cpus=True,
        full_cores=FullCores.OFF,
        exclusive_quota=ExclusiveQuota.KEEP,
        exclusive_partitions=ExclusivePartitions.ISOLATED,
        pod_rooms=PodRooms.GUARANTEED,
        audit=Audit.OFF,
        events=PodEvents.REFUSALS,
        pod_explanations=True,
        on_exit=OnExit.WIDEN,
        journal=JournalSettings(sync=JournalSync.COMMIT),
        unsupported_annotations=Unsupported.REFUSE,
        scheduling_classes=(
            SchedulingClass(
                name="calm",
                policy=SchedulingPolicy.BATCH,
                nice=5,
                flags=(SchedulingFlag.RESET_ON_FORK,),
                io_class=IOClass.BE,
                io_priority=7,
            ),
            SchedulingClass(
                name="fast",
                policy=SchedulingPolicy.RR,
                priority=9,
                allowed_namespaces=(Glob.parse("telco-*"),),
            ),
            SchedulingClass(
                name="due",
                policy=SchedulingPolicy.DEADLINE,
                flags=(SchedulingFlag.RESET_ON_FORK,),
                runtime=1_000_000,
                deadline=5_000_000,
            ),
        ),
        class_of_namespace={"ci": "calm"},
        class_of_qos={"besteffort": "calm"},
        cpu_classes=(CPUClass(name="slow", max_freq="base"),),
        shared_cpu_class="slow",
        reserved_cpu_class="slow",
        exclusive_cpu_class="slow",
        control=ControlSettings(
            rdt=RDT(
                enable=True,
                qos_is_default=True,
                force=True,
                options=RDTOptions(
                    l2=OptionalResource(optional=True),
                    l3=OptionalResource(optional=True),
                    mb=OptionalResource(optional=True),
                ),
                partitions={
                    "all": RDTPartition(
                        l3={"all": CacheShare(unified="50%")},
                        classes={"gold": Class(allowed_namespaces=(Glob.parse("telco-*"),))},
                    )
                },
            ),
            blockio=BlockIOSettings(
                enable=True,
                qos_is_default=True,
                classes={
                    "slow": (
                        DeviceLimits(
                            devices=(Glob.parse("/dev/sd?"),),
                            read_bps=50_000_000,
                            write_iops=100,
                            weight=10,
                        ),
                    )
                },
            ),
        ),
        controllable_interrupts=(Glob.parse("PCI-*"),),
        isolate_interrupts=IsolateInterrupts.EXCLUSIVE,
        crio_annotation_namespaces=(Glob.parse("telco-*"),),
        dra=DRA(enabled=True, make_room=MakeRoom.EXCLUSIVE),
        agent=Agent(
            node_resource_topology=False,
            pod_resource_api=True,
            numa_placement=True,
            pod_specs=PodSpecs.OFF,
        ),
        readiness=Readiness(taint=True, condition=True, while_away=True),
        instrumentation=Instrumentation(
            http_endpoint=Address("::1", 8891), prometheus_export=True, report_period=60
        ),
        log=Log(debug=("*",)),
    )


def test_the_sample_has_every_supported_field_with_its_default() -> None:
    settings = load(SAMPLE.read_bytes(), "sample")
    least = from_spec(RESERVED, "sample")
    assert msgspec.structs.replace(settings, given=least.given) == least
    spec = read(SAMPLE.read_bytes())["spec"]
    assert set(spec) == set(_fields(Settings)) - Settings.LATER
    sections: tuple[tuple[str, type[Section]], ...] = (
        ("dra", DRA),
        ("agent", Agent),
        ("readiness", Readiness),
        ("instrumentation", Instrumentation),
        ("log", Log),
    )
    for name, section in sections:
        assert set(spec[name]) == set(_fields(section)) - section.LATER


@pytest.mark.parametrize(
    ("path", "value", "problem"),
    [
        ("pincpu", True, "unknown field; did you mean 'pinCPU'?"),
        ("zebra", 1, "unknown field"),
        ("log.debgu", 1, "unknown field; did you mean 'debug'?"),
        ("availableResources.cpus", 2, "unknown field; did you mean 'cpu'?"),
        ("pinCPU", "yes", "'yes' is not true or false"),
        ("pinCPU", 1, "1 is not true or false"),
        ("pinCPU", {}, "a map (0 entries) is not true or false"),
        ("pinCPU", "false", "'false' is not true or false: write it without quotes"),
        ("agent", [], "a list (0 entries) is not a map: write NAME: VALUE, without '-'"),
        ("audit", "none", "'none' is not one of off, report, repair"),
        ("audit", "repare", f"'repare' is not one of {AUDITS}; did you mean 'repair'?"),
        ("alignment", False, "false is not one of none, numa"),
        (
            "alignment",
            "single-numa-node",
            "'single-numa-node' is not one of none, numa; did you mean 'numa'?",
        ),
        ("readiness.taint", "yes", "'yes' is not true or false"),
        ("packing", "loose", "'loose' is not one of spread, tight"),
        ("fullCores", True, "true is not one of off, prefer, require"),
        ("exclusiveQuota", "off", "'off' is not one of none, keep"),
        ("exclusivePartitions", "on", "'on' is not one of off, root, isolated"),
        ("podRooms", "on", "'on' is not one of off, guaranteed"),
        ("unlimitedBurstable", 3, "3 is not one of system, package, die, numa, l3cache"),
        ("reservedPoolNamespaces", "a", "'a' is not a list of at most 1000 strings: write ['a']"),
        (
            "log.debug",
            "all",
            "'all' is not a list of at most 1000 strings: write ['all']; [\"*\"] means all loggers",
        ),
        ("idleCPUClass", "a", "unknown field: " + BALLOONS),
        ("reservedPoolNamespaces", ["a", 1], "1 in the list is not a string"),
        ("reservedPoolNamespaces", ["a", ""], "'' in the list is empty"),
        ("reservedPoolNamespaces", ["a["], "'a[' is not a glob: '[' is not complete"),
        ("availableResources.cpu", 2, f"2 is not {LISTED}"),
        ("availableResources.cpu", "cpuset:", f"'cpuset:' lists no CPU; expected: {LISTED}"),
        ("availableResources.memory", "1Z", f"'1Z' is not {MEMORY}"),
        ("memoryKinds", ["dram"], "a list (1 entry) is not a map of memory node to kind"),
        ("memoryKinds", {"x": "dram"}, "'x' is not a memory node id, such as 0 or 2"),
        ("memoryKinds", {1024: "dram"}, "1024 is not a memory node id, such as 0 or 2"),
        ("memoryKinds", {True: "dram"}, "true is not a memory node id, such as 0 or 2"),
        ("memoryKinds", {1: "cxl"}, "'cxl' is not one of dram, pmem, hbm, device"),
        ("instrumentation.httpEndpoint", "8891", f"'8891' is not {ENDPOINT}"),
        ("instrumentation.httpEndpoint", ":65536", f"':65536' is not {ENDPOINT}"),
        ("instrumentation.httpEndpoint", 8891, f"8891 is not {ENDPOINT}"),
        ("instrumentation.reportPeriod", "10ms", "'10ms' is too short; at least 1s is required"),
        ("instrumentation.reportPeriod", 30, f"30 is not {DURATION}"),
        ("makeWay.movers", 17, "17 is not from 0 to 16"),
        ("makeWay.movers", -1, "-1 is not from 0 to 16"),
        ("log.klog", "v=4", "'v=4' is not a map"),
        (
            "log.klog",
            {"log_fil": "a"},
            "'log_fil' is not an option of klog; did you mean 'log_file'?",
        ),
        ("log.klog", {1: "a"}, "1 is not an option of klog"),
        ("cpuClasses", {}, "a map (0 entries) is not a list"),
        ("namespaceSchedulingClasses", "a", "'a' is not a map of namespace to class"),
        ("namespaceSchedulingClasses", {"": "a"}, "'' is not a namespace"),
        ("podQoSSchedulingClasses", "a", "'a' is not a map of QoS to class"),
        (
            "podQoSSchedulingClasses",
            {"best": "a"},
            "'best' is not one of besteffort, burstable, guaranteed",
        ),
        (
            "podQoSSchedulingClasses",
            {"Burstable": "a", "burstable": "a"},
            "'burstable' is given twice",
        ),
    ],
)
def test_an_error_names_the_path_the_value_and_what_is_allowed(
    path: str, value: object, problem: str
) -> None:
    section, _, name = path.rpartition(".")
    spec: dict[str, Any] = {section: {name: value}} if section else {name: value}
    assert problems_of(RESERVED | spec) == [f"{path}: {problem}"]


@pytest.mark.parametrize(("key", "shown"), [(5, "5"), ("a b", "'a b'"), (None, "null")])
def test_a_key_that_is_no_plain_name_is_quoted(key: object, shown: str) -> None:
    spec: dict[Any, Any] = {**RESERVED, key: 1}
    assert problems_of(spec) == [f"{shown}: unknown field"]


def test_a_level_of_packages_may_be_called_a_socket() -> None:
    spec = {**RESERVED, "unlimitedBurstable": "socket"}
    assert from_spec(spec, "here").unlimited_burstable is Level.PACKAGE


def test_nothing_can_be_written_for_a_dead_daemon_that_writes_nothing() -> None:
    problem = (
        "readiness.whileAway: it needs taint or condition: there is nothing to write without them"
    )
    assert problems_of({**RESERVED, "readiness": {"whileAway": True}}) == [problem]
    for needed in ("taint", "condition"):
        from_spec({**RESERVED, "readiness": {"whileAway": True, needed: True}}, "here")


def test_an_empty_reservation_is_refused() -> None:
    problem = "reservedResources.cpu: '0' reserves nothing; at least 1m is required"
    assert problems_of({"reservedResources": {"cpu": "0"}}) == [problem]


@pytest.mark.parametrize("spec", [None, {}, {"reservedResources": None}, {"reservedResources": {}}])
def test_a_reservation_is_required(spec: Any) -> None:
    (problem,) = problems_of(spec)
    assert problem.startswith("reservedResources.cpu: it is required: an amount, such as")


def test_the_topology_managers_policy_is_pointed_to_alignment() -> None:
    (problem,) = problems_of({**RESERVED, "topologyManagerPolicy": "single-numa-node"})
    assert problem == (
        "topologyManagerPolicy: unknown field: it is of the kubelet; alignment is alike,"
        " and docs/migration.md maps its values"
    )


def test_a_required_field_with_a_typo_is_one_error() -> None:
    problem = "reservedResources.CPU: unknown field; did you mean 'cpu'?"
    assert problems_of({"reservedResources": {"CPU": "750m"}}) == [problem]
    problem = "reservedResource: unknown field; did you mean 'reservedResources'?"
    assert problems_of({"reservedResource": {"cpu": "750m"}}) == [problem]
    problems = problems_of({"reservedResources": {"limits": 1}})
    assert len(problems) == 2, "it is no typo of cpu"


@pytest.mark.parametrize(
    "value", ["cpuset:x", "exclude-cpuset:1-", "cpuset:0-99999", "cpus:1", True]
)
def test_a_bad_cpu_reservation_is_refused(value: object) -> None:
    (problem,) = problems_of({"reservedResources": {"cpu": value}})
    assert problem.startswith("reservedResources.cpu: ")


def test_all_errors_are_reported_together() -> None:
    spec: dict[str, Any] = {
        "pinCPU": 1,
        "log": {"debug": 1, "x": 2},
        "agent": {"podResourceAPI": "no"},
    }
    with pytest.raises(SettingsError) as caught:
        from_spec(spec, "scenario.yaml step 1")
    lines = str(caught.value).splitlines()
    assert lines[0] == "scenario.yaml step 1: 5 errors:"
    paths = [line.split(": ")[0] for line in lines[1:]]
    assert paths == [
        "  pinCPU", "  reservedResources.cpu", "  agent.podResourceAPI", "  log.x", "  log.debug",
    ]  # fmt: skip


def test_what_does_not_go_together_is_reported_beside_fields_that_are_wrong() -> None:
    spec: dict[str, Any] = {
        "fulCores": "require",
        "reservedResources": {"cpu": "cpuset:0-3", "memory": "64Gi"},
        "availableResources": {"cpu": "cpuset:2-15", "memory": "32Gi"},
        "namespaceSchedulingClasses": {"a": "nosuch"},
    }
    beyond = "reservedResources.cpu: 0-1 is not in the CPUs of availableResources.cpu"
    absent = "namespaceSchedulingClasses.a: 'nosuch' is not one of schedulingClasses (none)"
    assert problems_of(spec) == [
        "fulCores: unknown field; did you mean 'fullCores'?",
        absent,
        beyond,
        "reservedResources.memory: 64Gi is more than the 32Gi of availableResources.memory",
    ]
    classes = [{"name": "nosuch", "nice": 99}]
    others = {"schedulingClasses": classes, "sharedPoolCPUClass": "a", "pinCPU": 1}
    told = " ".join(problems_of(spec | others))
    assert "schedulingClasses[0].nice: " in told, "so nobody can say which classes there are"
    assert absent not in told
    assert "sharedPoolCPUClass: 'a' is not one of cpuClasses (none)" in told
    assert beyond in told
    assert beyond not in " ".join(problems_of(spec | {"availableResources": {"cpu": 1}}))


def test_no_more_can_be_reserved_than_is_available() -> None:
    def reserved(cpu: str, available: str) -> dict[str, Any]:
        return {"reservedResources": {"cpu": cpu}, "availableResources": {"cpu": available}}

    problem = "reservedResources.cpu: cannot reserve 5 CPUs of 4 in availableResources.cpu"
    assert problems_of(reserved("4100m", "cpuset:0-3")) == [problem]
    from_spec(reserved("4", "cpuset:0-3"), "here")
    from_spec(reserved("5", "exclude-cpuset:0-3"), "here")


def test_metrics_are_exported_in_one_way() -> None:
    def exported(to: str) -> dict[str, Any]:
        return RESERVED | {"instrumentation": {"prometheusExport": True, "metricsExporter": to}}

    from_spec(exported("prometheus"), "here")
    assert problems_of(exported("otlp-http")) == [
        "instrumentation.metricsExporter: 'otlp-http' contradicts prometheusExport"
    ]


def test_classes_of_cpus_need_one_for_shared_cpus() -> None:
    problem = "sharedPoolCPUClass: it is required with cpuClasses"
    assert problems_of(RESERVED | {"cpuClasses": [{"name": "a"}]}) == [problem]


def test_settings_that_work_against_each_other_are_noted() -> None:
    assert from_spec(RESERVED, "here").notices == ()
    spec = RESERVED | {
        "pinCPU": False,
        "audit": "repair",
        "dra": {"enabled": True},
        "preferSharedCPUs": True,
        "podRooms": "guaranteed",
        "shrinkMemory": True,
        "events": "all",
    }
    assert from_spec(spec, "here").notices == (
        "podRooms: Guaranteed pods get exclusive CPUs, although preferSharedCPUs is true",
        "audit: CPUs are not repaired, because pinCPU is false",
        "dra.enabled: no CPUs are published for claims, because pinCPU is false",
    )
    spec = RESERVED | {
        "pinCPU": False,
        "pinMemory": False,
        "shrinkMemory": True,
        "events": "refusals",
        "dra": {"makeRoom": "none"},
        "instrumentation": {"prometheusExport": True},
    }
    assert from_spec(spec, "here").notices == (
        "shrinkMemory: memory nodes are not set, because pinMemory is false",
        "events: pods get none, because pinCPU and pinMemory are false",
        "dra.makeRoom: it has no effect, because dra.enabled is false",
        "instrumentation.prometheusExport: it has no effect without httpEndpoint",
    )


def test_settings_for_exclusive_cpus_without_pinned_cpus_are_noted() -> None:
    spec = {
        "fullCores": "require",
        "exclusivePartitions": "root",
        "isolateInterrupts": "exclusive",
    }
    assert from_spec(RESERVED | spec, "here").notices == ()
    assert from_spec(RESERVED | spec | {"pinCPU": False}, "here").notices == (
        "fullCores: containers are not kept to their cores, because pinCPU is false",
        "exclusivePartitions: no partition is made, because pinCPU is false",
        "isolateInterrupts: no interrupt is moved, because pinCPU is false",
    )
    assert from_spec(RESERVED | spec | {"controllableInterrupts": []}, "here").notices == (
        "isolateInterrupts: no interrupt is moved, because controllableInterrupts is empty",
    )


def test_amounts_of_memory_are_shown_as_they_are_written() -> None:
    reserved = {"cpu": 1, "memory": "1536Mi"}
    spec = {"reservedResources": reserved, "availableResources": {"memory": "32Gi"}}
    settings = from_spec(spec, "here")
    shown = {each.field: each.value for each in effective(settings)}
    assert shown["availableResources.memory"] == "32Gi"
    assert shown["reservedResources.memory"] == "1536Mi"
    assert from_spec(to_spec(settings), "here").reserved == settings.reserved


def test_a_flood_of_unknown_fields_is_cut_short() -> None:
    problems = problems_of(RESERVED | {f"field{n}": n for n in range(10_000)})
    assert len(problems) == 21
    assert problems[-1] == "9980 more unknown fields"


def test_fields_of_later_versions_are_accepted_with_a_notice() -> None:
    spec: dict[str, Any] = RESERVED | {
        "cpuClasses": [{"name": "a", "minFreq": "2.5GHz", "sstClosID": 1}],
        "sharedPoolCPUClass": "a",
        "control": None,
        "log": {"klog": {}},
    }
    assert from_spec(spec, "here").notices == (
        "cpuClasses[0].sstClosID: not supported yet, it has no effect",
        "log.klog: not supported yet, it has no effect",
    )


def test_null_is_as_if_not_given() -> None:
    spec: dict[str, Any] = RESERVED | {
        "pinCPU": None,
        "agent": None,
        "availableResources": {"cpu": None},
    }
    assert from_spec(spec, "here") == from_spec(RESERVED, "here")


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        ("[]", [f"a list (0 entries) is not a document: {WANTED}"]),
        ("", [f"the file is empty: {WANTED}"]),
        ("a: [", ["line 2, column 1: a value is missing, or a bracket is not closed"]),
        (b"\xff", ["the text is not UTF-8 (at position 0)"]),
        (
            "kind: x\nmetadata: 1\nspecs: 1\nspec: {reservedResources: {cpu: 1}}",
            [
                "apiVersion: missing: it has to be config.nri/v1alpha1",
                "line 1, column 1: kind: 'x' is not TopologyAwarePolicy",
                "line 2, column 1: metadata: 1 is not a map",
                "line 3, column 1: specs: unknown field; did you mean 'spec'?",
            ],
        ),
        (
            HEAD + "spec: {reservedResources: {cpu: 1}}\npinCPU: true",
            ["line 5, column 1: pinCPU: unknown field; settings belong below `spec`"],
        ),
        (
            "apiVersion: config.nri/v1alpha1\nkind: ClusterPlacement\nspec: {topologies: []}",
            [
                (
                    "line 2, column 1: kind: 'ClusterPlacement' is not TopologyAwarePolicy: these"
                    " are the cluster's settings; `nri-policy cluster tree --settings` reads them"
                )
            ],
        ),
        (
            HEAD + "spec: [a]",
            [
                (
                    "line 4, column 1: spec: a list (1 entry) is not a map: write NAME: VALUE,"
                    " without '-'"
                )
            ],
        ),
        (
            HEAD + "spec: {reservedResources: {cpu: 1}, pinCPU: 1}",
            ["line 4, column 37: spec.pinCPU: 1 is not true or false"],
        ),
    ],
)
def test_a_bad_document_is_refused(text: str | bytes, problems: list[str]) -> None:
    with pytest.raises(SettingsError) as caught:
        load(text, "/etc/nri-policy/config.yaml")
    assert [str(problem) for problem in caught.value.problems] == problems
    assert str(caught.value).startswith("/etc/nri-policy/config.yaml: ")


def test_a_single_error_stands_on_one_line() -> None:
    error = SettingsError("f.yaml", (Problem("spec.a", "unknown field"),))
    assert str(error) == "f.yaml: spec.a: unknown field"


def test_an_error_names_the_line_of_the_field_or_of_what_it_is_missing_in() -> None:
    text = (
        f"{HEAD}spec:\n  log: {{debug: 5}}\n  reservedResources:\n    memory: x\n  'a.b': 1\n"
        "  agent: &a {nodeResourceTopology: 7}\n"
    )
    with pytest.raises(SettingsError) as caught:
        load(text, "f.yaml")
    places = {each.path: each.mark for each in caught.value.problems}
    assert places == {
        "spec.'a.b'": (8, 3),
        "spec.log.debug": (5, 9),
        "spec.reservedResources.cpu": (6, 3),
        "spec.reservedResources.memory": (7, 5),
        "spec.agent.nodeResourceTopology": (9, 14),
    }


def test_settings_that_come_from_no_text_have_no_lines() -> None:
    with pytest.raises(SettingsError) as caught:
        from_spec({"pinCPU": 1, "reservedResources": {"cpu": 1}}, "an object")
    assert str(caught.value) == "an object: pinCPU: 1 is not true or false"


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (
            "apiVersion: v1\nkind: ConfigMap\ndata: {config.yaml: x}",
            "the text of its key config.yaml",
        ),
        ("kind: ConfigMap", "the text of its key data"),
        ("kind: BalloonsPolicy\nspec: {}", "docs/migration.md says what replaces balloons"),
        (
            "kind: KubeletConfiguration\ncpuManagerPolicy: static",
            "docs/migration.md has a table of what replaces its CPU, memory and topology managers",
        ),
        ("image: {tag: x}\nconfig: {reservedResources: {cpu: 1}}", "values of the Helm chart"),
    ],
)
def test_what_is_given_by_mistake_is_recognized(text: str, what: str) -> None:
    with pytest.raises(SettingsError) as error:
        load(text, "here")
    (problem,) = error.value.problems
    assert what in problem.text


def test_one_document_is_expected() -> None:
    with pytest.raises(SettingsError) as error:
        load(f"{HEAD}---\n{HEAD.replace('default', 'group.a')}", "here")
    assert str(error.value) == (
        "here: line 4, column 1: a second document starts here; one is expected."
        " `config check` checks each; use one, in a file of its own"
    )


def test_the_sample_for_several_tenants_lets_none_onto_exclusive_cpus_of_others() -> None:
    settings = load((SAMPLE.parent / "tenants.yaml").read_bytes(), "sample")
    assert not any(glob.matches("default") for glob in settings.preserve_namespaces)
    assert settings.preserve is Preserve.UNOWNED
