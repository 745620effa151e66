"""Time an owner's creation and start beside sharers, with kernel partitions or without.

Over a real unix socket, in one event loop with the embedded runtime; cgroups are simulated, so
no kernel moves any process: what is timed is the daemon's work. Four daemons take turns, with 0
and 300 sharers each. An owner's sharers have to leave its CPUs: without a partition its start waits
until their cpusets are written, with one it does not.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

from benchmarks.table import Section
from nri_policy.daemon.daemon import Daemon, Environment
from nri_policy.proto import nri_pb2
from nri_policy.simulation.cgroups import POSSIBLE, SimulatedCgroups
from nri_policy.simulation.containers import SimulatedContainer
from nri_policy.simulation.cpusets import CpusetTree
from nri_policy.simulation.embedded import EmbeddedRuntime
from nri_policy.simulation.link import PluginLink
from tests.support import nodes
from tests.support.daemon import make_runtime, pod

SHARERS = (0, 300)
SETTINGS = ("off", "root")
ROUNDS = 12
CREATING = 0.05  # seconds that a runtime needs at least from the answer to the start
REST = 0.4  # seconds


class QuickCgroups(SimulatedCgroups):
    """The simulated cgroups without a search through all containers for each file."""

    def __init__(self, runtime: EmbeddedRuntime) -> None:
        super().__init__(runtime)
        self._by_name: dict[str, SimulatedContainer] = {}
        self._kernel = CpusetTree(POSSIBLE)
        self.kernel_seconds = 0.0  # in which it wrote partitions: no kernel's time

    def note(self) -> None:
        """Take note of the containers that there are now: real files need nobody to do so."""
        self._by_name = {each.message.linux.cgroups_path: each for each in self._runtime.containers}
        self._kernel = super()._follow()

    def write(self, path: str, name: str, text: str) -> None:
        """Write a file, as the kernel does."""
        began = time.perf_counter()
        super().write(path, name, text)
        self.kernel_seconds += time.perf_counter() - began

    def _of(self, cgroup: str) -> SimulatedContainer | None:
        return self._by_name.get(cgroup)

    def _follow(self) -> CpusetTree:
        return self._kernel


@asynccontextmanager
async def node(setting: str, sharers: int) -> AsyncIterator[Callable[[int], Any]]:
    """Yield what starts an owner on a node with sharers, and returns how long requests took."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(dir="/dev/shm")))
        runtime = await stack.enter_async_context(make_runtime(nodes.machine(nodes.SMALL), folder))
        cgroups, plain = QuickCgroups(runtime), PluginLink.call
        spent: list[float] = []

        async def timed(
            link: PluginLink, method: str, asked: Any, *given: Any, **named: Any
        ) -> Any:
            starts = method == "StateChange" and asked.event == nri_pb2.START_CONTAINER
            if starts:
                await asyncio.sleep(CREATING)
            cgroups.note()
            cgroups.kernel_seconds, began = 0.0, time.perf_counter()
            answer = await plain(link, method, asked, *given, **named)
            if starts or method == "CreateContainer":
                spent.append(time.perf_counter() - began - cgroups.kernel_seconds)
            return answer

        host = Environment(state_dir=folder, root=folder, cgroups=cgroups, delay=lambda _: 0.0)
        settings = nodes.settings(exclusivePartitions=setting)
        daemon = Daemon(nodes.machine(nodes.SMALL), settings, host)
        stack.push_async_callback(daemon.close)
        await stack.enter_async_context(daemon.serving(runtime.socket_path))
        await runtime.synchronized()

        async def start(number: int) -> tuple[float, float]:
            spent.clear()
            with patch.object(PluginLink, "call", timed):
                owner = await runtime.start_pod(pod(f"owner-{number}", "2"))
                creation, started = spent
                await asyncio.sleep(REST)  # until all is in force
                await runtime.delete_pod(owner)
            await asyncio.sleep(REST)
            return creation, started

        with patch.object(PluginLink, "call", timed):
            for at in range(sharers):
                await runtime.start_pod(pod(f"sharer-{at}"))
        await asyncio.sleep(REST)
        yield start


async def measure() -> dict[tuple[str, int], tuple[float, float]]:
    """Return the quickest creation and start, in seconds, by setting and number of sharers."""
    kinds = [(setting, sharers) for setting in SETTINGS for sharers in SHARERS]
    took: dict[tuple[str, int], list[tuple[float, float]]] = {kind: [] for kind in kinds}
    async with AsyncExitStack() as stack:
        starts = {kind: await stack.enter_async_context(node(*kind)) for kind in kinds}
        gc.collect()
        gc.freeze()  # as the daemon does
        for at in range(ROUNDS):
            for kind, start in starts.items():
                took[kind].append(await start(at))
        gc.unfreeze()
    return {
        kind: (min(each for each, _ in seconds), min(each for _, each in seconds))
        for kind, seconds in took.items()
    }


def section() -> Section:
    """Return the table."""
    found = asyncio.run(measure())
    few, many = SHARERS
    rows = [
        (
            f"{what}, exclusivePartitions: {setting}",
            *(f"{1e3 * found[setting, sharers][at]:.2f}" for sharers in SHARERS),
            f"{found[setting, many][at] / found[setting, few][at]:.2f}",
        )
        for at, what in enumerate(("creation", "start"))
        for setting in SETTINGS
    ]
    return Section(
        title="An owner of two CPUs beside sharers, with kernel partitions or without",
        text=f"Its creation and start, in ms: the quickest of {ROUNDS}, in turns.",
        head=("", f"beside {few}", f"beside {many}", "ratio"),
        rows=rows,
    )


def main() -> None:
    print(section().plain())
