"""What containers hold, in the cells of tables; made from the documents that the daemon gives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.text import Text

from nri_policy.cli.pieces import Pieces, cpu_list, path
from nri_policy.cpuset import CPUSet
from nri_policy.units import format_cpu


def short(name: str) -> str:
    """Return the name of a pod or container without the namespace `default`."""
    return name.removeprefix("default/")


def amount(fields: Mapping[str, Any]) -> str:
    """Return the exclusive CPUs and shared milli-CPU of a container."""
    if fields["pool"] is None:
        return "-"
    exclusive = len(CPUSet.parse(fields["exclusive"]))
    parts = [f"{exclusive}{' isolated' if fields['isolated'] else ''}"] if exclusive else []
    if fields["shared_milli"] or not exclusive:
        parts.append(format_cpu(fields["shared_milli"]))
    return " + ".join(parts)


def cells(name: str, fields: Mapping[str, Any]) -> tuple[Pieces | Text, ...]:
    """Return name, amount, cpuset, memory nodes and pool of a container."""
    return (
        path(short(name)),
        Text(amount(fields)),
        cpu_list(CPUSet.parse(fields["cpus"])),
        cpu_list(CPUSet.parse(fields["mems"])),
        path(fields["pool"] or "-"),
    )


HEADINGS = ("container", "own + shared", "cpuset", "mems", "pool")
