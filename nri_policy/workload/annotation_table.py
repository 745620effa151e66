"""The table of annotations: keys, accepted values, effects and texts.

Every key has the three forms of `annotations`; a few have the deprecated fourth. Unknown keys in
our domain, or a similar one, cause a warning. docs/annotations.md has the texts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any

from msgspec import Struct

from nri_policy.foundation.wording import did_you_mean, quoted
from nri_policy.hardware.machine import MemoryKind
from nri_policy.settings import ExclusivePartitions, ExclusiveQuota, FullCores, Level, Priority
from nri_policy.workload.annotation_values import (
    USUAL_HINTS,
    Asked,
    HintFilter,
    HintKind,
    InterruptChoice,
    read_boolean,
    read_class,
    read_cold_start,
    read_exclusive_partition,
    read_exclusive_quota,
    read_full_cores,
    read_hint_filter,
    read_hint_kinds,
    read_irq_affinity,
    read_level,
    read_memory_kinds,
    read_of_pod,
    read_priority,
    read_rdt_class,
)
from nri_policy.workload.annotations import DOMAIN, FoundAnnotation
from nri_policy.workload.requirements import Requirements


class Preferences(Struct, frozen=True, kw_only=True):
    """The annotations in force for a container.

    A field without an annotation is None (or False if there is no setting to fall back to), so
    "annotated" is "not None".
    """

    prefer_isolated: bool | None = None
    require_isolated: bool = False  # implies prefer_isolated
    prefer_shared: bool | None = None
    prefer_reserved: bool | None = None
    cpu_priority: Priority | None = None
    full_cores: FullCores | None = None
    distribute_cpus: bool | None = None
    exclusive_quota: ExclusiveQuota | None = None
    exclusive_partition: ExclusivePartitions | None = None
    pod_room: bool | None = None
    hide_hyperthreads: bool = False
    static_cpus: bool = False
    cpu_preserve: bool = False
    memory_preserve: bool = False
    memory_kinds: frozenset[MemoryKind] | None = None
    cold_start: float | None = None  # seconds, more than 0
    unlimited_burstable: Level | None = None
    hint_kinds: frozenset[HintKind] = USUAL_HINTS
    allow_hints: HintFilter | None = None
    deny_hints: HintFilter | None = None
    strict_hints: bool = False
    pick_by_hints: bool = False
    scheduling_class: Asked | None = None
    blockio_class: Asked | None = None
    rdt_class: Asked | None = None
    cpu_class: Asked | None = None
    interrupts: InterruptChoice | None = None
    requirements: Requirements | None = None
    notices: tuple[str, ...] = ()  # about deprecated annotations


class Annotation(Struct, frozen=True, kw_only=True):
    """A key that pods may have."""

    name: str
    steers: str  # field of Preferences
    read: Callable[
        [FoundAnnotation], Any
    ]  # returns the value for that field; raises AnnotationError
    value: str  # what is accepted, in Markdown like the next field
    help: str  # what it does
    deprecated_form: bool = False  # `DOMAIN/name` with a map of container name to value


EXCLUSIVE_PARTITION = "exclusive-partition"
POD_ROOM = "pod-room"
IRQ_AFFINITY = "irq-affinity"

ANNOTATIONS = (
    Annotation(
        name="prefer-isolated-cpus",
        steers="prefer_isolated",
        read=read_boolean,
        value="boolean",
        help=(
            "true: the container's exclusive CPUs are isolated ones (`isolcpus`), if there"
            " are enough for all of them"
        ),
        deprecated_form=True,
    ),
    Annotation(
        name="require-isolated-cpus",
        steers="require_isolated",
        read=read_boolean,
        value="boolean",
        help=(
            "true: the container's exclusive CPUs are isolated ones, and it does not start if"
            " there are too few. If a container has this annotation and"
            " `prefer-isolated-cpus`, the more specific form decides; if both forms are"
            " equally specific, this one"
        ),
    ),
    Annotation(
        name="prefer-shared-cpus",
        steers="prefer_shared",
        read=read_boolean,
        value="boolean",
        help=(
            "true: the container gets no exclusive CPUs, even if its request would get some."
            " false: it gets exclusive CPUs for the whole part of a request such as 2500m"
        ),
        deprecated_form=True,
    ),
    Annotation(
        name="prefer-reserved-cpus",
        steers="prefer_reserved",
        read=read_boolean,
        value="boolean",
        help=(
            "true: the container runs on the reserved CPUs. false: it does not, in any namespace"
        ),
        deprecated_form=True,
    ),
    Annotation(
        name="prefer-cpu-priority",
        steers="cpu_priority",
        read=read_priority,
        value="`high`, `normal`, `low`, `none`, `default`",
        help=(
            "the kind of CPUs from which its exclusive CPUs are taken, on machines with"
            " faster and slower CPUs. `none`: any kind. `default`: as the setting"
            " `defaultCPUPriority` says"
        ),
    ),
    Annotation(
        name="full-cores",
        steers="full_cores",
        read=read_full_cores,
        value="`off`, `prefer`, `require`",
        help=(
            "whether it gets whole cores, so that no other container uses the other threads"
            " of its cores. `require`: yes, or it does not start. `prefer`: yes, unless this"
            " needs a wider part of the machine. Without the annotation, the setting"
            " `fullCores` decides"
        ),
    ),
    Annotation(
        name="distribute-cpus-across-numa",
        steers="distribute_cpus",
        read=read_boolean,
        value="boolean",
        help=(
            "true: if its exclusive CPUs have to be on several NUMA nodes, they are on these as"
            " evenly as possible, for example 8 and 7; likewise on several L3 caches of a node."
            " Without the annotation, the setting `distributeCPUsAcrossNUMA` decides"
        ),
    ),
    Annotation(
        name="exclusive-quota",
        steers="exclusive_quota",
        read=read_exclusive_quota,
        value="`none`, `keep`",
        help=(
            "the CFS quota of a container that has only exclusive CPUs. `none`: it has no"
            " quota, because its CPUs already limit it. `keep`: it keeps the kubelet's quota,"
            " which can throttle it. Without the annotation, the setting `exclusiveQuota`"
            " decides"
        ),
    ),
    Annotation(
        name=EXCLUSIVE_PARTITION,
        steers="exclusive_partition",
        read=read_exclusive_partition,
        value="`off`, `root`, `isolated`",
        help=(
            "whether the kernel keeps everything else of the machine off its CPUs, if it has only"
            " exclusive ones: [kernel partitions](partitions.md). A container that asks for it is"
            " not created on a node whose kernel cannot. Without the annotation, the setting"
            " `exclusivePartitions` decides"
        ),
    ),
    Annotation(
        name=POD_ROOM,
        steers="pod_room",
        read=read_of_pod,
        value="boolean, only with `/pod` or without a scope",
        help=(
            "true: the pod gets all its CPUs together; within them some containers have"
            " exclusive CPUs, and the pod's other containers share the rest: [pods with"
            " sidecars](sidecars.md). Without the annotation, the setting `podRooms` decides"
        ),
    ),
    Annotation(
        name="hide-hyperthreads",
        steers="hide_hyperthreads",
        read=read_boolean,
        value="boolean",
        help=(
            "true: the container sees one thread of each core. No other container gets the"
            " hidden threads of its exclusive CPUs"
        ),
    ),
    Annotation(
        name="unlimited-burstable",
        steers="unlimited_burstable",
        read=read_level,
        value="`system`, `package` (or `socket`), `die`, `numa`, `l3cache`",
        help="the part of the machine that a Burstable container without a CPU limit can use",
    ),
    Annotation(
        name="cpu.preserve",
        steers="cpu_preserve",
        read=read_boolean,
        value="boolean",
        help=(
            "true: the policy does not change the container's CPUs and CPU shares, so it may run on"
            " exclusive CPUs of others; the settings `preserveNamespaces` and `preserve` limit that"
        ),
    ),
    Annotation(
        name="static-cpus",
        steers="static_cpus",
        read=read_boolean,
        value="boolean",
        help="true: once the container has its place, it is never moved",
    ),
    Annotation(
        name="memory-type",
        steers="memory_kinds",
        read=read_memory_kinds,
        value="`dram`, `pmem`, `hbm`, `mixed`, separated by commas",
        help=(
            "the kinds of memory that the container can use; `mixed` means all three. Without"
            " the annotation: `dram,pmem`"
        ),
        deprecated_form=True,
    ),
    Annotation(
        name="cold-start",
        steers="cold_start",
        read=read_cold_start,
        value="`duration: 60s`, up to `1h`",
        help="the container starts on persistent memory only, and gets DRAM after this time",
        deprecated_form=True,
    ),
    Annotation(
        name="memory.preserve",
        steers="memory_preserve",
        read=read_boolean,
        value="boolean",
        help="true: the policy does not change the container's memory nodes",
    ),
    Annotation(
        name="topologyhints",
        steers="hint_kinds",
        read=read_hint_kinds,
        value=(
            "boolean, or `mounts`, `devices`, `pod-resources`, `claims`, `all`, `none`, separated"
            " by commas"
        ),
        help="the kinds of devices and mounts that the container should be close to",
    ),
    Annotation(
        name="deny.topologyhints",
        steers="deny_hints",
        read=read_hint_filter,
        value="`{type: prefix, paths: [/dev/]}`",
        help="devices and mounts to ignore. With `type: glob`, paths are globs; without a type,"
        " prefixes",
    ),
    Annotation(
        name="allow.topologyhints",
        steers="allow_hints",
        read=read_hint_filter,
        value="the same form",
        help="devices and mounts to use, although `deny.topologyhints` names them",
    ),
    Annotation(
        name="strict.topologyhints",
        steers="strict_hints",
        read=read_boolean,
        value="boolean",
        help=(
            "true: the container does not start if it would be far from one of its devices,"
            " or get memory of another kind"
        ),
    ),
    Annotation(
        name="pick-resources-by-hints",
        steers="pick_by_hints",
        read=read_boolean,
        value="boolean",
        help=(
            "true: the container gets exclusive CPUs beside its devices, on each NUMA node in"
            " proportion to their number, and memory on the nodes of all of them"
        ),
    ),
    Annotation(
        name="scheduling-class",
        steers="scheduling_class",
        read=read_class,
        value="name of a class",
        help=(
            "the class of the setting `schedulingClasses` whose Linux scheduling policy, nice"
            " value and I/O priority the container gets: [classes](classes.md)"
        ),
    ),
    Annotation(
        name=IRQ_AFFINITY,
        steers="interrupts",
        read=read_irq_affinity,
        value="`isolate`, `sink`, or a map such as `{claim: [24], devices: ['*'], mask: ['*']}`",
        help=(
            "the interrupts that the container's exclusive CPUs must handle, and those that they"
            " must not: [tuning](tuning.md#interrupts)"
        ),
    ),
    Annotation(
        name="blockioclass",
        steers="blockio_class",
        read=read_class,
        value="name of a class",
        help=(
            "the class whose disk limits and weights the container gets, from"
            " `control.blockio.classes` or from the runtime's own file: [classes](classes.md)"
        ),
    ),
    Annotation(
        name="cpu-class",
        steers="cpu_class",
        read=read_class,
        value="name of a class",
        help=(
            "the class of the setting `cpuClasses` with the frequencies and idle states of the"
            " container's exclusive CPUs: [classes](classes.md)"
        ),
    ),
    Annotation(
        name="rdtclass",
        steers="rdt_class",
        read=read_rdt_class,
        value="name of a class",
        help=(
            "the RDT class (group of resctrl) that the container's processes are in:"
            " [classes](classes.md). `system/default` is the root group"
        ),
    ),
)
BY_NAME = {each.name: each for each in ANNOTATIONS}
AFFINITIES = frozenset({"affinity", "anti-affinity"})  # `affinity` reads them
DEPRECATED = frozenset(each.name for each in ANNOTATIONS if each.deprecated_form)

_NAMES = frozenset(BY_NAME)
_BEFORE_DOMAIN = tuple(f"{name}." for name in _NAMES)
_AFTER_DOMAIN = AFFINITIES | DEPRECATED
_FORMER_DOMAIN = "cri-resource-manager.intel.com"  # of what nri-plugins descend from
_SHOWN = 20  # warnings for one pod


def warnings(annotations: Mapping[str, str]) -> tuple[str, ...]:
    """Return a warning for each key under our domain, or one like it, that means nothing.

    Up to a bound.
    """
    return tuple(islice(_warnings(annotations), _SHOWN))


def _warnings(annotations: Mapping[str, str]) -> Iterator[str]:
    for key in annotations:
        prefix, slash, rest = key.partition("/")
        if prefix == DOMAIN:
            known, name = _AFTER_DOMAIN, rest
        elif prefix.endswith(f".{DOMAIN}"):
            known, name = _NAMES, prefix.removesuffix(f".{DOMAIN}")
            if name in known and slash and not _is_scope(rest):
                yield f"annotation {quoted(key)}: {quoted(rest)} is neither pod nor container.NAME"
        else:
            yield from _elsewhere(key, prefix, rest)
            continue
        if name.endswith(".balloons"):
            yield f"annotation {quoted(key)} has no effect: there are no balloons here; remove it"
        elif name not in known:
            hint = did_you_mean(name, known)
            yield f"annotation {quoted(key)} is unknown: there is no {quoted(name)}{hint}"


def _is_scope(rest: str) -> bool:
    """Return whether *rest*, the part of a key after the slash, is a scope."""
    return rest == "pod" or rest.startswith("container.")


def _elsewhere(key: str, prefix: str, rest: str) -> Iterator[str]:
    """Yield a warning about a key under another domain, or none, if ours may have been meant."""
    name, scope = (prefix, f"/{rest}") if _is_scope(rest) else (key, "")
    hint = did_you_mean(name, _NAMES) if scope and "." not in name else ""
    if name in _NAMES:
        hint = f"; did you mean '{name}.{DOMAIN}{scope}'?"
    if hint:
        yield f"annotation {quoted(key)} is not ours: it has no domain{hint}"
        return
    if not prefix.startswith(_BEFORE_DOMAIN) and rest not in _AFTER_DOMAIN:
        return
    names = [name for name in _NAMES if prefix.startswith(f"{name}.")]
    domains = [prefix.removeprefix(f"{name}.") for name in names]
    if rest in _AFTER_DOMAIN:
        domains.append(prefix)
    for domain in domains:
        hint = did_you_mean(domain, [DOMAIN])
        if domain == _FORMER_DOMAIN or DOMAIN.endswith(f".{domain}"):
            hint = f"; did you mean {DOMAIN!r}?"
        if hint:
            yield f"annotation {quoted(key)} is not ours: its domain is {quoted(domain)}{hint}"
            return
