"""In the pod that nri-plugins' DaemonSet makes, with nothing but the image replaced.

The container has what that manifest gives one: its arguments, environment, security context and
mounts. Its image is the test's own, so the program and what it needs are mounted, too.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from nri_policy.daemon.paths import PEER_RUN, PEER_STATE, STATE_DIR
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.plugin.exposure import DESTINATION, FILE
from tests.e2e import cgroup
from tests.e2e.daemon import PROGRAM
from tests.e2e.kubelet import BEST_EFFORT, NAMESPACES, Container, Kubelet, guaranteed, resources
from tests.e2e.process import Process
from tests.e2e.runtime import Runtime
from tests.e2e.test_real_host import AVAILABLE, RESERVED, SHARABLE
from tests.e2e.waiting import eventually
from tools import nri_plugins

ARGUMENTS = (
    *("--host-root", "/host"),
    *("--config-namespace", "kube-system"),
    *("--pid-file", "/tmp/nri-resource-policy.pid"),
    *("--nri-plugin-index", "90"),
)
HEAD = {
    "apiVersion": "config.nri/v1alpha1",
    "kind": "TopologyAwarePolicy",
    "metadata": {"name": "default"},
}
IMAGE = {  # what the program needs, and the test's image does not have
    *map(Path, ("/usr", "/lib", "/lib64", "/etc/ld.so.cache")),
    *(Path(sys.prefix), Path(sys.base_prefix), Path(__file__).parents[2]),
}


class PeerPod:
    """The daemon's pod on one node; *missing* are folders that the manifest has, and this lacks."""

    def __init__(
        self,
        kubelet: Kubelet,
        runtime: Runtime,
        folder: Path,
        *,
        settings: Mapping[str, Any],
        sys: Path = Path("/sys"),
        missing: tuple[Path, ...] = (),
    ) -> None:
        self._kubelet = kubelet
        self._container: Container | None = None
        for name in ("state", "settings"):
            (folder / name).mkdir()
        (folder / "settings/config.yaml").write_text(json.dumps(HEAD | {"spec": settings}))
        mounts = {
            PEER_STATE: (folder / "state", False),
            # by the manifest at /var/run, which is a link to /run in our image
            PEER_RUN: (Path("/var") / PEER_RUN.relative_to("/"), False),
            Path("/host/sys"): (sys, False),
            Path("/host/proc"): (Path("/proc"), False),
            # not its folder, where the test's runtime also has its containers' files
            Path("/var/run/nri/nri.sock"): (runtime.nri_socket, True),
            # there is no cluster that could have an object
            Path("/etc/nri-policy"): (folder / "settings", True),
        }
        mounts |= {path: (path, True) for path in IMAGE if path.exists()}
        self._mounts = [
            {"container_path": str(at), "host_path": str(path), "readonly": readonly}
            for at, (path, readonly) in mounts.items()
            if at not in missing
        ]

    def start(self) -> None:
        """Start it, and wait until it takes part."""
        pod = self._kubelet.run_pod("policy", {"main": BEST_EFFORT}, namespace="kube-system")
        context = {
            "namespace_options": NAMESPACES,
            "capabilities": {"drop_capabilities": ["ALL"]},
            "no_new_privs": True,
        }
        self._container = pod.create(
            "main",
            command=[str(PROGRAM), *ARGUMENTS],
            mounts=self._mounts,
            linux={"security_context": context},
        )
        self._container.start()
        eventually(lambda: self.ask("status").get("synchronized"), bool)

    def ask(self, *command: str) -> Any:
        """Return what a command prints in JSON that is executed in the pod; {} for nothing."""
        assert self._container is not None
        first = min(cgroup.processes(self._container.cgroup))
        inside = ["nsenter", f"--target={first}", "--mount", "--pid", "--"]
        asked = [*inside, str(PROGRAM), *command, "-o", "json"]
        done = subprocess.run(asked, stdout=subprocess.PIPE, check=False)
        return json.loads(done.stdout or "{}")

    def stop(self) -> None:
        """Delete it."""
        assert self._container is not None
        self._container.pod.delete()


@pytest.fixture
def run_folder() -> Iterator[None]:
    """The folder in /run that the manifest makes on the host; one test at a time has it."""
    lock = os.open(PEER_RUN.parent, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if PEER_RUN.exists():
            pytest.skip(f"{PEER_RUN} is in use on this host")
        PEER_RUN.mkdir()
        yield
        shutil.rmtree(PEER_RUN)
    finally:
        os.close(lock)


@pytest.mark.usefixtures("run_folder")
@pytest.mark.parametrize(
    "missing",
    [(), (PEER_RUN,), (PEER_RUN, PEER_STATE)],
    ids=["as-it-is", "without-run", "without-state"],
)
def test_pods_start_and_a_restart_of_the_daemons_pod_keeps_everything(
    missing: tuple[Path, ...], kubelet: Kubelet, runtime: Runtime, tmp_path: Path
) -> None:
    settings = {
        "availableResources": {"cpu": f"cpuset:{AVAILABLE}"},
        "reservedResources": {"cpu": f"cpuset:{RESERVED}"},
    }
    pod = PeerPod(kubelet, runtime, tmp_path, settings=settings, missing=missing)
    pod.start()
    own, guest = kubelet.run("own", guaranteed(1000)), kubelet.run("guest", BEST_EFFORT)
    held, shared = own.cpus(), guest.cpus()
    assert len(held) == 1
    assert shared == (SHARABLE - held or RESERVED)
    shown = Path(f"/proc/{own.pid()}/root{DESTINATION}/{FILE}")
    assert shown.exists() == (not missing), "what is not on the host cannot be mounted"

    said = pod.ask("status")["notices"]
    notes = [each for each in said if not each.startswith("starved: ")]  # a busy machine's
    assert ["containers do not see their resources" in each for each in notes[:1]] == (
        [True] if missing else []
    )
    assert len(notes) == len(missing)
    found = {each["found"] for each in pod.ask("doctor", "--host-root", "/host")}
    assert found >= {*notes}
    state = STATE_DIR if PEER_STATE in missing else PEER_STATE / "nri-policy"
    assert f"{state} is the daemon's own" in found
    assert any(each.startswith("the host's processes cannot be seen") for each in found)

    known = pod.ask("containers")
    pod.stop()
    assert (own.cpus(), guest.cpus()) == (held, shared)
    pod.start()
    assert (own.cpus(), guest.cpus()) == (held, shared)
    again = pod.ask("containers")
    for name in ("default/own/main", "default/guest/main"):
        assert again[name] | {"updated_by": None} == known[name] | {"updated_by": None}


BURSTABLE = resources(milli_cpu=500)


@contextmanager
def peer(runtime: Runtime, folder: Path, host_root: Path, settings: Path) -> Iterator[None]:
    """Run nri-plugins' own program on the runtime, until the end of a `with`."""
    program = nri_plugins.at_hand()
    if program is None:
        pytest.skip("nri-plugins is not built: `python3 -m tools.nri_plugins` builds it")
    command = [str(program), f"--config-file={settings}", f"--host-root={host_root}"]
    command += [f"--nri-socket={runtime.nri_socket}", f"--state-dir={folder}"]
    command += [f"--pid-file={folder / 'pid'}", "--nri-plugin-name=topology-aware"]
    # it wants its folders to be on a mount that others see
    subprocess.run(["mount", "--bind", folder, folder], check=True)
    subprocess.run(["mount", "--make-shared", folder], check=True)
    process = Process(command, os.environ)
    try:
        process.await_line("<= Synchronize")
        yield
    finally:
        process.terminate()
        subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.mark.usefixtures("run_folder")
def test_what_nri_plugins_gave_is_kept_when_its_image_is_replaced_and_set_back(
    kubelet: Kubelet, stage: Kubelet, runtime: Runtime, host_root: Path, tmp_path: Path
) -> None:
    spec = {"reservedResources": {"cpu": "750m"}, "pinCPU": True, "pinMemory": True}
    pod = PeerPod(kubelet, runtime, tmp_path, settings=spec, sys=host_root / "sys")
    settings = tmp_path / "settings/config.yaml"
    state = tmp_path / "state"
    with peer(runtime, state, host_root, settings):
        own, shared = stage.run("own", guaranteed(2000)), stage.run("shared", BURSTABLE)
        one, rest = stage.run("one", guaranteed(1000)), stage.run("rest", BEST_EFFORT)
    had = {each.id: runtime.played(each.id) for each in (own, shared, one, rest)}
    assert [len(had[each.id].cpus) for each in (own, one)] == [2, 1]

    pod.start()
    assert {each: runtime.played(each) for each in had} == had
    known = pod.ask("containers")
    for each in (own, one):
        assert known[f"default/{each.pod.name}/main"]["exclusive"] == str(had[each.id].cpus)
    late = stage.run("late", guaranteed(2000))
    cpus = [had[own.id].cpus, had[one.id].cpus, runtime.played(late.id).cpus]
    assert len(CPUSet.union(cpus)) == 5, "nobody has the CPUs of another"

    pod.stop()
    with peer(runtime, state, host_root, settings):
        assert stage.run("last", guaranteed(1000)).state() == "CONTAINER_RUNNING"
        assert {each.state() for each in (own, shared, one, rest, late)} == {"CONTAINER_RUNNING"}
