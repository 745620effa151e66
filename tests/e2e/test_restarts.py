"""The daemon and the runtime end and come back under running containers, on a played machine."""

from __future__ import annotations

import pytest

from nri_policy.foundation.cpuset import CPUSet
from tests.e2e.cgroup import CpusetFiles
from tests.e2e.daemon import Daemon
from tests.e2e.kubelet import BEST_EFFORT, Container, Kubelet, guaranteed
from tests.e2e.runtime import Recorded, Runtime
from tests.e2e.waiting import eventually


def changes(calls: list[Recorded], containers: list[Container]) -> list[Recorded]:
    """Return those of the *containers*' calls that give them other sets than the first ones do."""
    first: dict[str, Recorded] = {}
    for call in calls:
        first.setdefault(call.container, call)
    return [
        call
        for call in calls
        if call.container in {container.id for container in containers}
        # Empty stands for no change; told once more what it has, a container does not change.
        and (
            call.cpus not in {"", first[call.container].cpus}
            or call.mems not in {"", first[call.container].mems}
        )
    ]


def test_a_killed_daemon_comes_back_without_any_change_to_running_containers(
    daemon: Daemon, stage: Kubelet, runtime: Runtime
) -> None:
    first, shared = stage.run("first", guaranteed(2000)), stage.run("shared", BEST_EFFORT)
    daemon.kill()
    daemon.start()
    # The runtime takes this event after the answer to Synchronize has taken effect.
    pod = stage.run_pod("second", {"main": guaranteed(2000)})
    assert not changes(runtime.recorded(), [first, shared])
    second = pod.create("main")
    second.start()
    sets = [runtime.played(container.id).cpus for container in (first, second, shared)]
    assert [len(each) for each in sets[:2]] == [2, 2]
    assert sets[2]
    assert len(sets[0] | sets[1] | sets[2]) == sum(len(each) for each in sets)


def test_the_daemon_goes_on_after_a_restart_of_the_runtime(
    daemon: Daemon, stage: Kubelet, runtime: Runtime
) -> None:
    first = stage.run("first", guaranteed(4000))
    runtime.restart()
    daemon.await_synchronized()
    runtime.await_plugin()
    second = stage.run("second", guaranteed(4000))
    assert not changes(runtime.recorded(), [first, second])
    sets = [runtime.played(container.id) for container in (first, second)]
    assert [len(each.cpus) for each in sets] == [4, 4]
    assert sets[0].cpus.isdisjoint(sets[1].cpus)
    assert all(len(each.mems) == 1 for each in sets)


@pytest.mark.parametrize("settings", [{"reservedResources": {"cpu": "750m"}, "onExit": "widen"}])
def test_a_daemon_that_widens_leaves_containers_the_machine_and_takes_it_back(
    daemon: Daemon, stage: Kubelet, runtime: Runtime
) -> None:
    containers = [stage.run("own", guaranteed(2000)), stage.run("guest", BEST_EFFORT)]

    def played() -> list[CpusetFiles]:
        return [runtime.played(each.id) for each in containers]

    before = played()
    daemon.stop()
    whole = [CpusetFiles(cpus=CPUSet.parse("0-15"), mems=CPUSet.parse("0-3"))] * 2
    # a runtime that is told at a registration does it when the daemon has left
    assert eventually(played, lambda now: now == whole) == whole
    assert stage.version()
    daemon.start()
    stage.run_pod("next", {"main": BEST_EFFORT})  # the answer to Synchronize has taken effect
    assert played() == before
