"""Settings change under running containers of both versions of runtime."""

from __future__ import annotations

from typing import Any

import pytest

from nri_policy.foundation.cpuset import CPUSet
from tests.e2e.daemon import Daemon
from tests.e2e.kubelet import BEST_EFFORT, Kubelet, guaranteed, resources
from tests.e2e.runtime import Runtime
from tests.e2e.waiting import eventually


@pytest.mark.parametrize("runtime", ["forky"], indirect=True)  # the file is ours, not its
def test_a_changed_file_is_taken_without_a_signal_and_moves_whom_it_must(
    daemon: Daemon, stage: Kubelet, runtime: Runtime, settings: dict[str, Any]
) -> None:
    system = stage.run("system", resources(milli_cpu=100), namespace="kube-system")
    own, guest = stage.run("own", guaranteed(3000)), stage.run("guest", BEST_EFFORT)

    def cpus() -> list[str]:
        return [str(runtime.played(each.id).cpus) for each in (system, own, guest)]

    before = cpus()
    assert before[0] == "0"
    assert len(CPUSet.parse(before[1])) == 3
    daemon.configure({**settings, "reservedResources": {"cpu": "cpuset:0,12"}})
    daemon.await_line("event=reloaded")
    after = ["0,12", before[1], str(CPUSet.parse(before[2]) - CPUSet([12]))]
    assert eventually(cpus, lambda now: now == after) == after
    daemon.configure({**settings, "reservedResources": {"cpu": 14}})
    daemon.await_line("event=reload-refused")
    assert cpus() == after
    assert "no pool has room" in " ".join(daemon.ask("status").stdout.split())
