"""The harness alone, without a daemon: what the other tests take for granted."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

from nri_policy.foundation.cpuset import CPUSet
from tests.e2e import cgroup, image, packages
from tests.e2e.kubelet import BEST_EFFORT, Kubelet, guaranteed, resources
from tests.e2e.runtime import Runtime
from tests.e2e.waiting import eventually

LAST_CPU = CPUSet([max(os.sched_getaffinity(0))])


def test_both_versions_serve_at_the_same_time(start_runtime: Callable[[str], Runtime]) -> None:
    kubelets = [start_runtime(suite).kubelet("runc") for suite in packages.SUITES]
    versions = [kubelet.version() for kubelet in kubelets]
    for kubelet in kubelets:
        kubelet.close()
    assert versions[0].startswith("1.7.")
    assert versions[1].startswith("2.")


def test_a_container_runs_in_the_cgroup_of_its_qos_class(kubelet: Kubelet) -> None:
    parents = {
        "kubepods/pod": guaranteed(500),
        "kubepods/burstable/pod": resources(milli_cpu=100),
        "kubepods/besteffort/pod": BEST_EFFORT,
    }
    runs = "".join(f"{argument}\0" for argument in image.FOREVER)
    for parent, asked in parents.items():
        container = kubelet.run("pod", asked)
        assert f"/{parent}{container.pod.uid}/" in container.cgroup
        (pid,) = cgroup.processes(container.cgroup)
        # The runtime's answer does not wait for the last exec.
        assert eventually(Path(f"/proc/{pid}/cmdline").read_text, lambda now: now == runs) == runs
        container.pod.delete()


def test_an_update_of_the_cpuset_reaches_the_real_cgroup(kubelet: Kubelet) -> None:
    container = kubelet.run("pod", guaranteed(1000))
    before = cgroup.cpuset(container.cgroup)
    assert before.cpus == cgroup.allowed(container.pid()).cpus
    assert before.cpus > LAST_CPU
    kubelet.call(
        "UpdateContainerResources",
        container_id=container.id,
        linux={"cpuset_cpus": str(LAST_CPU), "cpuset_mems": "0"},
    )
    after = cgroup.CpusetFiles(cpus=LAST_CPU, mems=CPUSet([0]))
    assert cgroup.cpuset(container.cgroup) == after
    assert cgroup.allowed(container.pid()) == after


def test_the_wrapper_records_a_cpuset_and_keeps_it_from_the_real_cgroup(
    stage: Kubelet, runtime: Runtime
) -> None:
    container = stage.run("pod", guaranteed(1000))
    before = cgroup.cpuset(container.cgroup)
    stage.call(
        "UpdateContainerResources",
        container_id=container.id,
        linux={"cpuset_cpus": "4-7,12", "cpuset_mems": "1,3"},  # far more than this host has
    )
    assert runtime.played(container.id) == cgroup.CpusetFiles(
        cpus=CPUSet.parse("4-7,12"), mems=CPUSet.parse("1,3")
    )
    calls = [entry.command for entry in runtime.recorded() if entry.container == container.id]
    assert calls == ["create", "update"]
    assert cgroup.cpuset(container.cgroup) == before


def test_containers_outlive_a_restart_of_the_runtime(kubelet: Kubelet, runtime: Runtime) -> None:
    container = kubelet.run("pod", guaranteed(1000))
    pid = container.pid()
    runtime.restart()
    assert container.pid() == pid
    container.update(guaranteed(500))
    container.pod.delete()
    assert not Path(f"/proc/{pid}").exists()


def test_a_refusal_of_the_runtime_reaches_the_kubelet(kubelet: Kubelet) -> None:
    container = kubelet.run("pod", BEST_EFFORT)
    linux = {"cpuset_cpus": "no-such-set"}
    with pytest.raises(grpc.RpcError, match="no-such-set"):
        kubelet.call("UpdateContainerResources", container_id=container.id, linux=linux)
    assert cgroup.cpuset(container.cgroup).cpus
