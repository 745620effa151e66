"""Our messages against those that real containerd sent."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from nri_policy.foundation.cpuset import CPUSet
from nri_policy.kubelet.runtime_requests import Kubelet
from nri_policy.nri import mux, ttrpc
from nri_policy.nri.mux import Conn
from nri_policy.proto import nri_pb2 as nri
from nri_policy.simulation.embedded import EmbeddedRuntime
from tests.support.shared_data import NOT_HERE
from tests.unit.simulation.scripted import ScriptedPlugin, pod

HERE = Path(__file__).resolve()
SHARED = Path(os.environ.get("NRI_POLICY_SHARED", HERE.parents[4] / "shared")) / "nri-vectors"
VERSIONS = {"17": "1.7.24", "21": "2.1.9", "24": "2.4.0"}

# Set by our kubelet and not by the client that was recorded, or taken from the image.
OURS = {"kubernetes.io/config.seen"}
IMAGE = {"PATH"}
THEIRS = {"oci_runtime_type", "io.kubernetes.cri.podsandbox.image-name"}  # only in some releases


def recorded(name: str) -> Iterator[tuple[str, bytes]]:
    layers = mux.Mux(), ttrpc.ServerConnection()
    for payload in layers[0].receive_data((SHARED / f"{name}.r2p.bin").read_bytes()):
        if payload.conn is Conn.PLUGIN:
            for request in layers[1].receive_data(payload.data):
                assert isinstance(request, ttrpc.IncomingCall)
                yield request.method, request.payload


def shape(request: nri.CreateContainerRequest) -> dict[str, set[str]]:
    pod, container = request.pod, request.container
    return {
        "pod labels": {*pod.labels} - THEIRS - {"app"},
        "pod annotations": {*pod.annotations} - OURS - THEIRS,
        "pod linux": {field.name for field, _ in pod.linux.ListFields()},
        "labels": {*container.labels},
        "annotations": {*container.annotations},
        "env": {variable.partition("=")[0] for variable in container.env} - IMAGE,
        "linux": {field.name for field, _ in container.linux.ListFields()},
        "cpu": {field.name for field, _ in container.linux.resources.cpu.ListFields()},
        "memory": {field.name for field, _ in container.linux.resources.memory.ListFields()},
        "namespaces": {space.type for space in container.linux.namespaces},
    }


pytestmark = pytest.mark.skipif(not SHARED.is_dir(), reason=NOT_HERE)


def runtime_like(release: str, folder: Path) -> EmbeddedRuntime:
    return EmbeddedRuntime(
        folder / "nri.sock",
        online_cpus=CPUSet.parse("0-1"),
        memory_nodes=CPUSet.parse("0"),
        version=VERSIONS[release],
        kubelet=Kubelet(cgroup_driver="cgroupfs"),
    )


@pytest.mark.parametrize("release", VERSIONS)
async def test_a_creation_looks_like_that_of_real_containerd(tmp_path: Path, release: str) -> None:
    (theirs,) = (
        nri.CreateContainerRequest.FromString(payload)
        for method, payload in recorded(f"containerd-{release}")
        if method == "CreateContainer"
    )
    async with (
        runtime_like(release, tmp_path) as runtime,
        ScriptedPlugin(runtime.socket_path) as plugin,
    ):
        await runtime.synchronized()
        limits = {"cpu": 1, "memory": "1Mi"}
        await runtime.start_pod(pod("p1", requests={"cpu": "500m"}, limits=limits))
        (ours,) = plugin.requests("CreateContainer")
    assert shape(ours) == shape(theirs)


@pytest.mark.parametrize("release", VERSIONS)
async def test_a_removed_pod_looks_like_that_of_real_containerd(
    tmp_path: Path, release: str
) -> None:
    theirs = nri.PodSandbox()
    for method, payload in recorded(f"containerd-{release}"):
        if method in {"StateChange", "RemovePodSandbox"}:  # the last one
            kind = nri.StateChangeEvent if method == "StateChange" else nri.RemovePodSandboxRequest
            theirs = kind.FromString(payload).pod
    async with (
        runtime_like(release, tmp_path) as runtime,
        ScriptedPlugin(runtime.socket_path) as plugin,
    ):
        await runtime.synchronized()
        await runtime.delete_pod(await runtime.start_pod(pod("p1")))
        ours = plugin.seen[-1][1].pod
    assert {*ours.annotations} - OURS == {*theirs.annotations} - THEIRS
    assert {f.name for f, _ in ours.linux.ListFields()} == {
        f.name for f, _ in theirs.linux.ListFields()
    }
