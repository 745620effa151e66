"""Everything at once on the cgroups of this host: no CPU ever stays with two owners.

Pods come, go and are resized from several threads; some of their containers never start, and some
creations are given up by who asked for them. Meanwhile the daemon is killed, also with the store's
log emptied, or frozen, or its clock jumps by ten years; the runtime restarts, or its updates are
refused or late; containers freeze, or end while the daemon registers. After each round the cgroup
files are what was decided, for every container that has a process: within five seconds in `make
stress`, where NRI_POLICY_STORM is the rounds on each runtime and NRI_POLICY_SEED what chance begins
with.
"""

from __future__ import annotations

import itertools
import logging
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import pytest

from nri_policy.control.client import connected
from tests.e2e import cgroup
from tests.e2e.daemon import Daemon
from tests.e2e.kubelet import BEST_EFFORT, Kubelet, Pod, guaranteed, messages, resources
from tests.e2e.runtime import Runtime
from tests.e2e.test_real_host import host_root, settings
from tests.e2e.waiting import eventually
from tests.faults.levers import Levers
from tests.support.patience import HANGS

__all__ = ["host_root", "settings"]  # fixtures

log = logging.getLogger(__name__)

ROUNDS = int(os.environ.get("NRI_POLICY_STORM", "3"))
SEED = int(os.environ.get("NRI_POLICY_SEED", "1"))
# seconds after the last event; a few rounds run anywhere, on slow machines too
SETTLED = 5.0 if "NRI_POLICY_STORM" in os.environ else HANGS
MOST_PODS = 6
TEN_YEARS = 10 * 365 * 86_400.0  # seconds
SHORT = 0.03  # seconds that a client waits for a creation that it gives up
PROJECT = Path(__file__).parents[2]
#: `nri-policy` by the clock of the levers, which gives creations up after 30 s.
PROGRAM = """\
#!{python}
import sys, time
sys.path.insert(0, {project!r})
from tests.faults.levers import Levers
from tests.support.patience import HANGS
from pathlib import Path
levers, ours = Levers(Path({levers!r})), time.time
time.time = lambda: ours() + levers.clock
from nri_policy.audit import orphans
orphans.MAX_CREATION = 30.0
from nri_policy.cli import main
sys.exit(main())
"""
WISHES = (BEST_EFFORT, guaranteed(1000), guaranteed(300), resources(milli_cpu=100))


@pytest.fixture
def kubelet(runtime: Runtime) -> Iterator[Kubelet]:
    """Runs pods whose updates the OCI runtime may refuse."""
    kubelet = runtime.kubelet("moody")
    yield kubelet
    kubelet.close()


@pytest.fixture(scope="module")
def patience() -> int:
    """So little that a runtime throws a daemon out that is frozen for 2.5 s."""
    return 2


@pytest.fixture
def levers(tmp_path: Path) -> Levers:
    return Levers(tmp_path / "levers")


@pytest.fixture
def daemon(
    runtime: Runtime,
    settings: Mapping[str, Any],
    host_root: Path,
    tmp_path: Path,
    levers: Levers,
) -> Iterator[Daemon]:
    """A daemon whose clock is the levers'."""
    levers.clock = 0.0
    program = tmp_path / "nri-policy"
    paths = {"project": str(PROJECT), "levers": str(tmp_path / "levers")}
    program.write_text(PROGRAM.format(python=sys.executable, **paths))
    program.chmod(0o755)
    socket = runtime.nri_socket
    daemon = Daemon(
        tmp_path, settings=settings, host_root=host_root, nri_socket=socket, program=program
    )
    with daemon.running():
        yield daemon


class Storm:
    """What goes on at once on one runtime."""

    def __init__(self, kubelet: Kubelet, runtime: Runtime, daemon: Daemon, levers: Levers) -> None:
        self.kubelet, self.runtime, self.daemon = kubelet, runtime, daemon
        self.levers = levers
        self.hasty = runtime.kubelet("moody", seconds=SHORT)
        self.chance = random.Random(SEED)
        self.calls: Counter[str] = Counter()
        self._numbers = itertools.count()
        self._pods: list[Pod] = []
        self._lock = threading.Lock()

    def come(self) -> None:
        pod = self._new_pod()
        with suppress(grpc.RpcError):
            pod.create("main").start()
            self.calls["created"] += 1
        self._keep(pod)

    def come_and_wait(self) -> None:
        """Create a container that never starts, and perhaps stop it."""
        self.calls["never started"] += 1
        pod = self._new_pod()
        with suppress(grpc.RpcError):
            container = pod.create("main")
            if self.chance.random() < 0.5:
                container.stop()
        self._keep(pod)

    def give_up(self) -> None:
        """Ask for a container, and do not wait until it is there."""
        self.calls["given up"] += 1
        pod = self._new_pod()
        pod.kubelet = self.hasty
        with suppress(grpc.RpcError):
            pod.create("main")
        pod.kubelet = self.kubelet
        self._keep(pod)

    def _new_pod(self) -> Pod:
        wishes = {"main": self.chance.choice(WISHES)}
        return self.kubelet.run_pod(f"pod{next(self._numbers)}", wishes)

    def _keep(self, pod: Pod) -> None:
        with self._lock:
            self._pods.append(pod)

    def go(self) -> None:
        with self._lock:
            pod = self._pods.pop(0) if self._pods else None
        if pod is not None:
            self.delete(pod)

    def delete(self, pod: Pod) -> None:
        try:
            pod.delete()
        except grpc.RpcError:  # the runtime was restarted: later
            with self._lock:
                self._pods.append(pod)

    def resize(self) -> None:
        with self._lock:
            pod = self._pods.pop() if self._pods else None
        if pod is not None:
            for container in pod.created:
                with suppress(grpc.RpcError):
                    container.update(self.chance.choice((guaranteed(1000), guaranteed(400))))
                    self.calls["resized"] += 1
            with self._lock:
                self._pods.append(pod)

    def kill(self) -> None:
        self.daemon.kill()
        self.daemon.start()

    def forget(self) -> None:
        """Kill the daemon, and lose what was not moved to its database yet."""
        self.daemon.kill()
        for log in self.daemon.state.glob("store/*-wal"):
            os.truncate(log, 0)
        self.daemon.start()

    def end_at_registration(self) -> None:
        """Let a container end at some moment of the daemon's start."""
        with ThreadPoolExecutor(1) as threads:
            killed = threads.submit(self.kill)
            time.sleep(self.chance.random())
            self._of_one(lambda cgroup_: cgroup.kill(cgroup.processes(cgroup_)))
            killed.result()

    def freeze_container(self) -> None:
        def freeze(path: str) -> None:
            with cgroup.frozen(path):
                time.sleep(self.chance.random())

        self._of_one(freeze)

    def _of_one(self, act: Callable[[str], None]) -> None:
        """Do that to the cgroup of a container, if there is one that runs."""
        with self._lock:
            running = [each for pod in self._pods for each in pod.created]
        if running:
            with suppress(OSError):  # it has no cgroup yet, or none any more
                act(self.chance.choice(running).cgroup)

    def jump(self) -> None:
        """Set the daemon's clock to another time by ten years, or back."""
        self.levers.clock = self.chance.choice((-TEN_YEARS, 0.0, TEN_YEARS))

    def upset(self) -> None:
        """Have updates refused, or done late, for a while."""
        self.runtime.mood.write_text(self.chance.choice(("refused", "late")))
        time.sleep(1)
        self.runtime.mood.unlink()

    def freeze(self) -> None:
        assert self.daemon._process is not None
        self.daemon._process.send(signal.SIGSTOP)
        time.sleep(self.chance.choice((0.5, 2.5)))
        self.daemon._process.send(signal.SIGCONT)

    def restart(self) -> None:
        self.runtime.restart()

    def round(self) -> None:
        """Let several things happen at once, and perhaps something break."""
        acts: list[Callable[[], None]] = [
            self.chance.choice(
                (self.come,) * 6
                + (self.go,) * 2
                + (self.resize,) * 2
                + (self.come_and_wait, self.give_up, self.freeze_container)
            )
            for _ in range(4)
        ]
        faults = (self.kill, self.forget, self.end_at_registration, self.freeze, self.restart)
        fault = self.chance.choice((None,) * 5 + (*faults, self.jump, self.upset))
        if fault is not None:
            acts.append(fault)
            self.calls[fault.__name__] += 1
        with ThreadPoolExecutor(len(acts)) as threads:
            begun = []
            for act in acts:
                time.sleep(self.chance.random() * 0.06)
                begun.append(threads.submit(self._act, act))
        for each in begun:
            each.result()
        while len(self._pods) > MOST_PODS:
            self.go()

    def _act(self, act: Callable[[], None]) -> None:
        with suppress(grpc.RpcError):
            act()

    def wrong(self) -> dict[str, str]:
        """Return what is not as it should be, by the cgroup files."""
        with connected(self.daemon.control) as client:  # a command would take most of the time
            books = client.containers()
        found, running = {}, {}
        for pod in list(self.kubelet.pods):
            for each in pod.created:
                name = f"default/{pod.name}/{each.name}"
                try:
                    if not cgroup.processes(each.cgroup):
                        continue
                    cpus = cgroup.cpuset(each.cgroup).cpus
                except OSError:  # it is not there
                    continue
                booked = books.get(name)
                if booked is None:
                    found[name] = f"runs on {cpus}, in no book"
                elif booked.cpus != cpus:
                    found[name] = f"runs on {cpus}, decided {booked.cpus}"
                running[name] = cpus
        for owner, booked in books.items():
            for other, cpus in running.items():
                if other != owner and booked.exclusive and booked.exclusive & cpus:
                    found[f"{owner} and {other}"] = f"both on {booked.exclusive & cpus}"
        return found

    def leftovers(self) -> list[str]:
        """Return the containers in the books that do not run, and did not stay created."""
        with connected(self.daemon.control) as client:
            books = {name for name, each in client.containers().items() if each.error is None}
        alive = {
            f"default/{each.labels['io.kubernetes.pod.name']}/{each.metadata.name}"
            for each in self.kubelet.call("ListContainers").containers
            if each.state in (messages.CONTAINER_CREATED, messages.CONTAINER_RUNNING)
        }
        return sorted(books - alive)


def test_no_cpu_has_two_owners_whatever_happens_at_once(
    kubelet: Kubelet, runtime: Runtime, daemon: Daemon, levers: Levers
) -> None:
    storm, longest = Storm(kubelet, runtime, daemon, levers), 0.0
    for number in range(ROUNDS):
        storm.round()
        began = time.monotonic()
        wrong = eventually(storm.wrong, lambda found: not found, seconds=SETTLED, every=0.2)
        longest = max(longest, time.monotonic() - began)
        assert not wrong, f"round {number}"
        if number % 100 == 99:
            log.info("%d rounds, settled in %.1f s at most", number + 1, longest)
    storm.hasty.close()
    # CRI-O keeps a container for two minutes whose creation was given up
    assert not eventually(storm.leftovers, lambda found: not found, every=0.5)
    log.info(
        "%s: %d rounds, %s, settled in %.1f s at most",
        kubelet.version(),
        ROUNDS,
        dict(storm.calls),
        longest,
    )
