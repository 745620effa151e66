"""Occupants: containers and what they hold, and what happened to them between two pictures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from nri_policy.cpuset import CPUSet
from nri_policy.units import format_cpu
from nri_policy.wording import counted

_LONGEST_LIST = 20  # characters of CPUs in a change


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupant:
    """A container and what it holds."""

    name: str  # namespace/pod/container
    qos: str
    sort: str  # normal, reserved, preserve
    pool: str
    cpus: CPUSet  # where it may run; empty where that is not the policy's business
    exclusive: CPUSet  # booked for it; more than `cpus` shows where hyperthreads are hidden
    isolated: CPUSet  # of the exclusive ones
    shared: int  # milli-CPU
    mems: CPUSet  # node ids
    change: str = ""  # what happened to it since the earlier scene, in a few words

    @property
    def short(self) -> str:
        """The name without the namespace `default`."""
        return self.name.removeprefix("default/")

    @property
    def amount(self) -> str:
        """The exclusive CPUs and shared milli-CPU; 0 is a share for who has nothing else."""
        if self.sort == "preserve":
            return "preserved"
        amounts = []
        if self.exclusive:
            amounts.append(f"{len(self.exclusive)}{' isolated' if self.isolated else ''}")
        if self.shared or not self.exclusive:
            reserved = " reserved" if self.sort == "reserved" else ""
            amounts.append(format_cpu(self.shared) + reserved)
        return " + ".join(amounts)


def occupant(name: str, fields: Mapping[str, Any]) -> Occupant:
    """Return the container that has a place, from its document."""
    return Occupant(
        name=name,
        qos=fields["qos"],
        sort=fields["sort"],
        pool=fields["pool"],
        cpus=CPUSet.parse(fields["cpus"]),
        exclusive=CPUSet.parse(fields["exclusive"]),
        isolated=CPUSet.parse(fields["isolated"]),
        shared=fields["shared_milli"],
        mems=CPUSet.parse(fields["mems"]),
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
    return f"CPU {text}" if len(text) <= _LONGEST_LIST else counted(len(cpus), "CPU")
