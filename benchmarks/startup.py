"""Time what comes before the first request: discovery, the start of the program; and its memory."""

from __future__ import annotations

import asyncio
import atexit
import math
import os
import subprocess
import sys
import time
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.requests import runtime_of
from benchmarks.table import Section, number
from nri_policy.hardware import synthetic
from nri_policy.hardware.discovery import discover
from nri_policy.simulation.embedded import EmbeddedRuntime
from tests.support import busy_node, nodes

CPUS = 256
STARTS = 5
SETTINGS = """\
apiVersion: config.nri/v1alpha1
kind: TopologyAwarePolicy
metadata: {name: default}
spec:
  reservedResources: {cpu: 750m}
  agent: {podResourceAPI: false}
"""


class Startup:
    """All that is measured of the start; made once, for the tables and the targets."""

    def __init__(self) -> None:
        self.discovery = {cpus: _discovery(spec) for cpus, spec in busy_node.MACHINES.items()}
        starts = [asyncio.run(start()) for _ in range(STARTS)]
        self.ready = min(ready for ready, _, _ in starts)  # seconds
        self.rss = max(rss for _, _, rss in starts)  # MiB
        self.nothing = min(_plain_python() for _ in range(STARTS))  # seconds

    def sections(self) -> Iterator[Section]:
        yield Section(
            title="Start",
            text=f"At {CPUS} CPUs, with no containers: from the start of the process to the answer"
            " of the runtime's Synchronize, and the memory that it holds then. It includes the"
            f" start of Python itself, which takes {1e3 * self.nothing:.0f} ms here.",
            head=("what", "value"),
            rows=[
                ("start to READY", f"{1e3 * self.ready:.0f} ms"),
                ("resident memory", f"{self.rss:.0f} MiB"),
            ],
        )
        yield Section(
            title="Discovery",
            text="Reading the hardware from sysfs, in ms.",
            head=("CPUs", "ms"),
            rows=[(str(cpus), number(1e3 * took)) for cpus, took in self.discovery.items()],
        )


def _discovery(spec: str) -> float:
    """Return the seconds that it takes to read a machine."""
    with TemporaryDirectory() as folder:
        synthetic.write(spec, Path(folder))
        least = math.inf
        for _ in range(3):
            began = time.perf_counter()
            discover(Path(folder))
            least = min(least, time.perf_counter() - began)
    return least


async def start() -> tuple[float, float, float]:
    """Start the program; return the seconds until it is ready, its CPU time and MiB then."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        synthetic.write(busy_node.MACHINES[CPUS], folder / "host")
        (folder / "settings.yaml").write_text(SETTINGS)
        runtime = await stack.enter_async_context(runtime_of(CPUS, folder))
        assert nodes.machine(busy_node.MACHINES[CPUS]).online == runtime.machine.online_cpus
        _compiled()
        began = time.perf_counter()
        async with program(folder, runtime) as process:
            await asyncio.wait_for(runtime.synchronized(), 60)
            took = time.perf_counter() - began
            return took, cpu_seconds(process.pid), resident(process.pid)


@asynccontextmanager
async def program(
    folder: Path, runtime: EmbeddedRuntime, *more: str | Path
) -> AsyncIterator[Process]:
    """Run the program beside *runtime*, with what *folder* has of settings and host.

    *more* are further arguments.
    """
    process = await asyncio.create_subprocess_exec(
        *(Path(sys.executable).parent / "nri-policy", "run"),
        *("--settings", folder / "settings.yaml", "--host-root", folder / "host"),
        *("--nri-socket", runtime.socket_path, "--state-dir", folder / "state"),
        *("--containers-dir", folder / "containers"),
        *("--control-socket", folder / "control.sock"),
        *more,
        stderr=subprocess.DEVNULL,
        env=_compiled(),
    )
    try:
        yield process
    finally:
        process.terminate()
        await process.wait()


@cache
def _compiled() -> dict[str, str]:
    """Return an environment in which all modules are compiled, as in an installation."""
    compiled = TemporaryDirectory()
    atexit.register(compiled.cleanup)
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": compiled.name}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    modules = "import nri_policy.completion, nri_policy.cli.node.run, nri_policy.daemon.process"
    subprocess.run([sys.executable, "-c", modules], check=True, env=environment)
    return environment


def resident(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of all threads of a process, ended ones included."""
    return time.clock_gettime(~pid << 3 | 2)  # its clock as the kernel numbers them


def _plain_python() -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import asyncio"], check=True)
    return time.perf_counter() - began


def main() -> None:
    for section in Startup().sections():
        print(section.plain())
