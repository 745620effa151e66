"""systemd as the first process, which makes the containers' scopes: what lasts there, what not."""

from __future__ import annotations

import asyncio
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from nri_policy.foundation.cpuset import CPUSet
from nri_policy.systemd.scopes import Scopes, scope_of
from tests.e2e import cgroup
from tests.e2e.kubelet import BEST_EFFORT, Container, guaranteed, resources
from tests.e2e.quota import become, limits
from tests.e2e.test_rights import confined
from tests.e2e.waiting import eventually
from tests.guest.inside import kernel
from tests.guest.inside.conftest import RUNTIMES
from tests.guest.inside.partition_tree import PARTITION, cleared, read, settled
from tests.guest.inside.scene import SETTINGS, Scene, full_name, near

TRIES = 4  # of the race for a CPU
RELOADS = 3
NEAR = near("shared")
pytestmark = pytest.mark.parametrize("runtime", RUNTIMES, indirect=True, scope="session")
BURSTABLE = resources(milli_cpu=500, memory=32 << 20)

# A program of the machine in a container: what it needs, by the path that it gets.
PROGRAMS = {"/usr": "/usr", "/lib": "/usr/lib", "/lib64": "/usr/lib64", "/opt": "/opt"}


def name_of(container: Container) -> str:
    """Return what the runtime calls a container's cgroup."""
    slice_ = container.pod.cgroup_parent.rpartition("/")[2]
    return f"{slice_}:{container.pod.kubelet.scope.removesuffix('-')}:{container.id}"


def scope(container: Container) -> str:
    """Return a container's unit."""
    found = scope_of(name_of(container))
    assert found is not None
    return found


def systemctl(*args: str) -> str:
    """Return what systemctl prints; it waits until systemd has done what it asks for."""
    return subprocess.run(["systemctl", *args], check=True, capture_output=True, text=True).stdout


def set_weight(container: Container, weight: int) -> None:
    """Have systemd set another property of a container's scope."""
    systemctl("set-property", "--runtime", scope(container), f"CPUWeight={weight}")


def set_again(container: Container) -> None:
    """Have systemd set a property of a container's scope to what it is."""
    set_weight(container, kernel.weight(container))


def kept(container: Container) -> CPUSet:
    """Return the CPUs that systemd keeps for a container."""
    shown = systemctl("show", "--property=AllowedCPUs", "--value", scope(container))
    return CPUSet.parse(shown.strip().replace(" ", ","))


def allow(container: Container, cpus: CPUSet) -> str:
    """Have systemd keep CPUs for a container; it may be busy for longer than that waits."""

    def ask() -> str:
        return asyncio.run(Scopes(Path("/")).allow(name_of(container), cpus))

    return eventually(ask, lambda reason: not reason)


@contextmanager
def watched(container: Container, name: str = "cpuset.cpus") -> Iterator[set[str]]:
    """Yield the texts that a file of a container's cgroup ever had meanwhile."""
    seen: set[str] = set()
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.02):
            seen.add(read(container.cgroup, name))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()


def settle_for_good(scene: Scene) -> None:
    """Wait until all have what is decided, and systemd keeps it for them."""
    scene.settle()
    decided = scene.holdings()
    for each in scene.containers():
        due = decided[full_name(each)].cpus
        assert eventually(partial(kept, each), due.__eq__, every=0.5) == due


def test_what_was_only_written_is_undone(scene: Scene) -> None:
    one = scene.run("one", BEST_EFFORT)
    before = one.cpus()
    cgroup.write(one.cgroup, "cpuset.cpus", str(before.first(1)))
    set_weight(one, 200)
    assert eventually(one.cpus, before.__eq__) == before


def test_what_systemd_was_told_lasts(scene: Scene) -> None:
    one = scene.run("one", BEST_EFFORT)
    few = one.cpus().first(2)
    assert allow(one, few) == ""
    assert one.cpus() == few
    with watched(one) as seen:
        for number in range(RELOADS):
            systemctl("daemon-reload")
            set_weight(one, 200 + number)
        systemctl("daemon-reexec")
        set_weight(one, 100)
    assert seen == {str(few)}


def test_an_owners_cpus_and_a_resize_last(scene: Scene) -> None:
    shared = scene.run("shared", BURSTABLE)
    before = shared.cpus()
    owner = scene.run("owner", guaranteed(1000), annotations=NEAR)
    settle_for_good(scene)
    assert owner.cpus() <= before
    with watched(shared) as seen:
        systemctl("daemon-reload")
        set_again(shared)
        set_again(owner)
    assert seen == {str(before - owner.cpus())}
    shared.update(resources(milli_cpu=700, milli_cpu_limit=900, memory=32 << 20))
    settle_for_good(scene)
    systemctl("daemon-reload")
    set_again(shared)
    assert shared.cpus() == before - owner.cpus()
    owner.pod.delete()
    settle_for_good(scene)
    assert shared.cpus() == before


def test_a_partition_outlasts_whatever_systemd_sets_again(scene: Scene) -> None:
    scene.daemon.reload(SETTINGS | {"exclusivePartitions": "root"})
    try:
        shared = scene.run("shared", BURSTABLE)
        owner = scene.run("owner", guaranteed(2000), annotations=NEAR)
        settled(owner, "root")
        with watched(owner, PARTITION) as seen:
            systemctl("daemon-reload")
            set_again(owner)
            set_again(shared)
            systemctl("set-property", "--runtime", "system.slice", "AllowedCPUs=0-7")
            systemctl("daemon-reexec")
        assert seen == {"root"}
        shared.update(resources(milli_cpu=700, milli_cpu_limit=900, memory=32 << 20))
        owner.update(guaranteed(1000, 33 << 20))
        settle_for_good(scene)
        settled(owner, "root")
        owner.pod.delete()
        cleared()
    finally:
        systemctl("set-property", "--runtime", "system.slice", "AllowedCPUs=")
        scene.daemon.reload(SETTINGS)


def test_an_owner_has_no_quota_whatever_systemd_sets_again(scene: Scene) -> None:
    """Its pod's is written, and not systemd's to keep: it is looked at again each minute."""
    pod = scene.kubelet.run_pod("own", {"main": guaranteed(1000)})
    slice_ = pod.cgroup_parent.rpartition("/")[2]
    systemctl("set-property", "--runtime", slice_, "CPUQuota=100%")
    owner = kernel.start(pod)
    become(pod, (None, None))
    systemctl("daemon-reload")
    systemctl("set-property", "--runtime", slice_, "CPUWeight=200")
    set_again(owner)
    shown = systemctl("show", "--property=CPUQuotaPerSecUSec", "--value", scope(owner))
    assert shown.strip() == "infinity"
    free = (None, None)
    assert eventually(lambda: limits(pod), free.__eq__, 300, every=0.5) == free


def test_the_daemon_sets_container_may_ask_systemd(scene: Scene, tmp_path: Path) -> None:
    one = scene.run("one", BEST_EFFORT)
    few = one.cpus().first(2)
    config = confined("systemd")
    (mount,) = config["mounts"]
    assert mount["readonly"]
    assert config["linux"]["security_context"]["capabilities"] == {"drop_capabilities": ["ALL"]}
    answer = tmp_path / "answer"
    answer.touch()
    programs = {**PROGRAMS, "/project": str(Path.cwd())}
    config["mounts"] += [
        *({"container_path": at, "host_path": path} for at, path in programs.items()),
        {"container_path": "/answers", "host_path": str(tmp_path)},
    ]
    ask = f"/usr/bin/python3 /project/tests/e2e/ask_systemd.py /host {name_of(one)} {few}"
    persistent = f"{ask} 2>&1 | $busybox tee /answers/answer | $busybox grep -qx persistent"
    script = f"""
        busybox=/bin/busybox
        export PYTHONPATH=/opt/site:/project
        until {persistent}; do :; done  # systemd may be busy for longer than the daemon waits
        exec $busybox sleep 1000000
    """
    pod = scene.kubelet.run_pod("asks", {"main": BEST_EFFORT})
    kernel.start(pod, command=("/bin/busybox", "sh", "-c", script), **config)
    assert eventually(answer.read_text, "persistent\n".__eq__) == "persistent\n"
    assert one.cpus() == few


def test_an_exclusive_cpu_is_taken_from_a_container_that_is_just_starting(scene: Scene) -> None:
    for _ in range(TRIES):
        shared = scene.kubelet.run_pod("shared", {"main": BEST_EFFORT}).create("main")
        pod = scene.kubelet.run_pod("owner", {"main": guaranteed(1000)}, annotations=NEAR)
        starting = threading.Thread(target=shared.start)
        starting.start()
        owner = kernel.start(pod)
        starting.join()
        assert shared.cpus().isdisjoint(owner.cpus())
        settle_for_good(scene)
        systemctl("daemon-reload")
        set_again(shared)
        assert shared.cpus().isdisjoint(owner.cpus())
        shared.pod.delete()
        pod.delete()
