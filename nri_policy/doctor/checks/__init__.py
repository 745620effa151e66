"""The checks: each judges what was read, and reads nothing itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from nri_policy.doctor.checks import (
    api_server,
    cgroups,
    classes,
    daemon,
    dra,
    kernel,
    managers,
    nri,
    plugins,
    pod_resources,
    readiness,
    reserved,
    rights,
    runtime,
    settings,
    unread,
)
from nri_policy.doctor.facts import Facts
from nri_policy.doctor.finding import Finding

CHECKS: tuple[Callable[[Facts], Iterator[Finding]], ...] = (
    nri.check,
    runtime.check,
    rights.check,
    settings.check,
    managers.check,
    reserved.check,
    cgroups.check,
    plugins.check,
    kernel.check,
    classes.check,
    pod_resources.check,
    dra.check,
    daemon.check,
    api_server.check,
    readiness.check,
    unread.check,
)


def examine(facts: Facts) -> list[Finding]:
    """Return the findings of all checks, in the order in which to put things right."""
    return [finding for check in CHECKS for finding in check(facts)]
