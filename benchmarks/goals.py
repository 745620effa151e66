"""The daemon's costs beside their limits, in CPU time where it can be measured.

CPU time differs less than wall time on a machine that others use as well. Goals, not promises: the
README's are in `claims`.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from benchmarks.claims import Claim, idle
from benchmarks.decisions import TYPICAL, told
from benchmarks.requests import CREATE, SIZES, measure
from benchmarks.startup import start
from benchmarks.table import Section

RUNS = 5
FEW, LARGE = (256, 20), (8192, 2000)  # CPUs and containers


def section() -> Section:
    """Measure all of them."""
    return Section(
        title="Goals",
        text=f"{RUNS} runs each. A creation's goal is a ratio to a plugin that only answers, in the"
        " same run, both sides of the socket included. The start is until the runtime has the"
        " answer to its Synchronize, Python's own included.",
        head=("what", "goal", "median", "least to most", "holds in"),
        rows=[goal.row() for goal in _goals()],
    )


def _goals() -> Iterator[Claim]:
    clocks: dict[str, Callable[[], float]] = {
        "time": time.perf_counter,
        "CPU time": time.process_time,
    }
    for name, clock in clocks.items():
        what = f"a creation at {TYPICAL[0]} CPUs, {TYPICAL[1]} containers: {name}"
        yield Claim(what=what, limit=3, unit="floors", measured=_runs(partial(_creation, clock)))
    starts = [asyncio.run(start()) for _ in range(RUNS)]
    yield Claim(
        what=f"start to synchronised at {TYPICAL[0]} CPUs: CPU time",
        limit=0.3,
        unit="s",
        measured=[used for _, used, _ in starts],
    )
    yield Claim(
        what=f"nothing happens, {FEW[1]} containers: CPU time a second",
        limit=0.2,
        unit="ms",
        measured=[1e3 * used for _, used in _processes(*FEW)],
    )
    for cpus, running, limit in ((*TYPICAL, 56), (*LARGE, 150)):
        yield Claim(
            what=f"resident memory at {cpus} CPUs, {running} containers",
            limit=limit,
            unit="MiB",
            measured=[resident for resident, _ in _processes(cpus, running)],
        )
    yield Claim(
        what="a decision that changes 499 others, of one that changes none",
        limit=2,
        unit="times",
        measured=_runs(_others),
    )


def _runs(measured: Callable[[], float]) -> Sequence[float]:
    return [measured() for _ in range(RUNS)]


def _processes(cpus: int, running: int) -> Sequence[tuple[float, float]]:
    return [asyncio.run(idle(cpus, running)) for _ in range(RUNS)]


def _creation(clock: Callable[[], float]) -> float:
    """Return how many times as much a creation takes as the floor does."""
    floor, whole = (
        asyncio.run(measure(*size, floor=plain, clock=clock))[CREATE]["request"]
        for size, plain in ((SIZES[0], True), (TYPICAL, False))
    )
    return statistics.median(whole) / statistics.median(floor)


def _others() -> float:
    everybody, nobody = told(TYPICAL[0], 499)
    return everybody / nobody


def main() -> None:
    print(section().plain())
