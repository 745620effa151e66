"""The fault campaign: `make faults`, with ROUNDS and SEED."""

from __future__ import annotations

import argparse
import asyncio
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from tests.faults.campaign import run
from tests.faults.memory import MOST_GROWTH, resident
from tests.faults.tunables import play


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument(
        "--pods", type=int, default=10_000, help="that memory is measured after; 0: it is not"
    )
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that everything is cleaned up
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        counts = asyncio.run(run(options.rounds, options.seed, Path(folder)))
        for seed in range(options.seed, options.seed + options.rounds):
            (own := Path(folder) / f"tuner-{seed}").mkdir()
            counts.update(play(seed, own))
            shutil.rmtree(own)
        sizes = []
        if options.pods:
            memory = resident(Path(folder) / "memory", options.pods, options.pods // 10)
            sizes = asyncio.run(memory)
    for name, count in sorted(counts.items()):
        sys.stdout.write(f"{count:8} {name}\n")
    for number, size in enumerate(sizes, 1):
        after = number * options.pods // 10
        sys.stdout.write(f"{size / 1e6:8.1f} MB in memory after {after} pods\n")
    if sizes and sizes[-1] > sizes[0] + MOST_GROWTH:
        sys.exit("the daemon grows")


main()
