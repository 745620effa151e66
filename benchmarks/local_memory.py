"""Measure what it is worth to have memory beside one's CPUs: latency and bandwidth by NUMA node.

`local_memory.c` measures each pair, on one CPU of the first node and with memory of the second
alone; it takes a C compiler. Only hardware shows the difference: the memory of emulated nodes is
equally far from all CPUs.
"""

from __future__ import annotations

import os
import statistics
import subprocess
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.table import Section, number
from nri_policy.hardware.discovery import discover

SOURCE = Path(__file__).with_suffix(".c")
MIB = 512  # more than caches hold
RUNS = 5


def section() -> Section:
    nodes = discover(Path("/")).nodes
    usable = os.sched_getaffinity(0)
    cpus = {node.id: min(own) for node in nodes if (own := usable & {*node.cpus})}
    memory = [node.id for node in nodes if node.memory > 2 * MIB << 20]
    text = (
        f"Reading {MIB} MiB of one NUMA node on one CPU of another: latency of a random access in"
        f" ns, and bandwidth in GB/s. {RUNS} runs: the median, the least and the most."
    )
    if len(nodes) == 1:
        text += (
            " The machine of this page has one NUMA node, so it has no remote memory to compare"
            " with: `make bench ARGS=local_memory` on a node of yours says what placement is worth"
            " there."
        )
    with TemporaryDirectory() as folder:
        program = Path(folder) / "local_memory"
        subprocess.run(["cc", "-O2", "-o", program, SOURCE], check=True)
        rows = [
            (f"node {near}", f"node {at}", *_measure(program, cpu, at))
            for near, cpu in cpus.items()
            for at in memory
        ]
    return Section(
        title="Local and remote memory",
        text=text,
        head=("CPU of", "memory of", "latency", "bandwidth"),
        rows=rows,
    )


def _measure(program: Path, cpu: int, node: int) -> tuple[str, str]:
    done = subprocess.run(
        [program, str(node), str(MIB), str(RUNS)],
        check=True,
        capture_output=True,
        text=True,
        preexec_fn=partial(os.sched_setaffinity, 0, {cpu}),
    )
    runs = [map(float, line.split()) for line in done.stdout.splitlines()]
    latencies, bandwidths = zip(*runs, strict=True)
    return _ranged(latencies), _ranged(bandwidths)


def _ranged(values: tuple[float, ...]) -> str:
    middle, least, most = map(number, (statistics.median(values), min(values), max(values)))
    return f"{middle} ({least} to {most})"


def main() -> None:
    measured = section()
    print(measured.text)
    print(measured.plain())
