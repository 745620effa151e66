"""Occupants: containers and what they hold, and what happened to them between two pictures."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from nri_policy.foundation.cpuset import EMPTY, CPUSet
from nri_policy.foundation.units import format_cpu
from nri_policy.foundation.wording import counted
from nri_policy.report import ContainerReport, cpu_amount
from nri_policy.workload.request import Sort

_LONGEST_LIST = 20  # characters of CPUs in a change


class Occupant(Struct, frozen=True, kw_only=True):
    """A container and what it holds."""

    name: str  # namespace/pod/container
    qos: str
    sort: Sort
    pool: str
    cpus: CPUSet  # where it may run; empty where that is not the policy's business
    exclusive: CPUSet  # booked for it; more than `cpus` shows where hyperthreads are hidden
    isolated: CPUSet  # of the exclusive ones
    shared: int  # milli-CPU
    mems: CPUSet  # node ids
    place: str = ""  # the pool, and the one that it made way from
    classes: str = ""  # their names, of scheduling and of block I/O
    room: CPUSet = EMPTY  # the CPUs of its pod's room
    partition: str = ""  # the kind of its kernel partition; empty: no partition
    change: str = ""  # since the earlier scene, in a few words

    @property
    def short(self) -> str:
        """The name without the namespace `default`."""
        return self.name.removeprefix("default/")

    @property
    def pod(self) -> str:
        """The name of its pod, with the namespace."""
        return self.name.rpartition("/")[0]

    @property
    def owner(self) -> str:
        """The name of its mark: its own, its pod's if it shares a room, or empty."""
        return self.name if self.exclusive else self.pod if self.room else ""

    @property
    def amount(self) -> str:
        """The amount of CPU."""
        return cpu_amount(self.sort, len(self.exclusive), self.shared, isolated=bool(self.isolated))


def occupant(name: str, container: ContainerReport) -> Occupant:
    """Return a container that has a place, as pictures show it."""
    return Occupant(
        name=name,
        qos=container.qos or "",
        sort=container.sort or Sort.NORMAL,
        pool=container.pool or "",
        cpus=container.cpus,
        exclusive=container.exclusive or EMPTY,
        isolated=container.isolated or EMPTY,
        shared=container.shared_milli or 0,
        mems=container.mems,
        place=container.place,
        classes=str(container.classes or ""),
        room=container.room or EMPTY,
        partition=container.partition or "",
    )


def changes(old: Occupant | None, new: Occupant) -> Iterator[str]:
    """Yield what happened to a container, in a few words each."""
    if old is None:
        yield "new"
        return
    if old.pool != new.pool:
        yield f"from {old.pool}"
    if gone := old.cpus - new.cpus:
        yield f"left {_briefly(gone)}"
    if added := new.cpus - old.cpus:
        yield f"got {_briefly(added)}"
    if old.shared != new.shared:
        yield f"shared {format_cpu(old.shared)} before"
    if old.mems != new.mems:
        yield f"mems {old.mems or 'any'} before"


def _briefly(cpus: CPUSet) -> str:
    text = str(cpus)
    if len(text) > _LONGEST_LIST:
        return counted(len(cpus), "CPU")
    return f"CPUs {text}" if len(cpus) > 1 else f"CPU {text}"
