"""Everything at once on the cgroups of this host: no CPU ever stays with two owners.

Pods come, go and are resized from several threads, while the daemon is killed or frozen and the
runtime restarts. After each round the cgroup files are what was decided, for every container that
has a process: within five seconds in `make stress`, where NRI_POLICY_STORM is the rounds on each
runtime and NRI_POLICY_SEED what chance begins with.
"""

from __future__ import annotations

import itertools
import logging
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import grpc

from nri_policy.control.client import connected
from tests.e2e import cgroup
from tests.e2e.daemon import Daemon
from tests.e2e.kubelet import BEST_EFFORT, Kubelet, Pod, Resources, guaranteed
from tests.e2e.runtime import Runtime
from tests.e2e.test_real_host import host_root, settings
from tests.e2e.waiting import eventually

__all__ = ["host_root", "settings"]  # fixtures

log = logging.getLogger(__name__)

ROUNDS = int(os.environ.get("NRI_POLICY_STORM", "3"))
SEED = int(os.environ.get("NRI_POLICY_SEED", "1"))
# seconds after the last event; a few rounds run anywhere, on slow machines too
SETTLED = 5.0 if "NRI_POLICY_STORM" in os.environ else 120.0
MOST_PODS = 6
WISHES = (BEST_EFFORT, guaranteed(1000), guaranteed(300), Resources(milli_cpu=100))


class Storm:
    """What goes on at once on one runtime."""

    def __init__(self, kubelet: Kubelet, runtime: Runtime, daemon: Daemon) -> None:
        self.kubelet, self.runtime, self.daemon = kubelet, runtime, daemon
        self.chance = random.Random(SEED)
        self.calls: Counter[str] = Counter()
        self._numbers = itertools.count()
        self._pods: list[Pod] = []
        self._lock = threading.Lock()

    def come(self) -> None:
        pod = self.kubelet.run_pod(
            f"pod{next(self._numbers)}", {"main": self.chance.choice(WISHES)}
        )
        with suppress(grpc.RpcError):
            pod.create("main").start()
            self.calls["created"] += 1
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
            self.chance.choice((self.come, self.come, self.come, self.go, self.resize))
            for _ in range(4)
        ]
        fault = self.chance.choice((None, None, None, self.kill, self.freeze, self.restart))
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


def test_no_cpu_has_two_owners_whatever_happens_at_once(
    kubelet: Kubelet, runtime: Runtime, daemon: Daemon
) -> None:
    storm, longest = Storm(kubelet, runtime, daemon), 0.0
    for number in range(ROUNDS):
        storm.round()
        began = time.monotonic()
        wrong = eventually(storm.wrong, lambda found: not found, seconds=SETTLED, every=0.2)
        longest = max(longest, time.monotonic() - began)
        assert not wrong, f"round {number}"
        if number % 100 == 99:
            log.info("%d rounds, settled in %.1f s at most", number + 1, longest)
    log.info(
        "%s: %d rounds, %s, settled in %.1f s at most",
        kubelet.version(),
        ROUNDS,
        dict(storm.calls),
        longest,
    )
