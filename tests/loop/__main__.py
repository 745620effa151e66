"""Plays many histories: `make simulate-node SEEDS=1000`; ends with 1 if anything did not hold.

The same seed plays the same history, in another process too: strings are hashed alike.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time

from nri_policy.observability.logs import Form, set_up
from tests.loop.mutants import FOUND_BY, MUTANTS
from tests.loop.play import Outcome, play, shrunk
from tests.loop.world import Chances


def main() -> int:
    """Play; print what broke."""
    parser = argparse.ArgumentParser(prog="tests.loop", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, help="how many histories")
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--history", action="store_true", help="print each history whole")
    parser.add_argument("--log", action="store_true", help="show what the daemon logs")
    parser.add_argument("--mutants", action="store_true", help="put known faults in, one by one")
    parser.add_argument("--shrink", action="store_true", help="look for a shorter history")
    options = parser.parse_args()
    if options.log:
        set_up(Form.TEXT, sys.stdout)
    else:
        logging.disable()
    seeds = range(options.first, options.first + options.seeds)
    if options.mutants:
        return _find_mutants(seeds)
    began, broken, starts = time.perf_counter(), 0, 0
    for seed in seeds:
        outcome = _play(seed)
        starts += outcome.starts
        if options.history:
            print("\n".join(outcome.history))
        if outcome.broken:
            broken += 1
            _show(shrunk(outcome) if options.shrink else outcome)
    took = time.perf_counter() - began
    print(f"{options.seeds} histories, {starts} starts looked at, {broken} broken, {took:.0f} s")
    return 1 if broken else 0


def _find_mutants(seeds: range) -> int:
    """Print a row for each fault that was put in; 1 if one was not found.

    The seed that found it before is played first, if it is among the *seeds*.
    """
    missed = 0
    for fault, put_in in MUTANTS.items():
        first = [FOUND_BY[fault]] if FOUND_BY.get(fault) in seeds else []
        with put_in():
            found = next((each for each in map(_play, [*first, *seeds]) if each.broken), None)
        print(f"| {fault} | {_first(found)} |", flush=True)
        missed += found is None
    return 1 if missed else 0


def _play(seed: int) -> Outcome:
    return play(Chances(seed=seed))


def _first(found: Outcome | None) -> str:
    return f"seed {found.chances.seed}: {found.broken[0]}" if found else "not found"


def _show(outcome: Outcome) -> None:
    print(f"seed {outcome.chances.seed} ({outcome.setting}):")
    for each in outcome.broken[:5]:
        print(f"  {each}")


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "tests.loop", *sys.argv[1:]])
    sys.exit(main())
