"""What CPU classes come to on the CPUs of a machine."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct

from nri_policy.foundation.cpuset import CPUSet
from nri_policy.hardware.power import Power
from nri_policy.settings import CPUClass
from nri_policy.tuning.cpu_classes import ClassAssignment, find_wishes
from nri_policy.tuning.items import Item, Kind


class CPUClassReport(Struct, frozen=True, kw_only=True):
    """What a class sets on some CPUs, if these are in no other class."""

    name: str
    cpus: CPUSet
    values: Mapping[str, str]  # by attribute; frequencies in kHz, resume_latency in µs


def cpu_class_reports(
    classes: Iterable[CPUClass], cpus: CPUSet, power: Power
) -> tuple[CPUClassReport, ...]:
    """Return what each class sets on some *cpus*, those with the same values together."""
    reports = []
    for each in classes:
        wishes = find_wishes([ClassAssignment(given=each, cpus=cpus, origin=each.name)], power, ())
        values: defaultdict[int, dict[str, str]] = defaultdict(dict)
        for item, wish in wishes.items.items():
            for cpu in _cpus_of(item, power) & cpus:
                name = f"uncore_{item.attribute}" if item.kind is Kind.UNCORE else item.attribute
                values[cpu][name] = wish.value
        reports += [
            CPUClassReport(name=each.name, cpus=alike, values=same)
            for alike, same in _grouped(values)
        ]
    return tuple(reports)


def _cpus_of(item: Item, power: Power) -> CPUSet:
    if item.kind is Kind.CPU:
        return CPUSet([int(item.id)])
    if item.kind is Kind.UNCORE:
        return next(die.cpus for die in power.uncore if die.id == item.id)
    return next(policy.cpus for policy in power.policies if str(policy.id) == item.id)


def _grouped(values: Mapping[int, dict[str, str]]) -> Iterator[tuple[CPUSet, dict[str, str]]]:
    groups: dict[tuple[tuple[str, str], ...], list[int]] = {}
    for cpu in sorted(values):
        groups.setdefault(tuple(values[cpu].items()), []).append(cpu)
    for key, cpus in groups.items():
        yield CPUSet(cpus), dict(key)
