"""Property tests with new examples, for as long as one likes: `make fuzz SECONDS=600 SEED=7`.

Half of the time all of tests/property runs, round after round, each with a seed of its own. Then
each test of input from outside gets its share of the time in a process of its own, which may
neither hang nor take much memory. It is fed bytes that hypothesis turns into examples: random ones,
and mutations of such that were examples before.
"""

from __future__ import annotations

import argparse
import faulthandler
import logging
import resource
import secrets
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any

DOORS = (
    "hostile",
    "nri_wire",
    "nri_service",
    "goreader",
    "annotations",
    "affinity",
    "glob",
    "hardware",
    "settings",
    "store",
    "tuner",
    "units",
    "yamltext",
)
ROOT = Path(__file__).parents[1]
PATIENCE = 60  # seconds for one example
MEMORY = 1 << 30  # bytes that a process may have in use
LONGEST = 4096  # bytes of an example
SLOW = 5  # shares of the time for what takes a daemon and files
CORPUS = 200  # examples that are kept for mutation


def tests() -> list[str]:
    """Return the tests of all doors, as `door:function`."""
    return [
        f"{door}:{name}"
        for door in DOORS
        for name, member in vars(_module(door)).items()
        if name.startswith("test_") and hasattr(member, "hypothesis")
    ]


def _module(door: str) -> Any:
    return import_module(f"tests.property.test_{door}")


def fuzz(test: str, seconds: float, seed: int) -> str:
    """Run *test* on as many examples as there is time for; return what it came to."""
    logging.disable()
    resource.setrlimit(resource.RLIMIT_AS, (4 * MEMORY, 4 * MEMORY))
    door, _, name = test.partition(":")
    feed: Callable[[bytes], bytes | None] = getattr(_module(door), name).hypothesis.fuzz_one_input
    random, corpus, fed, examples = Random(seed), [b""], 0, 0
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        data = _bytes(random, corpus)
        faulthandler.dump_traceback_later(PATIENCE, exit=True)
        try:
            used = feed(data)
        except BaseException:
            sys.stderr.write(f"{test} fails on bytes.fromhex({data.hex()!r})\n")
            raise
        fed += 1
        if used is not None:
            examples += 1
            at = random.randrange(CORPUS)
            corpus[at : at + 1] = [used]
    most = _most_memory()
    assert most < MEMORY, f"{test} took {most} bytes"
    return f"{examples:9} examples of {fed:9} tries, {most >> 20:4} MiB  {test}"


def _most_memory() -> int:
    """Return the most bytes that this process ever had in memory."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def _bytes(random: Random, corpus: list[bytes]) -> bytes:
    """Return random bytes, or an example's with some of them changed."""
    if random.random() < 0.3:
        return random.randbytes(random.randrange(LONGEST))
    data = bytearray(random.choice(corpus) + random.randbytes(random.choice((0, 0, 8, 200))))
    for _ in range(random.choice((1, 1, 2, 5))):
        at = random.randrange(len(data) + 1)
        data[at : at + random.choice((0, 1, 8))] = random.randbytes(random.choice((0, 1, 1, 8)))
    return bytes(data[:LONGEST])


def rounds(seconds: float, seed: int) -> list[int]:
    """Run all property tests for *seconds*, at least once; return the seeds that failed."""
    failed = []
    until = time.monotonic() + seconds
    while True:
        sys.stdout.write(f"all property tests with SEED={seed}\n")
        sys.stdout.flush()
        command = [sys.executable, "-m", "pytest", "-q", "tests/property"]
        command += ["--hypothesis-profile=new", f"--hypothesis-seed={seed}"]
        if subprocess.call(command, cwd=ROOT):
            failed.append(seed)
        if time.monotonic() >= until:
            return failed
        seed += 1


def inputs(seconds: float, seed: int, at_once: int) -> bool:
    """Run each test of input in a process of its own; whether all passed."""
    every = tests()
    weights = {test: SLOW if test.startswith("hostile:") else 1 for test in every}
    unit = seconds * at_once / sum(weights.values())

    def run(test: str) -> int:
        command = [sys.executable, "-m", "tests.fuzz", "--one", test]
        command += ["--seconds", str(unit * weights[test]), "--seed", str(seed)]
        return subprocess.call(command, cwd=ROOT)

    with ThreadPoolExecutor(at_once) as pool:
        return not any([*pool.map(run, every)])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, help="of an earlier run (default: a new one)")
    parser.add_argument("--at-once", type=int, default=2)
    parser.add_argument("--one", metavar="TEST", help="run this one, in this process")
    options = parser.parse_args()
    seed = secrets.randbelow(2**32) if options.seed is None else options.seed
    if options.one:
        sys.stdout.write(f"{fuzz(options.one, options.seconds, seed)}\n")
        return
    failed = rounds(options.seconds / 2, seed)
    sys.stdout.write(f"tests of input with SEED={seed}\n")
    sys.stdout.flush()
    if not inputs(options.seconds / 2, seed, options.at_once):
        failed.append(seed)
    if failed:
        sys.exit(f"some tests failed with {' '.join(f'SEED={each}' for each in failed)}")


if __name__ == "__main__":
    main()
