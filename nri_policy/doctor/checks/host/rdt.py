"""Which shares of caches and memory bandwidth this node can set, and whether the settings fit."""

from __future__ import annotations

from collections.abc import Iterator

from nri_policy.doctor.facts import Facts
from nri_policy.doctor.finding import Finding, Verdict
from nri_policy.foundation.wording import counted, some
from nri_policy.hardware.resctrl import Resctrl
from nri_policy.settings import Settings
from nri_policy.tuning.rdt import resolve


def check(facts: Facts) -> Iterator[Finding]:
    """Yield what resctrl can share here, and which settings it cannot carry out."""
    if facts.kernel is None:
        return
    settings = facts.settings if isinstance(facts.settings, Settings) else None
    enabled = settings is not None and settings.control.rdt.enable
    if facts.resctrl is None:
        yield _judge_absence(enabled=enabled, known=facts.kernel.resctrl)
        return
    verdict = Verdict.OK if enabled else Verdict.NOTE
    yield Finding("rdt", verdict, f"resctrl is mounted: it has {_describe(facts.resctrl)}")
    if settings is None or not enabled:
        return
    rdt = settings.control.rdt
    foreign = sorted({*facts.resctrl.existing} - rdt.classes.keys())
    if rdt.partitions and foreign:
        found = "groups of resctrl that the settings do not define stay as they are"
        yield Finding("rdt", Verdict.NOTE, f"{found}: {some(foreign)}")
    for each in resolve(rdt, facts.resctrl)[1]:
        severity = Verdict.ERROR if each.fatal else Verdict.NOTE
        remedy = "change it, or make the resource optional (control.rdt.options)"
        yield Finding("rdt", severity, f"{each.path}: {each.text}", remedy * each.fatal)


def _judge_absence(*, enabled: bool, known: bool) -> Finding:
    """Return what is found where resctrl is not mounted; *known*: the kernel has it."""
    if known:
        found = "resctrl, which RDT classes need, is not mounted"
        remedy = "mount -t resctrl resctrl /sys/fs/resctrl, and then restart the tuner"
    else:
        found = "no RDT classes: this kernel or processor has no resctrl"
        remedy = "set control.rdt.enable to false for this node"
    if enabled:
        return Finding("rdt", Verdict.WARNING, found, remedy)
    return Finding("rdt", Verdict.NOTE, found)


def _describe(resctrl: Resctrl) -> str:
    """Return what can be shared, and among how many groups."""
    parts = []
    for name, cache in (("L2", resctrl.l2), ("L3", resctrl.l3)):
        if cache is not None:
            split = " for code and data each" if len(cache.resources) > 1 else ""
            parts.append(f"{counted(len(cache.ids), f'{name} cache')} of {cache.bits} ways{split}")
    if resctrl.mb is not None:
        parts.append(f"memory bandwidth in {resctrl.mb.unit}")
    groups = counted(resctrl.groups, "group")
    return f"{', '.join(parts) or 'nothing to share'}, for at most {groups}"
