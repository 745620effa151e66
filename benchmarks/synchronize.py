"""Time a daemon's answer to the Synchronize of a busy node, from its bytes to the answer's.

The store's commit and the files that containers are shown are in it. The runtime's deadline is two
seconds, and the first Synchronize of a daemon is the most it ever has to do at once.
"""

from __future__ import annotations

import asyncio
import logging
import math
import statistics
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from nri_policy.daemon.daemon import Daemon, Environment
from nri_policy.foundation.clock import Clock
from nri_policy.nri.service import PluginService
from nri_policy.proto import nri_pb2 as pb
from tests.support import nodes
from tests.support.daemon import make_runtime, pod

MACHINE = "package:2 numa:4(memory=32GiB) l3:4 core:4 pu:2"  # 256 CPUs
KINDS = [("", False), ("100m", True), ("250m", True), ("500m", False), ("2", False)]
REPEATS = 10
COUNTS = (100, 500, 1000)  # containers


async def inventory(containers: int, folder: Path) -> pb.SynchronizeRequest:
    """Return the list that a runtime sends of so many containers, none of them placed."""
    runtime = make_runtime(nodes.machine(MACHINE), folder)
    for number in range(containers):
        # guaranteed CPUs for every tenth only, so that all find room
        cpu, shared = KINDS[number % 4 if number % 10 else 4]
        await runtime.start_pod(pod(f"pod-{number}", cpu, shared=shared))
    pods, running = runtime.inventory()
    return pb.SynchronizeRequest(pods=pods, containers=running)


async def synchronize(service: PluginService, request: pb.SynchronizeRequest) -> tuple[float, int]:
    """Return how long the answer takes, in milliseconds, and how many containers it changes."""
    payload = request.SerializeToString()
    began = time.perf_counter()
    answer = await service.answer("Synchronize", payload, budget=math.inf)
    taken = (time.perf_counter() - began) * 1e3
    updates = pb.SynchronizeResponse.FromString(answer).update
    updated = {update.container_id: update.linux.resources.cpu for update in updates}
    for container in request.containers:  # as the runtime does
        if container.id in updated:
            container.linux.resources.cpu.MergeFrom(updated[container.id])
    return taken, len(updated)


async def measure(containers: int) -> dict[str, tuple[float, float, int]]:
    """Return for each sort of daemon the median and the most ms, and how many it changes."""
    logging.disable(logging.WARNING)
    taken: dict[str, list[float]] = {}
    changed: dict[str, int] = {}
    with TemporaryDirectory() as folder:
        unplaced = await inventory(containers, Path(folder))
        for repeat in range(REPEATS):
            request = pb.SynchronizeRequest()
            request.CopyFrom(unplaced)
            host = Environment(state_dir=Path(folder) / str(repeat))
            for life in ("installed", "restarted"):
                daemon = Daemon(nodes.machine(MACHINE), nodes.settings(), host)
                service = PluginService(daemon.plugin, daemon.node.turn, Clock())
                for what in (life, "again") if life == "restarted" else (life,):
                    milliseconds, changed[what] = await synchronize(service, request)
                    taken.setdefault(what, []).append(milliseconds)
                daemon._store.close()  # noqa: SLF001
    return {
        what: (statistics.median(each), max(each), changed[what]) for what, each in taken.items()
    }


def main() -> None:
    for containers in COUNTS:
        for what, (median, most, changed) in asyncio.run(measure(containers)).items():
            print(
                f"{containers:5} containers, {what:9}  median {median:7.1f} ms"
                f"  worst {most:7.1f} ms  {changed:4} changed"
            )
