"""Notes on decisions without effect, because the settings turn pinning off."""

from __future__ import annotations

from nri_policy.report import SettingsReport
from nri_policy.settings import describe_unset

_WHAT = {"pinCPU": "CPUs", "pinMemory": "memory nodes"}


def pinning_of(report: SettingsReport) -> list[str]:
    """Return what containers are given."""
    fields = {each.field: each.value for each in report.settings}
    return [_WHAT[field] for field in _WHAT if fields[field] is not False]


def left_alone(report: SettingsReport) -> str:
    """Say which settings turn pinning off; empty if all is pinned."""
    fields = {each.field: each.value for each in report.settings}
    pin_cpu, pin_memory = (fields[field] is not False for field in _WHAT)
    if text := describe_unset(pin_cpu=pin_cpu, pin_memory=pin_memory):
        return f"{text}; `nri-policy what-if --settings FILE` says what would move then"
    return ""
