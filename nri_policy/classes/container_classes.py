"""The classes of a container, and their values."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct, field

from nri_policy.classes.scheduler import IOPriority, Scheduler


class Origin(StrEnum):
    """Why a container is in a class."""

    ANNOTATION = "annotation"
    NAMESPACE = "namespace"
    QOS = "QoS"
    DEFAULT = "default"  # of the settings


class Scheduling(Struct, frozen=True, kw_only=True):
    """A scheduling class; None leaves an attribute unchanged."""

    name: str
    origin: Origin
    scheduler: Scheduler | None = None
    io_priority: IOPriority | None = None
    lacking: tuple[str, ...] = ()  # the parts that are impossible here, and why
    notes: tuple[str, ...] = ()


class BlockIOClass(Struct, frozen=True, kw_only=True):
    """A class of block I/O."""

    name: str
    origin: Origin
    limits: Mapping[str, str] = field(default_factory=dict)  # cgroup file -> contents
    passed_on: bool = False  # to the runtime, which may know the class
    lacking: tuple[str, ...] = ()  # the parts that are impossible here, and why
    notes: tuple[str, ...] = ()


class RDTGroup(Struct, frozen=True, kw_only=True):
    """An RDT class: a group of resctrl, with shares of caches and memory bandwidth."""

    name: str
    origin: Origin
    group: str | None = None  # for the runtime: empty means the root group; None: not passed on
    lacking: tuple[str, ...] = ()  # why it is impossible here
    notes: tuple[str, ...] = ()


class CPUUse(Struct, frozen=True, kw_only=True):
    """The class that a container's exclusive CPUs are in."""

    name: str
    origin: Origin
    lacking: tuple[str, ...] = ()  # why the requested class is not in force
    notes: tuple[str, ...] = ()


class Classes(Struct, frozen=True, kw_only=True):
    """The classes that a container is in."""

    scheduling: Scheduling | None = None
    blockio: BlockIOClass | None = None
    rdt: RDTGroup | None = None
    cpu: CPUUse | None = None  # by the latest settings

    @property
    def limits(self) -> Mapping[str, str]:
        """The contents of its cgroup's files, by name."""
        return {} if self.blockio is None else self.blockio.limits

    @property
    def lacking(self) -> tuple[str, ...]:
        """The parts that are impossible here, and why."""
        return tuple(text for each in self._each for text in each.lacking)

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for the container's owner."""
        return tuple(text for each in self._each for text in each.notes)

    @property
    def _each(self) -> list[Scheduling | BlockIOClass | RDTGroup | CPUUse]:
        every = (self.scheduling, self.blockio, self.rdt, self.cpu)
        return [each for each in every if each is not None]
