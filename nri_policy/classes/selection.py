"""Desired: the classes of a container.

An annotation for a class that is impossible here is an AnnotationError. A default class (of the
namespace or QoS) that is impossible is left out. If the runtime is too old for a class, or the host
has no RDT, that is an error only with the setting `unsupportedAnnotations`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from nri_policy.classes.container_classes import (
    BlockIOClass,
    Classes,
    CPUUse,
    Origin,
    RDTGroup,
    Scheduling,
)
from nri_policy.classes.equipment import Equipment
from nri_policy.classes.io_limits import compute_limits
from nri_policy.classes.scheduler import io_priority_of, kernel_refusal, scheduler_of
from nri_policy.foundation.glob import Glob
from nri_policy.foundation.wording import did_you_mean
from nri_policy.manifests.quality_of_service import QoS
from nri_policy.settings import (
    REALTIME,
    CPUClass,
    ExclusivePartitions,
    ExclusiveQuota,
    Preserve,
    SchedulingClass,
    Settings,
    Unsupported,
)
from nri_policy.workload.annotation_values import ROOT_GROUP
from nri_policy.workload.annotations import CRIO, CRIO_BALANCING, CRIO_QUOTA, AnnotationError, Scope
from nri_policy.workload.crio_annotations import CRIOChoice, read_crio
from nri_policy.workload.pod import Container, Pod
from nri_policy.workload.request import Request, Sort


def select_classes(
    settings: Settings, equipment: Equipment, container: Container, request: Request
) -> Classes | None:
    """Return the classes of *container*; None without any class.

    Raises AnnotationError if it is annotated with a class that is impossible here.
    """
    check_cpu_class(settings, container, request)
    classes = Classes(
        scheduling=select_scheduling(settings, equipment, container, request),
        blockio=select_blockio(settings, equipment, container, request),
        rdt=select_rdt(settings, equipment, container, request),
    )
    return None if classes == Classes() else classes


def select_blockio(
    settings: Settings, equipment: Equipment, container: Container, request: Request
) -> BlockIOClass | None:
    """Return a container's class of block I/O with its limits; None if it is in none."""
    control, asked = settings.control.blockio, request.steering.blockio_class
    if asked is not None:
        name, origin = asked.name, Origin.ANNOTATION
        if not control.enable:
            note = f"block I/O class {name} has no effect: control.blockio.enable is false"
            return BlockIOClass(name=name, origin=origin, notes=(note,))
    elif (
        control.enable
        and control.qos_is_default
        and (not control.classes or container.pod.qos in control.classes)
    ):
        name, origin = container.pod.qos.value, Origin.QOS
    else:
        return None
    entries = control.classes.get(name)
    if entries is None or equipment.no_io_limits:
        hint = "" if name in control.classes else did_you_mean(name, control.classes)
        why = f"the settings do not define it{hint}" if entries is None else equipment.no_io_limits
        note = f"block I/O class {name} is left to the runtime: {why}"
        return BlockIOClass(name=name, origin=origin, passed_on=True, notes=(note,))
    limits, lacking = compute_limits(entries, equipment)
    missing = tuple(f"block I/O class {name}: {each}" for each in lacking)
    return BlockIOClass(name=name, origin=origin, limits=limits, lacking=missing)


def check_cpu_class(settings: Settings, container: Container, request: Request) -> None:
    """Raise AnnotationError if a container is annotated with a CPU class that it cannot have."""
    asked = request.steering.cpu_class
    if asked is None or not settings.pin_cpu:
        return
    if not request.exclusive:
        if asked.scope is Scope.CONTAINER:
            why = request.steering.because or "it asks for no whole CPU"
            text = f"possible for it: only exclusive CPUs have a class, and it has none ({why})"
            raise AnnotationError(asked.key, asked.name, text)
        return  # the pod's annotation means its other containers
    known = {each.name: each for each in settings.cpu_classes}
    if asked.name not in known:
        allowed = f"one of cpuClasses ({', '.join(known) or 'there are none'})"
        raise AnnotationError(asked.key, asked.name, f"{allowed}{did_you_mean(asked.name, known)}")
    allowed_namespaces = known[asked.name].allowed_namespaces
    if why := _find_other_namespaces(allowed_namespaces, container.pod.namespace):
        raise AnnotationError(asked.key, asked.name, f"possible here: {why}")


def select_cpu(settings: Settings, namespace: str, request: Request) -> CPUUse | None:
    """Return the class of a container's exclusive CPUs; None: that of shared CPUs."""
    if not settings.cpu_classes or not settings.pin_cpu:
        return None
    asked, lacking = request.steering.cpu_class, ""
    if asked is not None:
        given = _cpu_class(settings, asked.name)
        lacking = "the settings do not define it"
        allowed = None if given is None else given.allowed_namespaces
        if given is not None and not (lacking := _find_other_namespaces(allowed, namespace)):
            return CPUUse(name=asked.name, origin=Origin.ANNOTATION)
        lacking = f"CPU class {asked.name}: {lacking}"
    default = settings.exclusive_cpu_class or settings.shared_cpu_class
    assert default is not None, "settings with CPU classes must name a default class"
    return CPUUse(name=default, origin=Origin.DEFAULT, lacking=(lacking,) * bool(lacking))


def select_crio(
    settings: Settings, equipment: Equipment, container: Container, request: Request
) -> CRIOChoice | None:
    """Return what CRI-O's annotations ask for a container's exclusive CPUs; None: nothing.

    Our annotations of the same meaning come before them. Raises AnnotationError.
    """
    pod, steering = container.pod, request.steering
    if not request.exclusive or pod.annotations.keys().isdisjoint(CRIO):
        return None
    if _why_unserved(settings, equipment, pod.namespace):
        return None
    choice = read_crio(pod.annotations)
    if steering.interrupts is not None:
        choice = replace(choice, interrupts=None)
    if steering.cpu_class is not None:
        choice = replace(choice, governor=None, latency=None)
    return None if choice == CRIOChoice() else choice


def explain_unserved(settings: Settings, equipment: Equipment, pod: Pod) -> tuple[str, ...]:
    """Return remarks if a pod has annotations of CRI-O that have no effect by this policy."""
    replaced = (*_explain_replaced(settings, equipment, pod),)
    if not (keys := [key for key in CRIO if key in pod.annotations]):
        return replaced
    if why := _why_unserved(settings, equipment, pod.namespace):
        return (f"annotations {', '.join(keys)}: {why}", *replaced)
    try:
        read_crio(pod.annotations)
    except AnnotationError as error:  # of a pod that ran before these settings
        return (str(error), *replaced)
    return replaced


def _explain_replaced(settings: Settings, equipment: Equipment, pod: Pod) -> Iterator[str]:
    """Yield what takes the place of annotations of CRI-O that this policy never reads."""
    if equipment.crio:
        return  # it serves them itself
    isolated = settings.pin_cpu and settings.exclusive_partitions is ExclusivePartitions.ISOLATED
    if pod.annotations.get(CRIO_BALANCING, "enable") != "enable" and not isolated:
        yield (
            f"annotation {CRIO_BALANCING} has no effect here: use the annotation"
            " exclusive-partition or the setting exclusivePartitions"
        )
    if pod.annotations.get(CRIO_QUOTA, "enable") != "enable":
        if not settings.pin_cpu:
            why = "because pinCPU is false"
        elif settings.exclusive_quota is ExclusiveQuota.KEEP:
            why = "because exclusiveQuota is keep"
        else:
            why = "and needs none: containers that have only exclusive CPUs have no quota"
        yield f"annotation {CRIO_QUOTA} has no effect here, {why}"


def _why_unserved(settings: Settings, equipment: Equipment, namespace: str) -> str:
    """Return why CRI-O's annotations are left alone, empty if they are not."""
    if equipment.crio:
        return "CRI-O serves them itself"
    if not _any(settings.crio_annotation_namespaces, namespace):
        return f"no effect, because crioAnnotationNamespaces does not name namespace {namespace}"
    return "" if settings.pin_cpu else "no effect, because pinCPU is false"


def _cpu_class(settings: Settings, name: str) -> CPUClass | None:
    return next((each for each in settings.cpu_classes if each.name == name), None)


def _find_other_namespaces(allowed: tuple[Glob, ...] | None, namespace: str) -> str:
    """Return why a namespace may not use a class; empty if it may. None allows all namespaces."""
    if allowed is None or _any(allowed, namespace):
        return ""
    return f"it is for other namespaces ({', '.join(glob.pattern for glob in allowed) or 'none'})"


def select_rdt(
    settings: Settings, equipment: Equipment, container: Container, request: Request
) -> RDTGroup | None:
    """Return a container's RDT class; None if it is in none.

    Raises AnnotationError if it is annotated with a class that does not exist.
    """
    control, asked = settings.control.rdt, request.steering.rdt_class
    defined = control.classes
    if asked is not None:
        name, origin = asked.name, Origin.ANNOTATION
        if not control.enable:
            note = f"RDT class {name} has no effect: control.rdt.enable is false"
            return RDTGroup(name=name, origin=origin, notes=(note,))
    elif control.enable and control.qos_is_default and container.pod.qos in (defined or QoS):
        name, origin = container.pod.qos.value, Origin.QOS
    else:
        return None
    if name == ROOT_GROUP:
        return RDTGroup(name=name, origin=origin, group="")
    foreign = ""
    if name in defined:
        allowed = defined[name].allowed_namespaces
        foreign = _find_other_namespaces(allowed, container.pod.namespace)
    groups = equipment.rdt_groups
    if not foreign and ((groups is None and not equipment.no_rdt) or name in (groups or ())):
        return RDTGroup(name=name, origin=origin, group=name)
    why = foreign or equipment.no_rdt or "it has no group in /sys/fs/resctrl"
    if asked is not None:
        known = sorted({*defined, *(groups or ())})
        if name not in known and not equipment.no_rdt:
            names = ", ".join(known) or "there are none"
            text = f"an RDT class of this node ({names}){did_you_mean(name, known)}"
            raise AnnotationError(asked.key, name, text)
        if foreign or settings.unsupported_annotations is Unsupported.REFUSE:
            raise AnnotationError(asked.key, name, f"possible here: {why}")
    return RDTGroup(name=name, origin=origin, lacking=(f"RDT class {name}: {why}",))


def select_scheduling(
    settings: Settings, equipment: Equipment, container: Container, request: Request
) -> Scheduling | None:
    """Return a container's scheduling class; None if it is in none.

    Raises AnnotationError if it is annotated with a class that is impossible here.
    """
    asked, pod = request.steering.scheduling_class, container.pod
    if asked is not None:
        name, origin = asked.name, Origin.ANNOTATION
    elif pod.namespace in settings.class_of_namespace:
        name, origin = settings.class_of_namespace[pod.namespace], Origin.NAMESPACE
    elif pod.qos.lower() in settings.class_of_qos:
        name, origin = settings.class_of_qos[pod.qos.lower()], Origin.QOS
    else:
        return None
    known = {each.name: each for each in settings.scheduling_classes}
    if name not in known:
        assert asked is not None, "only an annotation can name an unknown class"
        allowed = f"one of schedulingClasses ({', '.join(known) or 'there are none'})"
        raise AnnotationError(asked.key, name, f"{allowed}{did_you_mean(name, known)}")
    given = known[name]
    unsupported = [*_list_unsupported(given, equipment)]
    pinned = settings.pin_cpu and (
        request.sort is not Sort.PRESERVE or settings.preserve is Preserve.UNOWNED
    )
    refusal = _find_refusal(given, equipment, pod.namespace, pinned=pinned)
    if asked is not None:
        strict = settings.unsupported_annotations is Unsupported.REFUSE
        if why := refusal or ("; ".join(unsupported) if strict else ""):
            raise AnnotationError(asked.key, name, f"possible here: {why}")
    lacking = tuple(
        f"scheduling class {name}: {each}" for each in [refusal] * bool(refusal) or unsupported
    )
    if refusal:
        return Scheduling(name=name, origin=origin, lacking=lacking)
    scheduler = None if equipment.no_scheduler else scheduler_of(given)
    notes = [f"scheduling class {name}: {each}" for each in given.remarks()]
    if given.policy in REALTIME and request.shares and scheduler is not None:
        notes.append(f"scheduling class {name} is a real-time one: it can starve its pool")
    return Scheduling(
        name=name,
        origin=origin,
        scheduler=scheduler,
        io_priority=None if equipment.no_io_priority else io_priority_of(given),
        lacking=lacking,
        notes=tuple(notes),
    )


def _find_refusal(
    given: SchedulingClass, equipment: Equipment, namespace: str, *, pinned: bool
) -> str:
    """Return why a container cannot be in a class; empty if it can."""
    if why := _find_other_namespaces(given.allowed_namespaces, namespace):
        return why
    scheduler = scheduler_of(given)
    if scheduler is None or equipment.no_scheduler:
        return ""
    return kernel_refusal(scheduler, pinned=pinned, no_realtime=equipment.no_realtime)


def _any(globs: Iterable[Glob], text: str) -> bool:
    return any(glob.matches(text) for glob in globs)


def _list_unsupported(given: SchedulingClass, equipment: Equipment) -> Iterator[str]:
    """Yield why the runtime cannot set parts of a class."""
    if scheduler_of(given) is not None and equipment.no_scheduler:
        yield equipment.no_scheduler
    if io_priority_of(given) is not None and equipment.no_io_priority:
        yield equipment.no_io_priority
