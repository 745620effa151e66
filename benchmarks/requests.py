"""Time requests as the runtime sees them: from its call to the plugin's answer.

Over a real unix socket, in one event loop with the embedded runtime, so each figure holds both
sides' work on the wire. The floor is a plugin on the same session that only answers.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

from benchmarks.nri_round_trip import Idle
from benchmarks.table import Section, Timing, number
from nri_policy.daemon.daemon import Daemon, Environment
from nri_policy.manifests.resources import Amounts, ResourceChange
from nri_policy.nri.plugin import PluginIdentity
from nri_policy.nri.session import Session
from nri_policy.simulation.embedded import EmbeddedRuntime
from nri_policy.simulation.link import PluginLink
from tests.support import busy_node, nodes
from tests.support.daemon import make_runtime

SIZES = ((16, 10), (256, 200), (4096, 500))
METHODS = ("CreateContainer", "UpdateContainer", "StopContainer")
PARTS = ("request", "decision", "store", "file")
ROUNDS = 250
BATCHES = 3
CREATE = METHODS[0]

Spent = dict[str, dict[str, list[float]]]  # by method and part, in seconds


class Stopwatch:
    """Notes how long the requests take, and which part of that what takes."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.spent: Spent = {method: {part: [] for part in PARTS} for method in METHODS}
        self._parts: dict[str, float] = {}

    def clocked(self, part: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*given: Any, **named: Any) -> Any:
            began = self._clock()
            try:
                return work(*given, **named)
            finally:
                self._parts[part] = self._clock() - began

        return timed

    @property
    def call(self) -> Callable[..., Any]:
        """PluginLink.call, timed."""
        plain = PluginLink.call

        async def timed(link: PluginLink, method: str, *given: Any, **named: Any) -> Any:
            self._parts = {}
            began = self._clock()
            answer = await plain(link, method, *given, **named)
            if method in self.spent:
                self.spent[method]["request"].append(self._clock() - began)
                for part, took in self._parts.items():
                    self.spent[method][part].append(took)
            return answer

        return timed


def runtime_of(cpus: int, folder: Path) -> EmbeddedRuntime:
    """Return a runtime, to enter, on the busy node of so many CPUs, its socket in *folder*."""
    return make_runtime(nodes.machine(busy_node.MACHINES[cpus]), folder)


async def measure(
    cpus: int, running: int, *, floor: bool, clock: Callable[[], float] = time.perf_counter
) -> Spent:
    """Return what requests took by *clock*, of the daemon or of a plugin that only answers."""
    watch = Stopwatch(clock)
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(dir=".")))
        runtime = await stack.enter_async_context(runtime_of(cpus, folder))
        if floor:
            session = Session(Idle(), PluginIdentity(name="idle", index="05"))
            serving = asyncio.create_task(session.run(str(runtime.socket_path)))
            stack.callback(serving.cancel)
        else:
            memory = stack.enter_context(TemporaryDirectory(dir="/dev/shm"))  # as /run is
            host = Environment(state_dir=folder, containers_dir=Path(memory), delay=lambda _: 0.0)
            daemon = Daemon(nodes.machine(busy_node.MACHINES[cpus]), nodes.settings(), host)
            _watch(daemon, watch)
            stack.push_async_callback(daemon.close)
            await stack.enter_async_context(daemon.serving(runtime.socket_path))
        await runtime.synchronized()
        milli = busy_node.share(cpus, running)
        for at in range(running):
            await runtime.start_pod(pod_of(f"running-{at}", milli if at % 4 else 1000))
        gc.collect()
        gc.freeze()  # as the daemon does
        with patch.object(PluginLink, "call", watch.call):
            for at in range(ROUNDS):
                amount = milli if at % 2 else 1000
                pod = await runtime.start_pod(pod_of(f"new-{at}", amount))
                more = Amounts(cpu=amount + 100)
                await runtime.resize(pod, "main", ResourceChange(requests=more, limits=more))
                await runtime.delete_pod(pod)
        gc.unfreeze()
    return watch.spent


def _watch(daemon: Daemon, watch: Stopwatch) -> None:
    """Have *watch* note the parts of this daemon's work."""
    for part, owner, name in (
        ("decision", daemon.node._engine, "handle"),  # noqa: SLF001
        ("store", daemon._store, "commit"),  # noqa: SLF001 - from the outside it cannot be seen
        ("file", daemon.components.resources, "add"),
    ):
        setattr(owner, name, watch.clocked(part, getattr(owner, name)))


class Requests:
    """All that is measured of requests; made once, for the tables and the targets."""

    def __init__(self) -> None:
        self.spent: dict[tuple[int, int], Spent] = {}
        floors = []
        for _ in range(BATCHES):  # in turns, so that both see the same machine
            floors.append(asyncio.run(measure(*SIZES[0], floor=True)))
            for size in SIZES:
                new = asyncio.run(measure(*size, floor=False))
                old = self.spent.get(size, new)
                self.spent[size] = min(new, old, key=_median)
        self.floor = min(floors, key=_median)

    def timing(self, size: tuple[int, int], method: str, part: str) -> Timing | None:
        spent = self.spent[size][method][part]
        return Timing.of(spent) if spent else None

    @property
    def protocol(self) -> Timing:
        """The floor of a creation."""
        return Timing.of(self.floor[CREATE]["request"])

    def sections(self) -> Iterator[Section]:
        rows: list[tuple[str, ...]] = [
            ("the floor", method, *_pair(Timing.of(self.floor[method]["request"])), *4 * ("",))
            for method in METHODS
        ]
        for size in SIZES:
            for method in METHODS:
                whole = self.timing(size, method, "request")
                assert whole is not None
                parts = [self.timing(size, method, part) for part in PARTS[1:]]
                rest = whole.p50 - sum(part.p50 for part in parts if part)
                cells = [number(part.p50) if part else "" for part in parts]
                name = f"{size[0]} CPUs, {size[1]} containers"
                rows.append((name, method, *_pair(whole), *cells, number(rest)))
        yield Section(
            title="Whole requests",
            text="From the runtime's call to the answer's arrival, over a unix socket, in µs; both"
            " sides share one core here. The floor is a plugin that only answers. Of the median:"
            " the engine's decision, the store's commit, the container's file of exposed resources,"
            " and the rest, which is the protocol and the conversion of messages;"
            " nothing is logged here.",
            head=("node", "request", "p50", "p99", "decision", "store", "file", "rest"),
            rows=rows,
        )


def _median(spent: Spent) -> float:
    return Timing.of(spent[CREATE]["request"]).p50


def _pair(timing: Timing) -> tuple[str, str]:
    return number(timing.p50), number(timing.p99)


def pod_of(name: str, milli: int) -> dict[str, object]:
    amounts = {"cpu": f"{milli}m", "memory": "16Mi"}
    container = {"name": "main", "image": "busybox", "resources": {"limits": amounts}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"containers": [container]},
    }


def main() -> None:
    for section in Requests().sections():
        print(section.plain())
