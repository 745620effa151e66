"""Play the same pods to this daemon and to nri-plugins' topology-aware policy, in turns.

Each runs as a process of its own beside an embedded runtime, on the same synthetic machine. Its
node has Guaranteed, Burstable and BestEffort pods, a quarter of each kind, and as many with CPUs of
their own. Then pods of these kinds come, are resized and go. A wait is what the runtime sees:
from its call to the plugin's answer, both sides of the socket included. CPU time is that of the
plugin's process alone. The hosts have cgroups as files, so that the daemon checks them and writes
them as on a real node. It needs the program that `python3 -m tools.nri_plugins` builds.
"""

from __future__ import annotations

import asyncio
import platform
import statistics
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

from benchmarks.cgroup_files import CgroupFiles
from benchmarks.requests import CREATE
from benchmarks.startup import SETTINGS, cpu_seconds, program, resident
from benchmarks.table import Section, number
from nri_policy.hardware import synthetic
from nri_policy.manifests.resources import Amounts, ResourceChange
from nri_policy.simulation.embedded import EmbeddedRuntime
from nri_policy.simulation.link import PluginLink
from tests.support import busy_node, nodes
from tests.support.daemon import make_runtime
from tools import nri_plugins

#: A machine, and how many containers run on it.
SIZES = {
    16: ("package:1 numa:2 core:4 pu:2", 10),
    32: ("package:2 numa:2 core:4 pu:2", 25),
    256: (busy_node.MACHINES[256], 200),
}
ROUNDS, RUNS = 20, 5
REST = 0.15  # seconds after a pod's start, resize and deletion, for what is done later
KINDS: Sequence[Callable[[int], tuple[dict[str, str], dict[str, str]]]] = (
    lambda _: ({"cpu": "1", "memory": "16Mi"},) * 2,
    lambda milli: ({"cpu": f"{milli}m", "memory": "16Mi"},) * 2,
    lambda milli: ({"cpu": f"{milli}m", "memory": "16Mi"}, {"cpu": "4", "memory": "64Mi"}),
    lambda _: ({}, {}),
)
PATIENCE = 60  # seconds to be synchronized


@dataclass(slots=True)
class Side:
    """One of the two programs beside its runtime, and what was measured there."""

    runtime: EmbeddedRuntime
    cgroups: CgroupFiles
    pid: int
    milli: int  # of what asks for a share
    calls: int = 0
    event: list[float] = field(default_factory=list)  # seconds of CPU a call, of each run
    pod: list[float] = field(default_factory=list)  # the same of a pod
    waits: list[float] = field(default_factory=list)  # seconds, of each creation
    resident: float = 0.0  # MiB in the end

    async def fill(self, running: int) -> None:
        """Start the pods that stay."""
        for at in range(running):
            await self.runtime.start_pod(pod_of(f"running-{at}", at, self.milli))

    async def play(self, first: int) -> None:
        """Create, resize and remove ROUNDS pods, numbered from the given one."""
        self.calls, before = 0, cpu_seconds(self.pid)
        for at in range(first, first + ROUNDS):
            pod = await self.runtime.start_pod(pod_of(f"new-{at}", at, self.milli))
            await asyncio.sleep(REST)
            if at % len(KINDS) < 2:  # as a Guaranteed one
                amount = (1000 if at % len(KINDS) == 0 else self.milli) + 100
                more = Amounts(cpu=amount)
                await self.runtime.resize(pod, "main", ResourceChange(requests=more, limits=more))
                await asyncio.sleep(REST)
            await self.runtime.delete_pod(pod)
            self.cgroups.remove(pod)
            await asyncio.sleep(REST)
        used = cpu_seconds(self.pid) - before
        self.event.append(used / self.calls)
        self.pod.append(used / ROUNDS)

    def timed(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        """Return *plain*, which calls the plugin, timed."""

        async def call(link: PluginLink, method: str, *given: Any, **named: Any) -> Any:
            self.calls += 1
            began = time.perf_counter()
            answer = await plain(link, method, *given, **named)
            if method == CREATE:
                self.waits.append(time.perf_counter() - began)
            return answer

        return call


def pod_of(name: str, at: int, milli: int) -> dict[str, object]:
    """Return the *at*-th pod; every kind has its turn."""
    requests, limits = KINDS[at % len(KINDS)](milli)
    resources = {"requests": requests, "limits": limits}
    container = {"name": "main", "image": "busybox", "resources": resources}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"containers": [container]},
    }


@asynccontextmanager
async def peer(folder: Path, runtime: EmbeddedRuntime) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run nri-plugins' program beside *runtime*, as `program` does ours."""
    process = await asyncio.create_subprocess_exec(
        nri_plugins.program(),
        *("--config-file", folder / "settings.yaml", "--host-root", folder / "host"),
        *("--nri-socket", runtime.socket_path, "--state-dir", folder / "state"),
        *("--pid-file", folder / "pid", "--nri-plugin-name", "topology-aware"),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        process.terminate()
        await process.wait()


async def measure(spec: str, running: int) -> Sequence[Side]:
    """Return both sides with their figures: ours first."""
    async with AsyncExitStack() as stack:
        sides = []
        for run in (program, peer):
            folder = Path(stack.enter_context(TemporaryDirectory(dir="/dev/shm")))  # as /run is
            synthetic.write(spec, folder / "host")
            (folder / "settings.yaml").write_text(SETTINGS)
            runtime = await stack.enter_async_context(
                make_runtime(nodes.machine(spec), folder, cgroup_driver="cgroupfs")
            )
            cgroups = CgroupFiles(folder / "host", runtime)
            process = await stack.enter_async_context(run(folder, runtime))
            await asyncio.wait_for(runtime.synchronized(), PATIENCE)
            cpus = len(runtime.machine.online_cpus)
            side = Side(runtime, cgroups, process.pid, busy_node.share(cpus, running))
            await side.fill(running)
            sides.append(side)
        for turn in range(RUNS):
            for side in sides:
                with patch.object(PluginLink, "call", side.timed(PluginLink.call)):
                    await side.play(turn * ROUNDS)
        for side in sides:
            side.resident = resident(side.pid)
        return sides


def section() -> Section:
    """Measure all sizes."""
    text = (
        f"Both daemons beside an embedded runtime on the same synthetic machine, in turns, {RUNS}"
        f" runs: Guaranteed, Burstable and BestEffort pods, and pods with exclusive CPUs, start,"
        " are resized and end while the given number of such containers runs. Cells have the median"
        ' (minimum to maximum). "CPU time of an event" is the daemon\'s CPU time for one request of'
        ' the runtime. "CPU time of a pod" is all that it uses while a pod starts, is resized (half'
        f" of them) and ends. The pods rest {REST} s after each step, so that what is checked and"
        " written later counts, too. Their cgroups are files that both daemons can write."
        " A container waits from the runtime's request to the answer. nri-plugins is"
        " its topology-aware policy,"
        f" commit {nri_plugins.COMMIT[:8]} (30 commits after v0.14.0), with the same settings."
        f" nri-policy ran on Python {platform.python_version()}; its image has Debian 13's."
        " Neither is connected to a cluster, which takes more memory."
    )
    rows = []
    if nri_plugins.at_hand() is None:
        text = "Not measured: `python3 -m tools.nri_plugins` builds what it needs."
    else:
        for cpus, (spec, running) in SIZES.items():
            ours, theirs = asyncio.run(measure(spec, running))
            size = (str(cpus), str(running))
            for what, here, there, unit in (
                ("CPU time of a pod, ms", ours.pod, theirs.pod, 1e3),
                ("CPU time of an event, ms", ours.event, theirs.event, 1e3),
                ("a new container waits, ms", ours.waits, theirs.waits, 1e3),
                ("resident memory, MiB", [ours.resident], [theirs.resident], 1.0),
            ):
                rows.append((what, *size, *_compared(here, there, unit)))
    return Section(
        title="Beside nri-plugins",
        text=text,
        head=("what", "CPUs", "containers", "nri-policy", "nri-plugins", "times as much"),
        rows=rows,
    )


def _compared(ours: Sequence[float], theirs: Sequence[float], unit: float) -> Sequence[str]:
    """Return the medians with the least and the most, and how many times as much theirs is."""
    ratio = statistics.median(theirs) / statistics.median(ours)
    return (_ranged(ours, unit), _ranged(theirs, unit), number(ratio))


def _ranged(values: Sequence[float], unit: float) -> str:
    middle, least, most = (
        number(unit * each) for each in (statistics.median(values), min(values), max(values))
    )
    return f"{middle} ({least} to {most})" if len(values) > 1 else middle


def main() -> None:
    print(section().plain())
