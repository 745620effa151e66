"""Who is about to leave: until then nobody else is chosen to leave for a group that waits."""

from __future__ import annotations

from typing import Any

import pytest

from nri_policy.cluster.groups.controller import Controller
from nri_policy.cluster.numa.promises import LiveZones
from nri_policy.cluster.objects.group import read_group
from nri_policy.cluster.objects.pod import Pod, read_pod
from nri_policy.cluster.objects.settings import read_settings
from nri_policy.cluster.view import Cluster
from tests.unit.cluster.written import HOSTNAME, group, pod, pod_set, settings

KEY = ("default", "g")


def ending(phase: str) -> Pod:
    made: Any = pod("p", "a", phase=phase)
    made["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    return read_pod(made, "")


@pytest.mark.parametrize("gone", [True, False])
def test_a_pod_leaves_until_it_has_ended_or_is_gone(gone: bool) -> None:
    using, view = read_settings(settings("rack", HOSTNAME)), Cluster().view
    zones = LiveZones(using.extender, view, lambda: 0.0)
    controller = Controller(using, view, lambda: 0.0, zones)
    controller.engine.set_group(read_group(group(pod_set(1))))
    attempts = controller.attempts
    attempts.see_pod(ending("Running"), KEY, ends=False)
    assert attempts._is_somebody_leaving()
    if gone:
        attempts.remove_pod(ending("Running"), KEY)
    else:
        attempts.see_pod(ending("Failed"), KEY, ends=True)
    assert not attempts._is_somebody_leaving()
