"""Titles of a scenario's steps: what each does, in one line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from nri_policy.simulation.scenario import (
    Advance,
    Apply,
    ChangeSettings,
    ClaimsStep,
    Delete,
    Devices,
    Disks,
    Expect,
    HotplugStep,
    Resize,
    Restart,
    Step,
)

_MOST_NAMES = 8


def title(step: Step) -> str:
    """Return what a step does."""
    return _TITLES[type(step)](step)


def _hotplug(step: HotplugStep) -> str:
    verbs = {"offline": step.offline, "online": step.online}
    return " and ".join(
        f"CPUs {cpus} go {how}" if len(cpus) > 1 else f"CPU {cpus} goes {how}"
        for how, cpus in verbs.items()
        if cpus
    )


def _few(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


_TITLES: dict[type, Callable[[Any], str]] = {
    ChangeSettings: lambda _: "new settings",
    Apply: lambda step: f"apply {_few([pod.key.removeprefix('default/') for pod in step.pods])}",
    Delete: lambda step: f"delete {_few(step.names)}",
    Resize: lambda step: f"resize {'/'.join(filter(None, (step.pod, step.container)))}",
    Advance: lambda step: f"{step.seconds:g} s pass",
    Restart: lambda step: f"the {step.what} restarts",
    HotplugStep: _hotplug,
    Devices: lambda step: f"devices: {_few([*step.devices]) or 'none'}",
    ClaimsStep: lambda step: f"claims: {_few([*step.claims]) or 'none'}",
    Disks: lambda step: f"disks: {_few([*step.nodes]) or 'none'}",
    Expect: lambda _: "what is expected",
}
