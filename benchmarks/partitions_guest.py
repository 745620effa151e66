"""Measure kernel partitions on an emulated machine with Linux 6.12; what, `measure_partitions` has.

The emulated machine takes 1 ns of its own time for an instruction, and runs its CPUs in turn, so
the load of the host does not change its figures. It takes an hour and more.
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.table import Section
from tests.guest.emulator import Hardware, boot, prepare
from tests.guest.inside.measure_partitions import KINDS, SIZES
from tests.guest.payload import COMMAND, SEND, payload

ROUNDS = 8
STARTS, WITHOUT = 1000, 100
SECONDS = 4 * 3600
MACHINE = Hardware(
    smp="8,sockets=1,cores=8,threads=1",
    memory=2048,
    numa=("-object memory-backend-ram,id=m0,size=2048M", "-numa node,nodeid=0,memdev=m0,cpus=0-7"),
    devices=("-icount shift=0",),
)
MODULE, FIGURES = "tests.guest.inside.measure_partitions", "figures.json"


def measured(folder: Path, rounds: int, starts: int, without: int) -> Any:
    """Return what the machine has measured: `measure_partitions.Figures`."""
    prepare()
    measure = f"{MODULE} {rounds} {starts} {without} > /tmp/out/{FIGURES}\n"
    run = {"run": f"{COMMAND}python3 -m {measure}{SEND}"}
    outcome = boot(MACHINE, payload(folder) | run, folder, seconds=SECONDS)
    return json.loads(outcome.files[FIGURES])


def sections(figures: Any) -> list[Section]:
    """Return the figures as tables."""
    runtime = statistics.median(figures["runtime"])
    rows = []
    for kind in KINDS:
        few, many = (statistics.median(figures["took"][f"{kind}/{size}"]) for size in SIZES)
        whole = (runtime + many) / (runtime + few)
        rows.append((kind, f"{1e3 * few:.0f}", f"{1e3 * many:.0f}", f"{whole:.2f}"))
    samples = [
        (kind, *(str(of[each]) for each in ("starts", "looks", "running", "allowed")))
        for kind, of in figures["samples"].items()
    ]
    return [
        Section(
            title="An owner beside sharers",
            text="What the daemon adds to a creation and a start, in ms, medians. The ratio is that"
            f" of both with a real containerd, which takes {1e3 * runtime:.0f} ms for its part."
            f" {figures['missing']} owners were no partition when their start was answered.",
            head=("partitions", *(f"beside {size}" for size in SIZES), "ratio"),
            rows=rows,
        ),
        Section(
            title="Other processes on exclusive CPUs after the start",
            text="Looks at all processes of the machine right after the answer to the start, while"
            " one process of the host computes that is pinned to the CPU, and one that is not.",
            head=("partitions", "starts", "looks", "seen to run there", "seen to be allowed to"),
            rows=samples,
        ),
    ]


def main() -> None:
    """Measure and print all of it."""
    with TemporaryDirectory() as folder:
        figures = measured(Path(folder), ROUNDS, STARTS, WITHOUT)
    for each in sections(figures):
        print(each.plain())
