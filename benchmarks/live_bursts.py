"""The bursts of `benchmarks.bursts` behind a real kube-scheduler and API server, on played nodes.

It takes about a quarter of an hour: images and reports take their time.

    python -m tools.control_plane kube-apiserver kube-scheduler kubectl
    make bench ARGS='live_bursts --mode=plugin'  # without --mode: every mode
"""

from __future__ import annotations

import asyncio
import random
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.bursts import BURSTS, NODES, PODS
from tests.cluster.burst_cluster import MODES, Mode, burst_cluster
from tests.support.burst import bursts


async def play(mode: Mode) -> None:
    with TemporaryDirectory(prefix="nri-policy-") as folder:
        async with burst_cluster(Path(folder), mode, NODES[-1]) as cluster:
            outcome = await cluster.play(bursts(random.Random(0), BURSTS, PODS))
    found = ", ".join(f"{number} {what}" for what, number in sorted(outcome.items()))
    print(f"  {mode}: {found}", flush=True)


def main() -> None:
    print(f"{BURSTS} bursts of {PODS} pods on {NODES[-1]} nodes, kube-scheduler:")
    for mode in [each for each in MODES if f"--mode={each}" in sys.argv] or MODES:
        asyncio.run(play(mode))
