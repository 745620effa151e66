"""How a container's amount of CPU reads, in every table, picture and sentence."""

from __future__ import annotations

from nri_policy.units import format_cpu
from nri_policy.workload.request import Sort


def cpu_amount(sort: Sort, exclusive: int, shared_milli: int, *, isolated: bool = False) -> str:
    """Return exclusive CPUs and shared milli-CPU: `2 + 500m`, `4 isolated`, `100m reserved`.

    One without an amount has a share only: `0`. `preserved`: the policy leaves its CPUs alone.
    """
    if sort is Sort.PRESERVE:
        return "preserved"
    amounts = [f"{exclusive}{' isolated' if isolated else ''}"] if exclusive else []
    if shared_milli or not exclusive:
        reserved = " reserved" if sort is Sort.RESERVED else ""
        amounts.append(f"{format_cpu(shared_milli)}{reserved}")
    return " + ".join(amounts)
