"""The closed list of what the tuner can be asked to set."""

from __future__ import annotations

import pytest

from nri_policy.tuning.items import MAX_VALUE, Item, Kind, check

GOOD = [
    (Kind.CPU, "0", "resume_latency", "n/a"),
    (Kind.CPU, "255", "resume_latency", "10"),
    (Kind.CPU, "3", "state12", "1"),
    (Kind.CPUFREQ, "0", "min_freq", "800000"),
    (Kind.CPUFREQ, "0", "governor", "performance"),
    (Kind.CPUFREQ, "8", "epp", "balance_power"),
    (Kind.CPUFREQ, "8", "epp", "128"),
    (Kind.UNCORE, "package_00_die_01", "max_freq", "2400000"),
    (Kind.UNCORE, "uncore03", "min_freq", "800000"),
    (Kind.IRQ, "24", "affinity", "0-3,8"),
    (Kind.IRQ, "default", "affinity", "1"),
    (Kind.IRQBALANCE, "4711", "banned", "0,24"),
    (Kind.IRQBALANCE, "4711", "banned", ""),
    (Kind.RESCTRL, "gold", "schemata", "L3:0=ff;1=ff0\nMB:0=50"),
    (Kind.RESCTRL, "gold", "schemata", ""),
]
BAD = [
    (Kind.CPU, "../0", "resume_latency", "0", "is not the id of a cpu"),
    (Kind.CPU, "01", "resume_latency", "0", "is not the id of a cpu"),
    (Kind.CPU, "0", "online", "0", "is not an attribute of a cpu"),
    (Kind.CPU, "0", "state0/disable", "0", "is not an attribute of a cpu"),
    (Kind.CPU, "0", "state0", "", "is not a value"),
    (Kind.CPU, "0\n", "state0", "1", "is not the id of a cpu"),
    (Kind.CPUFREQ, "0", "governor", "performance\n", "is not a value"),
    (Kind.CPUFREQ, "0", "min_freq", "-1", "is not a value"),
    (Kind.UNCORE, "package_0_die_0", "min_freq", "800000", "is not the id of a uncore"),
    (Kind.IRQ, "24", "affinity", "", "is not a value"),
    (Kind.IRQ, "24", "affinity", "0-", "is not a value"),
    (Kind.IRQ, "24", "affinity", "1,0", "is not a value"),
    (Kind.IRQ, "24/../25", "affinity", "0", "is not the id of a irq"),
    (Kind.IRQBALANCE, "../1", "banned", "", "is not the id of a irqbalance"),
    (Kind.IRQBALANCE, "1", "banned", "24 25", "is not a value"),
    (Kind.RESCTRL, "..", "schemata", "", "is not the id of a resctrl"),
    (Kind.RESCTRL, "info", "schemata", "", "is not the id of a resctrl"),
    (Kind.RESCTRL, "a/b", "schemata", "", "is not the id of a resctrl"),
    (Kind.RESCTRL, "gold", "tasks", "1", "is not an attribute of a resctrl"),
    (Kind.RESCTRL, "gold", "schemata", "L3:0=ff\n", "is not a value"),
    (Kind.RESCTRL, "gold", "schemata", "L3:" + "0=ff;" * MAX_VALUE + "0=ff", "is not a value"),
]


@pytest.mark.parametrize(("kind", "id_", "attribute", "value"), GOOD)
def test_what_is_on_the_list_can_be_set(kind: Kind, id_: str, attribute: str, value: str) -> None:
    check(Item(kind, id_, attribute), value)


@pytest.mark.parametrize(("kind", "id_", "attribute", "value", "why"), BAD)
def test_what_is_not_on_the_list_is_refused(
    kind: Kind, id_: str, attribute: str, value: str, why: str
) -> None:
    with pytest.raises(ValueError, match=why):
        check(Item(kind, id_, attribute), value)
