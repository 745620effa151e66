"""Classes of containers: their names, their origins, and their effect."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec import Struct

from nri_policy.classes import BlockIOClass, Classes, RDTGroup, Scheduling, parse_limits


class ClassesReport(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The names of the classes that a container is in."""

    scheduling: str | None = None
    blockio: str | None = None
    rdt: str | None = None

    def __str__(self) -> str:
        return ", ".join(name for name in (self.scheduling, self.blockio, self.rdt) if name)


class ClassItemReport(Struct, frozen=True, kw_only=True):
    """One thing that a class gives a container."""

    kind: str  # scheduling, blockio, rdt
    name: str  # of the class
    origin: str  # annotation, namespace, QoS
    item: str  # scheduler, io_priority, a file of the cgroup
    wanted: str
    found: str | None  # in the kernel; None: not looked at
    state: str  # ok, pending, not applied, unsupported, note


def classes_report(classes: Classes | None) -> ClassesReport | None:
    """Return the names of a container's classes."""
    if classes is None:
        return None
    scheduling, blockio, rdt = classes.scheduling, classes.blockio, classes.rdt
    return ClassesReport(
        scheduling=None if scheduling is None else scheduling.name,
        blockio=None if blockio is None else blockio.name,
        rdt=None if rdt is None else rdt.name,
    )


def class_items(
    classes: Classes | None, found: Mapping[str, str]
) -> tuple[ClassItemReport, ...] | None:
    """Return what a container's classes give it, and what was *found* of that by item."""
    if classes is None:
        return None
    return tuple(_items(classes, found))


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


def _texts(kind: str, of: Scheduling | BlockIOClass | RDTGroup) -> Iterator[ClassItemReport]:
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
