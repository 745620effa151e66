"""How amounts of CPU and sets of ids read, in every table, picture and sentence."""

from __future__ import annotations

from itertools import pairwise

from nri_policy.foundation.cpuset import CPUSet
from nri_policy.foundation.units import format_cpu
from nri_policy.workload.request import Sort

_SHORTEST_STRIDE = 3  # ids; the list of fewer is as short


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


def format_cpus(cpus: CPUSet) -> str:
    """Return a set of ids as people read it: `0-3,8`; interleaved ids with their step: `0-110:2`.

    A set of one step becomes a stride; any other one is in the kernel's list format.
    """
    ids = list(cpus)
    steps = {after - before for before, after in pairwise(ids)}
    if len(ids) > _SHORTEST_STRIDE and len(steps) == 1 and steps != {1}:
        return f"{ids[0]}-{ids[-1]}:{steps.pop()}"
    return str(cpus)
