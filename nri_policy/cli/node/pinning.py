"""What is decided but not set, because the settings in force do not pin it."""

from __future__ import annotations

from nri_policy.report import SettingsReport

_WHAT = {"pinCPU": "CPUs", "pinMemory": "memory nodes"}


def pinning_of(report: SettingsReport) -> list[str]:
    """Return what containers are given."""
    fields = {each.field: each.value for each in report.settings}
    return [_WHAT[field] for field in _WHAT if fields[field] is not False]


def left_alone(report: SettingsReport) -> str:
    """Return a sentence on what containers are not told, empty where they are told all."""
    fields = {each.field: each.value for each in report.settings}
    unset = [field for field in _WHAT if fields[field] is False]
    if not unset:
        return ""
    given = " and ".join(f"{field} is false" for field in unset)
    what = " and ".join(_WHAT[field] for field in unset)
    also = ", and no container is refused" if len(unset) == len(_WHAT) else ""
    return (
        f"{given}: {what} are decided on, but not set{also};"
        " `nri-policy what-if --settings FILE` says who would move if they were"
    )
