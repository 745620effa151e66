"""Whether the settings are good, and the daemon would start with them on this machine."""

from __future__ import annotations

from collections.abc import Iterator

from nri_policy.doctor.facts import Facts
from nri_policy.doctor.finding import Finding, Verdict
from nri_policy.engine.state.layout import layout_of
from nri_policy.foundation.wording import counted
from nri_policy.hardware.machine import Machine
from nri_policy.hardware.power import Power
from nri_policy.pools.capacity import CapacityError
from nri_policy.report import StatusReport
from nri_policy.settings import Preserve, SettingsError
from nri_policy.tuning.cpu_classes import find_faults
from nri_policy.tuning.faults import Fault


def check(facts: Facts) -> Iterator[Finding]:
    """Yield what is wrong with the settings or the machine."""
    if isinstance(facts.machine, str):
        remedy = "--host-root must be a folder with the host's /sys and /proc"
        yield Finding("settings", Verdict.ERROR, f"no machine: {facts.machine}", remedy)
    if facts.settings is None:
        return
    if isinstance(facts.settings, SettingsError):
        yield from _unusable(facts, facts.settings)
        return
    for notice in facts.settings.notices:
        yield Finding("settings", Verdict.NOTE, notice)
    if (
        facts.settings.pin_cpu
        and facts.settings.preserve is Preserve.ALL
        and any(glob.matches("") for glob in facts.settings.preserve_namespaces)
    ):
        found = "pods of any namespace may run on exclusive CPUs of others, by cpu.preserve"
        remedy = "if you do not trust them: preserveNamespaces, preserve: unowned"
        yield Finding("settings", Verdict.NOTE, found, remedy)
    if not isinstance(facts.machine, Machine):
        return
    faults = [*find_faults(facts.settings.cpu_classes, facts.power or Power())]
    yield from map(_judge_fault, faults)
    try:
        layout = layout_of(facts.machine, facts.settings)
    except CapacityError as error:
        remedy = f"change {facts.settings.origin}; `nri-policy topology` shows the CPUs"
        yield Finding("settings", Verdict.ERROR, str(error), remedy)
        return
    notes = layout.capacity.notes
    for note in notes:
        remedy = "reserve fewer CPUs: only BestEffort and system containers would start"
        yield Finding("settings", Verdict.WARNING, note, remedy)
    if not notes and not any(each.fatal for each in faults):
        pools = counted(len(layout.tree.pools), "pool")
        reserved = f"CPUs {layout.capacity.reserved} reserved"
        found = f"{facts.settings.origin} fits this machine: {pools}, {reserved}"
        yield Finding("settings", Verdict.OK, found)


def _judge_fault(fault: Fault) -> Finding:
    """Return the finding about a CPU class that asks for something the machine does not have."""
    text = f"{fault.path}: {fault.text}"
    if fault.fatal:
        remedy = "change it, or give the class `optional: true`: the daemon refuses it"
        return Finding("settings", Verdict.ERROR, text, remedy)
    return Finding("settings", Verdict.NOTE, text)


def _unusable(facts: Facts, error: SettingsError) -> Iterator[Finding]:
    """Yield why no settings are in the file, unless a daemon has those of its cluster."""
    if not facts.settings_file and facts.cluster and isinstance(facts.daemon, StatusReport):
        found = f"there is no {error.origin}: the daemon has settings from the cluster"
        remedy = "`nri-policy config show` shows them"
        yield Finding("settings", Verdict.NOTE, found, remedy)
        return
    *others, last = error.problems
    remedy = "`nri-policy config sample` prints every field; docs/settings.md explains them"
    for problem in others:
        yield Finding("settings", Verdict.ERROR, f"{error.origin}: {problem}")
    yield Finding("settings", Verdict.ERROR, f"{error.origin}: {last}", remedy)
