"""What the README says that the daemon costs, measured five times: the median and the range."""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.requests import CREATE, measure, pod_of, runtime_of
from benchmarks.startup import SETTINGS, resident
from benchmarks.table import Section, Timing
from nri_policy.hardware import synthetic
from tests.support import busy_node

RUNS = 5
SIZE = (256, 220)  # CPUs and containers
SETTLE, IDLE = 3.0, 15.0  # seconds


class Claims:
    """All that is measured for them."""

    def __init__(self) -> None:
        requests = [asyncio.run(measure(*SIZE, floor=False))[CREATE] for _ in range(RUNS)]
        processes = [asyncio.run(_idle()) for _ in range(RUNS)]
        decisions = [Timing.of(each["decision"]) for each in requests]
        whole = [Timing.of(each["request"]) for each in requests]
        self.rows = [
            ("a new container waits, median", *_ranged([t.p50 / 1e3 for t in whole], "ms")),
            ("the same, 99th percentile", *_ranged([t.p99 / 1e3 for t in whole], "ms")),
            ("the decision in it, median", *_ranged([t.p50 / 1e3 for t in decisions], "ms")),
            ("resident memory", *_ranged([rss for rss, _ in processes], "MiB")),
            ("of one CPU, while nothing happens", *_ranged([100 * c for _, c in processes], "%")),
        ]

    def section(self) -> Section:
        return Section(
            title="What it costs",
            text=f"A node of {SIZE[0]} CPUs and {SIZE[1]} containers, {RUNS} runs: the median"
            " of the runs, the least and the most. The first three rows are of requests over a unix"
            " socket, daemon and embedded runtime on one core; the others of the program's process"
            f" beside an embedded runtime, its CPU time over {IDLE:g} s. Load of the machine at the"
            f" end: {os.getloadavg()[0]:.1f}.",
            head=("what", "median", "least to most"),
            rows=self.rows,
        )


def _ranged(values: Sequence[float], unit: str) -> tuple[str, str]:
    middle, least, most = statistics.median(values), min(values), max(values)
    return f"{middle:.2g} {unit}", f"{least:.2g} to {most:.2g} {unit}"


async def _idle() -> tuple[float, float]:
    """Return the MiB of a daemon that has placed containers, and the CPUs that it uses idle."""
    cpus, running = SIZE
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        synthetic.write(busy_node.MACHINES[cpus], folder / "host")
        (folder / "settings.yaml").write_text(SETTINGS)
        runtime = await stack.enter_async_context(runtime_of(cpus, folder))
        process = await asyncio.create_subprocess_exec(
            *(Path(sys.executable).parent / "nri-policy", "run"),
            *("--config", folder / "settings.yaml", "--host-root", folder / "host"),
            *("--nri-socket", runtime.socket_path, "--state-dir", folder / "state"),
            *("--containers-dir", folder / "containers"),
            *("--control-socket", folder / "control.sock"),
            stderr=subprocess.DEVNULL,
        )
        try:
            await asyncio.wait_for(runtime.synchronized(), 60)
            milli = busy_node.share(cpus, running)
            for at in range(running):
                await runtime.start_pod(pod_of(f"running-{at}", milli if at % 4 else 1000))
            await asyncio.sleep(SETTLE)
            before, began = _cpu_seconds(process.pid), time.perf_counter()
            await asyncio.sleep(IDLE)
            used = _cpu_seconds(process.pid) - before
            return resident(process.pid), used / (time.perf_counter() - began)
        finally:
            process.terminate()
            await process.wait()


def _cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process; what schedstat has is finer than clock ticks."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((each / "schedstat").read_text().split()[0]) for each in tasks) / 1e9


def main() -> None:
    print(Claims().section().plain())
