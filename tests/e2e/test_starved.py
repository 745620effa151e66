"""A daemon that hardly gets a CPU: the node is not left without the policy for long.

The daemon has the CPU weight of a request of 50m, beside busy loops with that of the rest of a
node of one CPU. Together they get as much of one CPU of the host as a single process would.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import cgroup
from tests.e2e.daemon import Daemon
from tests.e2e.kubelet import BEST_EFFORT, Kubelet, guaranteed
from tests.e2e.runtime import Runtime
from tests.e2e.waiting import eventually

LOOPS = 50
SECONDS = 12.0
ALLOWED = 5.0  # seconds that a container may be without the policy
SHARES, OF = 51, 1024  # of 50m, and of a CPU
_LOOP = "import time\nuntil = time.monotonic() + 60\nwhile time.monotonic() < until: pass"


@pytest.fixture(scope="module")
def patience() -> int:
    """What runtimes have by default."""
    return 2


@contextmanager
def starving(pid: int) -> Iterator[list[int]]:
    """Have a process compete with busy loops for one CPU, with little weight; yield their ids."""
    root = f"/nri-policy-starved-{os.getpid()}"
    cpu = str(max(os.sched_getaffinity(0)))
    loops: list[subprocess.Popen[bytes]] = []
    try:
        for path, shares in ((root, OF), (f"{root}/loops", OF - SHARES), (f"{root}/own", SHARES)):
            cgroup.make(path)
            cgroup.weigh(path, shares)
    except OSError as error:
        cgroup.sweep(root)
        pytest.skip(f"no cgroup with a CPU weight can be made: {error}")
    try:
        command = ["taskset", "--cpu-list", cpu, sys.executable, "-c", _LOOP]
        for _ in range(LOOPS):
            loops.append(subprocess.Popen(command))
            cgroup.enter(f"{root}/loops", loops[-1].pid, "cpu")
        subprocess.run(
            ["taskset", "--all-tasks", "--cpu-list", "--pid", cpu, str(pid)],
            check=True,
            capture_output=True,
        )
        cgroup.enter(f"{root}/own", pid, "cpu")
        yield [each.pid for each in loops]
    finally:
        for each in loops:
            each.kill()
            each.wait()
        with suppress(OSError):  # it is gone
            cgroup.enter("/", pid, "cpu")
        cgroup.sweep(root)


def cpu_seconds(pid: int) -> float:
    """Return the CPU time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize("runtime", ["trixie"], indirect=True)
def test_beside_busy_loops_no_container_is_without_the_policy_for_long(
    daemon: Daemon,
    stage: Kubelet,
    runtime: Runtime,
    settings: dict[str, Any],
) -> None:
    """New settings change all containers' memory nodes, which this runtime hears by a registration.

    The time that is allowed is of a host where they all have a CPU; elsewhere it is as much more.
    """
    for number in range(20):
        stage.run(f"before{number}", BEST_EFFORT)
    waits = []
    with starving(daemon.pid) as loops:
        began, used = time.monotonic(), sum(map(cpu_seconds, loops))
        for number in count():
            if time.monotonic() - began > SECONDS:
                break
            if number % 3 == 0:
                daemon.configure({**settings, "pinMemory": number % 2 == 0})
            container = stage.run(f"new{number}", BEST_EFFORT if number % 5 else guaranteed(1000))
            created = time.monotonic()
            eventually(partial(runtime.played, container.id), lambda played: bool(played.cpus))
            waits.append(time.monotonic() - created)
        had = (sum(map(cpu_seconds, loops)) - used) / (time.monotonic() - began)
    assert max(waits) <= ALLOWED / min(1.0, max(had, 0.01)), daemon.log[-40:]
