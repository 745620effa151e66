"""What containers hold, in the cells of tables; made from documents."""

from __future__ import annotations

from rich.text import Text

from nri_policy.cli.terminal.breakable_text import BreakableText, cpu_list, path
from nri_policy.foundation.cpuset import EMPTY
from nri_policy.foundation.units import format_cpu
from nri_policy.report import ContainerReport, cpu_amount


def short(name: str) -> str:
    """Return the name of a pod or container without the namespace `default`."""
    return name.removeprefix("default/")


def amount(container: ContainerReport) -> str:
    """Format a container's CPU amount; `1 of 2` if the request is larger than the grant."""
    if container.sort is None:
        return "-"
    asked = container.requested_milli
    has = cpu_amount(
        container.sort,
        len(container.exclusive or ()),
        container.shared_milli or 0,
        isolated=bool(container.isolated),
    )
    return has if asked is None else f"{has} of {format_cpu(asked)}"


def cells(name: str, container: ContainerReport) -> tuple[BreakableText | Text, ...]:
    """Return the cells below HEADINGS."""
    return (
        path(short(name)),
        Text(container.qos or "-"),
        Text(amount(container)),
        cpu_list(container.exclusive or EMPTY),
        cpu_list(container.cpus),
        cpu_list(container.mems),
        path(container.place or "-"),
    )


HEADINGS = ("container", "QoS", "amount", "exclusive", "cpuset", "mems", "pool")
DISPENSABLE = ("QoS", "mems", "pool", "amount")  # the least important first
