"""Limits that the README promises, measured five times: the median, the range, and if they hold."""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.decisions import TYPICAL
from benchmarks.requests import CREATE, measure, pod_of, runtime_of
from benchmarks.startup import SETTINGS, cpu_seconds, program, resident
from benchmarks.table import Section, Timing, number
from nri_policy.hardware import synthetic
from tests.support import busy_node
from tests.support.apiserver import APIServer

RUNS = 5
SETTLE, IDLE = 3.0, 15.0  # seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A limit that the README states, and the measured value."""

    what: str
    limit: float
    unit: str
    measured: Sequence[float]  # of each run

    def row(self) -> tuple[str, ...]:
        middle, least, most = (
            number(value)
            for value in (statistics.median(self.measured), min(self.measured), max(self.measured))
        )
        held = sum(value <= self.limit for value in self.measured)
        return (
            self.what,
            f"{self.limit:g} {self.unit}",
            f"{middle} {self.unit}",
            f"{least} to {most} {self.unit}",
            f"{held} of {len(self.measured)} runs",
        )


def section() -> Section:
    requests = [asyncio.run(measure(*TYPICAL, floor=False))[CREATE] for _ in range(RUNS)]
    processes = [asyncio.run(idle(*TYPICAL)) for _ in range(RUNS)]
    whole = [Timing.of(each["request"]) for each in requests]
    decisions = [Timing.of(each["decision"]) for each in requests]
    shares = [100 * d.p50 / w.p50 for d, w in zip(decisions, whole, strict=True)]
    claims = [
        Claim(
            what="a new container waits, median",
            limit=1.5,
            unit="ms",
            measured=[each.p50 / 1e3 for each in whole],
        ),
        Claim(
            what="a new container waits, 99th percentile",
            limit=3,
            unit="ms",
            measured=[each.p99 / 1e3 for each in whole],
        ),
        Claim(what="of this the decision, median", limit=35, unit="%", measured=shares),
        Claim(
            what="resident memory",
            limit=90,
            unit="MiB",
            measured=[resident for resident, _ in processes],
        ),
        Claim(
            what="of one CPU, while nothing happens",
            limit=1,
            unit="%",
            measured=[100 * used for _, used in processes],
        ),
    ]
    return Section(
        title="Limits that the README promises",
        text=f"A node of {TYPICAL[0]} CPUs and {TYPICAL[1]} containers, {RUNS} runs. The first"
        " three rows are of creations over a unix socket, with the daemon and an embedded runtime"
        " on one core. The other rows are of the daemon's process, in a cluster and after a"
        f" question; its CPU time is measured over {IDLE:g} s.",
        head=("what", "at most", "median", "least to most", "holds in"),
        rows=[claim.row() for claim in claims],
    )


async def idle(cpus: int, running: int) -> tuple[float, float]:
    """Return the MiB of a daemon that has placed containers, and the CPUs that it uses idle.

    It runs in a cluster, and was asked for its status once: both load libraries.
    """
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        synthetic.write(busy_node.MACHINES[cpus], folder / "host")
        (folder / "settings.yaml").write_text(SETTINGS)
        runtime = await stack.enter_async_context(runtime_of(cpus, folder))
        cluster = await stack.enter_async_context(APIServer(folder))
        in_cluster = ("--kubeconfig", cluster.kubeconfig, "--node-name", cluster.node)
        async with program(folder, runtime, *in_cluster) as process:
            await asyncio.wait_for(runtime.synchronized(), 60)
            milli = busy_node.share(cpus, running)
            for at in range(running):
                await runtime.start_pod(pod_of(f"running-{at}", milli if at % 4 else 1000))
            command = (Path(sys.executable).with_name("nri-policy"), "status", "--control-socket")
            asked = await asyncio.create_subprocess_exec(
                *command, folder / "control.sock", stdout=subprocess.DEVNULL
            )
            assert await asked.wait() == 0
            await asyncio.sleep(SETTLE)
            before, began = cpu_seconds(process.pid), time.perf_counter()
            await asyncio.sleep(IDLE)
            used = cpu_seconds(process.pid) - before
            return resident(process.pid), used / (time.perf_counter() - began)


def main() -> None:
    print(section().plain())
