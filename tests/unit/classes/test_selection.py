"""The classes of a container: what selects them, and which values it cannot get."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from nri_policy.classes import (
    Equipment,
    IOPriority,
    Origin,
    RDTGroup,
    Scheduler,
    explain_unserved,
    select_classes,
)
from nri_policy.classes.container_classes import Classes
from nri_policy.manifests.quality_of_service import QoS
from nri_policy.settings import IOClass, SchedulingFlag, SchedulingPolicy, Settings
from nri_policy.workload.annotations import AnnotationError
from nri_policy.workload.pod import Container
from nri_policy.workload.preferences import preferences
from nri_policy.workload.request import request_of
from tests.support import nodes

KEY = "scheduling-class.resource-policy.nri.io"
CLASSES = [
    {"name": "calm", "policy": "batch", "nice": 5, "ioClass": "be", "ioPriority": 7},
    {"name": "nice", "nice": 10},
    {"name": "flagged", "flags": ["reset-on-fork"]},
    {"name": "quiet", "ioClass": "idle", "ioPriority": 3},
    {"name": "fast", "policy": "fifo", "priority": 10},
    {
        "name": "due",
        "policy": "deadline",
        "flags": ["reset-on-fork"],
        "runtime": "1ms",
        "deadline": "5ms",
    },
    {"name": "telco", "policy": "rr", "priority": 1, "allowedNamespaces": ["telco-*"]},
]


def settings(**spec: Any) -> Settings:
    return nodes.settings(**({"schedulingClasses": CLASSES} | spec))


def of(
    container: Container,
    given: Settings,
    equipment: Equipment = Equipment(),  # noqa: B008
) -> Classes | None:
    wishes = preferences(container.pod.annotations, container.name)
    return select_classes(
        given, equipment, container, request_of(container, wishes, given, 1 << 30)
    )


def annotated(value: str, form: str = "/pod", **options: Any) -> Container:
    annotations = options.pop("annotations", {}) | {f"{KEY}{form}": value}
    return nodes.container(500, **options, annotations=annotations)


def scheduler(container: Container, given: Settings) -> Scheduler | None:
    classes = of(container, given)
    assert classes is not None
    assert classes.scheduling is not None
    return classes.scheduling.scheduler


def test_a_container_without_a_class_has_nothing() -> None:
    assert of(nodes.container(500), settings()) is None


def test_a_class_sets_policy_nice_and_priority_of_io() -> None:
    classes = of(annotated("calm"), settings())
    assert classes is not None
    assert classes.scheduling is not None
    assert classes.scheduling.scheduler == Scheduler(policy=SchedulingPolicy.BATCH, nice=5)
    assert classes.scheduling.io_priority == IOPriority(io_class=IOClass.BE, level=7)
    assert not classes.lacking


def test_nice_or_flags_alone_are_those_of_policy_other() -> None:
    """With the peer such a class has no effect (scheduling F2)."""
    assert scheduler(annotated("nice"), settings()) == Scheduler(
        policy=SchedulingPolicy.OTHER, nice=10
    )
    flagged = scheduler(annotated("flagged"), settings())
    assert flagged == Scheduler(
        policy=SchedulingPolicy.OTHER, flags=(SchedulingFlag.RESET_ON_FORK,)
    )


def test_io_alone_leaves_the_policy_alone_and_idle_has_no_level() -> None:
    classes = of(annotated("quiet"), settings())
    assert classes is not None
    assert classes.scheduling is not None
    assert classes.scheduling.scheduler is None
    assert classes.scheduling.io_priority == IOPriority(io_class=IOClass.IDLE)


def test_the_tightest_word_counts() -> None:
    given = settings(
        namespaceSchedulingClasses={"ci": "nice"}, podQoSSchedulingClasses={"Guaranteed": "quiet"}
    )

    def named(container: Container) -> tuple[str, Origin] | None:
        classes = of(container, given)
        if classes is None or classes.scheduling is None:
            return None
        return classes.scheduling.name, classes.scheduling.origin

    both = annotated("flagged", "", annotations={f"{KEY}/container.c0": "calm"}, namespace="ci")
    assert named(both) == ("calm", Origin.ANNOTATION)
    assert named(annotated("flagged", "", namespace="ci")) == ("flagged", Origin.ANNOTATION)
    assert named(nodes.container(500, namespace="ci")) == ("nice", Origin.NAMESPACE)
    assert named(nodes.container(500)) == ("quiet", Origin.QOS)
    assert named(nodes.container(500, qos=QoS.BURSTABLE)) is None


def refusal(container: Container, given: Settings, equipment: Equipment | None = None) -> str:
    with pytest.raises(AnnotationError) as caught:
        of(container, given, equipment or Equipment())
    return str(caught.value)


def test_an_unknown_class_is_an_error_with_the_one_that_was_meant() -> None:
    """With the peer it is a line in a log, and the container runs without (scheduling F4)."""
    assert refusal(annotated("clam"), settings()) == (
        "annotation scheduling-class.resource-policy.nri.io/pod: 'clam' is not one of"
        " schedulingClasses (calm, nice, flagged, quiet, fast, due, telco);"
        " did you mean 'calm'?"
    )
    assert "(there are none)" in refusal(annotated("calm"), nodes.settings())


def test_a_deadline_is_for_containers_that_are_not_pinned() -> None:
    assert "cpu.preserve" in refusal(annotated("due"), settings())
    due = Scheduler(
        policy=SchedulingPolicy.DEADLINE,
        flags=(SchedulingFlag.RESET_ON_FORK,),
        runtime=1_000_000,
        deadline=5_000_000,
        period=5_000_000,
    )
    assert scheduler(annotated("due"), settings(pinCPU=False)) == due
    preserved = {"cpu.preserve.resource-policy.nri.io/pod": "true"}
    assert scheduler(annotated("due", annotations=preserved), settings()) == due
    unowned = settings(preserve="unowned")
    assert "is pinned" in refusal(annotated("due", annotations=preserved), unowned)


def test_a_kernel_that_gives_cgroups_no_realtime_budget_refuses() -> None:
    equipment = Equipment(no_realtime="no budget: EPERM")
    assert "no budget: EPERM" in refusal(annotated("fast"), settings(), equipment)
    classes = of(annotated("calm"), settings(), equipment)
    assert classes is not None
    assert not classes.lacking


def test_a_class_may_be_for_some_namespaces_only() -> None:
    assert "it is for other namespaces (telco-*)" in refusal(annotated("telco"), settings())
    assert scheduler(annotated("telco", namespace="telco-1"), settings()) is not None


def test_a_class_by_default_refuses_nobody() -> None:
    for name, equipment in (
        ("due", Equipment()),
        ("telco", Equipment()),
        ("fast", Equipment(no_realtime="no budget")),
    ):
        classes = of(
            nodes.container(500),
            settings(podQoSSchedulingClasses={"guaranteed": name}),
            equipment,
        )
        assert classes is not None
        assert classes.scheduling is not None
        assert classes.scheduling.scheduler is None
        assert len(classes.lacking) == 1


OLD = Equipment(no_scheduler="runtime too old: x", no_io_priority="runtime too old: y")


def test_a_runtime_that_is_too_old_lets_a_container_run_without() -> None:
    classes = of(annotated("calm"), settings(), OLD)
    assert classes is not None
    assert classes.scheduling is not None
    assert (classes.scheduling.scheduler, classes.scheduling.io_priority) == (None, None)
    assert classes.lacking == (
        "scheduling class calm: runtime too old: x",
        "scheduling class calm: runtime too old: y",
    )


def test_what_the_runtime_cannot_do_is_refused_where_the_settings_say_so() -> None:
    strict = settings(unsupportedAnnotations="refuse")
    assert "runtime too old: x; runtime too old: y" in refusal(annotated("calm"), strict, OLD)
    half = Equipment(no_scheduler="runtime too old: x")
    assert of(annotated("quiet"), strict, half) is not None, "it asks for nothing else"


def test_a_realtime_class_on_shared_cpus_is_remarked_on() -> None:
    classes = of(annotated("fast"), settings())
    assert classes is not None
    assert classes.notes == ("scheduling class fast is a real-time one: it can starve its pool",)
    whole = nodes.container(2000, annotations={f"{KEY}/pod": "fast"})
    classes = of(whole, settings())
    assert classes is not None
    assert not classes.notes


CPU_KEY = "cpu-class.resource-policy.nri.io"


def test_a_cpu_class_of_a_pod_is_not_for_containers_that_share_cpus() -> None:
    given = settings(cpuClasses=[{"name": "quick"}], sharedPoolCPUClass="quick")
    shares = nodes.container(500, annotations={f"{CPU_KEY}/pod": "quick"})
    assert of(shares, given) is None
    own = nodes.container(500, annotations={f"{CPU_KEY}/container.{shares.name}": "quick"})
    assert "only exclusive CPUs have a class" in refusal(own, given)


def test_a_cpu_class_is_only_for_its_namespaces() -> None:
    classes = [{"name": "quick", "allowedNamespaces": ["telco-*"]}]
    given = settings(cpuClasses=classes, sharedPoolCPUClass="quick")
    asked = nodes.container(2000, annotations={f"{CPU_KEY}/pod": "quick"})
    assert "it is for other namespaces (telco-*)" in refusal(asked, given)
    telco = replace(asked, pod=replace(asked.pod, namespace="telco-1"))
    assert of(telco, given) is None, "its CPUs have the class"


IO_KEY = "blockioclass.resource-policy.nri.io/pod"


def io_settings(**blockio: Any) -> Settings:
    return nodes.settings(control={"blockio": {"enable": True, **blockio}})


def test_a_class_of_io_that_is_not_defined_is_passed_on() -> None:
    classes = of(nodes.container(500, annotations={IO_KEY: "gold"}), io_settings())
    assert classes is not None
    assert classes.blockio is not None
    assert classes.blockio.passed_on
    assert "left to the runtime" in classes.notes[0]


def test_without_cgroup_v2_a_class_of_io_is_passed_on() -> None:
    given = io_settings(classes={"gold": [{"Weight": 500}]})
    asked = nodes.container(500, annotations={IO_KEY: "gold"})
    classes = of(asked, given, Equipment(no_io_limits="this host has no cgroup v2"))
    assert classes is not None
    assert classes.blockio is not None
    assert classes.blockio.passed_on
    assert not classes.limits
    classes = of(asked, given, Equipment(weights=("io.weight",)))
    assert classes is not None
    assert classes.limits == {"io.weight": "default 4950"}


def test_qos_is_a_class_of_io_where_the_settings_want_that() -> None:
    asked = nodes.container(500)
    assert of(asked, io_settings()) is None
    cases: list[tuple[dict[str, Any], bool]] = [
        ({}, True),
        ({"Guaranteed": []}, True),
        ({"Burstable": []}, False),
    ]
    for classes, expected in cases:
        given = io_settings(usePodQoSAsDefaultClass=True, classes=classes)
        assert (of(asked, given) is not None) is expected


def test_while_control_is_off_a_class_of_io_has_no_effect_and_a_note_says_so() -> None:
    classes = of(nodes.container(500, annotations={IO_KEY: "gold"}), nodes.settings())
    assert classes is not None
    assert classes.blockio is not None
    assert not classes.blockio.passed_on
    assert not classes.limits
    assert classes.notes == ("block I/O class gold has no effect: control.blockio.enable is false",)
    by_qos = nodes.settings(control={"blockio": {"usePodQoSAsDefaultClass": True}})
    assert of(nodes.container(500), by_qos) is None


def test_what_the_kernel_ignores_of_a_class_is_remarked_on() -> None:
    ignored = [{"name": "lazy", "policy": "idle", "nice": 5, "ioClass": "idle", "ioPriority": 7}]
    classes = of(annotated("lazy"), settings(schedulingClasses=ignored))
    assert classes is not None
    assert classes.notes == (
        "scheduling class lazy: nice has no effect with policy idle",
        "scheduling class lazy: ioPriority has no effect with ioClass idle",
    )


RDT_KEY = "rdtclass.resource-policy.nri.io"
NO_RDT = Equipment(no_rdt="resctrl is not mounted")
GROUPS = Equipment(rdt_groups=("gold",))


def rdt_of(
    equipment: Equipment, container: Container, *defined: str, **control: Any
) -> RDTGroup | None:
    classes: dict[str, Any] = {name: {} for name in defined}
    partitions = {"all": {"classes": classes}} if defined else {}
    given = {"rdt": {"enable": True, "partitions": partitions, **control}}
    strict = {"unsupportedAnnotations": "refuse"} if equipment is STRICT else {}
    found = of(container, nodes.settings(control=given, **strict), equipment)
    return None if found is None else found.rdt


STRICT = Equipment(rdt_groups=(), no_scheduler="")


@pytest.mark.parametrize("name", [".", ".."])
def test_a_folder_that_no_group_can_be_is_no_rdt_class(name: str) -> None:
    asked = nodes.container(500, annotations={f"{RDT_KEY}/pod": name})
    assert "the name of a class, which is a folder in resctrl" in refusal(asked, nodes.settings())


def test_an_rdt_class_is_annotated_or_that_of_the_qos() -> None:
    gold = nodes.container(500, annotations={f"{RDT_KEY}/pod": "gold"})
    plain = nodes.container(500)
    assert rdt_of(GROUPS, gold) == RDTGroup(name="gold", origin=Origin.ANNOTATION, group="gold")
    assert rdt_of(GROUPS, plain) is None
    qos = {"usePodQoSAsDefaultClass": True}
    found = rdt_of(Equipment(rdt_groups=("Guaranteed",)), plain, **qos)
    assert found == RDTGroup(name="Guaranteed", origin=Origin.QOS, group="Guaranteed")
    assert rdt_of(GROUPS, plain, "gold", **qos) is None, "the settings define no such class"
    root = nodes.container(500, annotations={RDT_KEY: ""})
    found = rdt_of(GROUPS, root, **qos)
    assert found == RDTGroup(name="system/default", origin=Origin.ANNOTATION, group="")


def test_an_rdt_class_is_only_for_its_namespaces() -> None:
    """The peer has no such limit: it dropped that of goresctrl (RDT F6)."""
    gold = {"all": {"classes": {"gold": {"allowedNamespaces": ["telco-*"]}}}}
    given = nodes.settings(control={"rdt": {"enable": True, "partitions": gold}})
    asked = nodes.container(500, annotations={f"{RDT_KEY}/pod": "gold"})
    with pytest.raises(AnnotationError, match=r"it is for other namespaces \(telco-\*\)"):
        of(asked, given, GROUPS)
    telco = replace(asked, pod=replace(asked.pod, namespace="telco-1"))
    found = of(telco, given, GROUPS)
    assert found is not None
    assert found.rdt == RDTGroup(name="gold", origin=Origin.ANNOTATION, group="gold")
    own = {"all": {"classes": {"Guaranteed": {"allowedNamespaces": ["telco-*"]}}}}
    rdt = {"enable": True, "partitions": own, "usePodQoSAsDefaultClass": True}
    given = nodes.settings(control={"rdt": rdt})
    found = of(nodes.container(500), given, Equipment(rdt_groups=("Guaranteed",)))
    assert found is not None
    assert found.rdt is not None
    assert found.rdt.group is None, "a default class is left out"
    (why,) = found.rdt.lacking
    assert "it is for other namespaces" in why


def test_an_rdt_class_that_is_off_or_impossible_is_not_passed_on() -> None:
    gold = nodes.container(500, annotations={f"{RDT_KEY}/pod": "gold"})
    found = rdt_of(GROUPS, gold, enable=False)
    assert found is not None
    assert found.group is None
    assert found.notes == ("RDT class gold has no effect: control.rdt.enable is false",)
    found = rdt_of(NO_RDT, gold)
    assert found is not None
    assert found.group is None
    assert found.lacking == ("RDT class gold: resctrl is not mounted",)
    with pytest.raises(AnnotationError, match="possible here: it has no group"):
        rdt_of(STRICT, gold, "gold")
    with pytest.raises(AnnotationError, match=r"an RDT class of this node \(there are none\)"):
        rdt_of(Equipment(rdt_groups=()), gold)
    assert rdt_of(Equipment(), gold) is not None, "where nothing is known of the host"


BALANCING = "cpu-load-balancing.crio.io"
QUOTA = "cpu-quota.crio.io"


@pytest.mark.parametrize(
    ("spec", "key", "value", "said"),
    [
        ({}, BALANCING, "disable", "use the annotation exclusive-partition or the setting"),
        ({"exclusivePartitions": "root"}, BALANCING, "disable", "use the annotation"),
        ({"exclusivePartitions": "isolated"}, BALANCING, "disable", ""),
        ({}, BALANCING, "enable", ""),
        ({}, QUOTA, "disable", "needs none: containers that have only exclusive CPUs"),
        ({"exclusiveQuota": "keep"}, QUOTA, "disable", "because exclusiveQuota is keep"),
        ({"pinCPU": False}, QUOTA, "disable", "because pinCPU is false"),
        ({}, QUOTA, "enable", ""),
    ],
)
def test_annotations_of_crio_that_are_never_read_say_what_replaces_them(
    spec: dict[str, Any], key: str, value: str, said: str
) -> None:
    pod = nodes.container(2000, annotations={key: value}).pod
    found = explain_unserved(nodes.settings(**spec), Equipment(), pod)
    assert len(found) == bool(said)
    assert all(f"annotation {key} has no effect here" in each and said in each for each in found)
    assert explain_unserved(nodes.settings(**spec), Equipment(crio=True), pod) == ()
