"""Classes of containers: their names, their origins, and their effect."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct
from msgspec.structs import replace

from nri_policy.classes import (
    BlockIOClass,
    Classes,
    CPUUse,
    Origin,
    RDTGroup,
    Scheduling,
    parse_limits,
)
from nri_policy.tuning.protocol import Tunable
from nri_policy.workload.annotation_values import InterruptChoice

_NOTHING_SET = "nothing is set for it on this machine"


class ClassesReport(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The names of the classes that a container is in."""

    scheduling: str | None = None
    blockio: str | None = None
    rdt: str | None = None
    cpu: str | None = None
    irq: str | None = None  # what its annotation does with interrupts: claim, mask, ...

    def __str__(self) -> str:
        names = (self.scheduling, self.blockio, self.rdt, self.cpu, self.irq and f"irq {self.irq}")
        return ", ".join(name for name in names if name)


class ClassItemReport(Struct, frozen=True, kw_only=True):
    """One thing that a class gives a container."""

    kind: str  # scheduling, blockio, rdt, cpu, irq
    name: str  # of the class; without one, the annotation's
    origin: str  # annotation, namespace, QoS, default
    item: str  # scheduler, io_priority, a file of the cgroup
    wanted: str
    found: str | None  # in the kernel; None: not looked at
    state: str  # ok, pending, not applied, contested, unsupported, note; may say why


def classes_report(
    classes: Classes | None, interrupts: InterruptChoice | None
) -> ClassesReport | None:
    """Return the names of a container's classes, and what it does with *interrupts*."""
    irq = None if interrupts is None else _summarize(interrupts)
    if classes is None:
        return None if irq is None else ClassesReport(irq=irq)
    scheduling, blockio, rdt = classes.scheduling, classes.blockio, classes.rdt
    # a class that is neither set here nor given to the runtime has no effect, as its note says
    if blockio is not None and blockio.notes and not blockio.passed_on:
        blockio = None
    if rdt is not None and rdt.group is None:
        rdt = None
    report = ClassesReport(
        scheduling=None if scheduling is None else scheduling.name,
        blockio=None if blockio is None else blockio.name,
        rdt=None if rdt is None else rdt.name,
        cpu=None if classes.cpu is None else classes.cpu.name,
        irq=irq,
    )
    return None if report == ClassesReport() else report


def _summarize(choice: InterruptChoice) -> str:
    """Return what a container does with interrupts, in the annotation's words."""
    match choice.claim, choice.mask:
        case (), ("*",):
            return "isolate"
        case ("*",), ():
            return "sink"
        case claim, mask:
            return " and ".join(["claim"] * bool(claim) + ["mask"] * bool(mask)) or "none"


def class_items(
    classes: Classes | None,
    found: Mapping[str, str],
    tunables: Iterable[Tunable] = (),
    unmet: Iterable[str] = (),
) -> tuple[ClassItemReport, ...] | None:
    """Return what a container's classes give it, beside the value that was *found*, by item.

    *tunables* come from the container's CPU class, *unmet* names the class's values not in force.
    """
    if classes is None:
        return None
    items = [*_items(classes, found)]
    if (cpu := classes.cpu) is not None:
        cpu = replace(cpu, lacking=(*cpu.lacking, *unmet))
        own = [*_cpu_items(cpu, tunables)]
        if not own and not cpu.lacking:
            cpu = replace(cpu, notes=(*cpu.notes, _NOTHING_SET))
        items += [*own, *_texts("cpu", cpu)]
    return tuple(items)


def annotation_items(
    kind: str, annotation: str, tunables: Iterable[Tunable], unmet: Iterable[str]
) -> tuple[ClassItemReport, ...]:
    """Return what an *annotation* without a class sets, and what is *unmet* of that."""
    fixed = {"kind": kind, "name": annotation, "origin": Origin.ANNOTATION.value}
    items = [
        ClassItemReport(
            **fixed,
            item=str(each.item),
            wanted=each.wished or "",
            found=each.found,
            state=_state_of(each),
        )
        for each in tunables
    ]
    texts = [*unmet] or [_NOTHING_SET] * (not items)
    notes = [
        ClassItemReport(**fixed, item="", wanted=text, found=None, state="note") for text in texts
    ]
    return (*items, *notes)


def _state_of(tunable: Tunable) -> str:
    return f"{tunable.state.value}: {tunable.why}" if tunable.why else tunable.state.value


def _cpu_items(cpu: CPUUse, tunables: Iterable[Tunable]) -> Iterator[ClassItemReport]:
    """Yield the tunables of a container's CPUs."""
    for each in tunables:
        yield ClassItemReport(
            kind="cpu",
            name=cpu.name,
            origin=cpu.origin.value,
            item=str(each.item),
            wanted=each.wished or "",
            found=each.found,
            state=_state_of(each),
        )


def _items(classes: Classes, found: Mapping[str, str]) -> Iterator[ClassItemReport]:
    scheduling, blockio = classes.scheduling, classes.blockio
    if scheduling is not None:
        for item, wanted in (
            ("scheduler", scheduling.scheduler),
            ("io_priority", scheduling.io_priority),
        ):
            if wanted is not None:
                there = found.get(item)
                # flags and the times of policy deadline cannot be read
                same = there is not None and str(wanted).startswith(there)
                yield _item("scheduling", scheduling, item, str(wanted), there, same=same)
        yield from _texts("scheduling", scheduling)
    if blockio is not None:
        for item, limits in blockio.limits.items():
            there = found.get(item)
            same = parse_limits(limits).items() <= parse_limits(there or "").items()
            yield _item("blockio", blockio, item, limits, there, same=same)
        yield from _texts("blockio", blockio)
    if (rdt := classes.rdt) is not None:
        if rdt.group is not None:
            there = found.get("group")
            yield _item("rdt", rdt, "group", rdt.name, there, same=there == rdt.name)
        yield from _texts("rdt", rdt)


def _item(  # noqa: PLR0913 - the fields
    kind: str,
    of: Scheduling | BlockIOClass | RDTGroup,
    item: str,
    wanted: str,
    found: str | None,
    *,
    same: bool,
) -> ClassItemReport:
    state = "pending" if found is None else "ok" if same else "not applied"
    return ClassItemReport(
        kind=kind,
        name=of.name,
        origin=of.origin.value,
        item=item,
        wanted=wanted,
        found=found,
        state=state,
    )


def _texts(
    kind: str, of: Scheduling | BlockIOClass | RDTGroup | CPUUse
) -> Iterator[ClassItemReport]:
    for text in (*of.lacking, *of.notes):
        yield ClassItemReport(
            kind=kind,
            name=of.name,
            origin=of.origin.value,
            item="",
            wanted=text,
            found=None,
            state="unsupported" if text in of.lacking else "note",
        )
