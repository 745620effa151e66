"""The checks: each judges what was read, and reads nothing itself.

By subject: the `runtime`, the `kubelet`, the `host`, and the `daemon` with its cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from nri_policy.doctor.checks.daemon import api_server, readiness, settings, status
from nri_policy.doctor.checks.host import (
    classes,
    kernel,
    partitions,
    rdt,
    rights,
    tuning,
    unreadable,
)
from nri_policy.doctor.checks.kubelet import dra, managers, pod_resources, reserved
from nri_policy.doctor.checks.runtime import cgroups, nri, plugins, version
from nri_policy.doctor.facts import Facts
from nri_policy.doctor.finding import Finding

CHECKS: tuple[Callable[[Facts], Iterator[Finding]], ...] = (
    nri.check,
    version.check,
    rights.check,
    settings.check,
    managers.check,
    reserved.check,
    cgroups.check,
    plugins.check,
    kernel.check,
    classes.check,
    tuning.check,
    rdt.check,
    partitions.check,
    pod_resources.check,
    dra.check,
    status.check,
    api_server.check,
    readiness.check,
    unreadable.check,
)


def examine(facts: Facts) -> list[Finding]:
    """Return the findings of all checks, in the order in which to put things right."""
    return [finding for check in CHECKS for finding in check(facts)]
