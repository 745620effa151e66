"""Explores all scenes with all releases: `make model`; ends with 1 if anything did not hold."""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from itertools import product

from nri_policy.foundation.garbage import collection_paused
from tests.model.explorer import Explorer, Found
from tests.model.invariants import Invariants
from tests.model.mutants import MUTANTS
from tests.model.scenes import RELEASES, SCENES
from tests.model.world import Model, Scene, World

MOST = 65_000  # states of one scene with one release: two million of each release


@contextmanager
def silent() -> Iterator[None]:
    """Let nothing be logged: a history is told by its steps."""
    logging.disable()
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


def explore(
    scene: Scene,
    release: tuple[str, str],
    most: int,
    fault: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> Found:
    """Explore one scene with one release, perhaps with a *fault* in the daemon."""
    with silent(), collection_paused(), fault():
        model = Model(scene, *release)
        invariants = Invariants(model)
        explorer: Explorer[World] = Explorer(
            model.moves, lambda world: world.key, invariants.wrong, invariants.settles
        )
        return explorer.explore(model.first(), most)


def find(name: str, most: int) -> tuple[str, Found] | None:
    """Return where a fault that is put in shows first, and how."""
    for scene, release in product(SCENES, RELEASES):
        found = explore(scene, release, most, MUTANTS[name])
        if found.broken:
            return f"{' '.join(release)}, {scene.name}", found
    return None


def find_all(names: Iterable[str], most: int, processes: int) -> int:
    """Print a row for each fault, and how it shows; 1 if one does not."""
    missed = 0
    with ProcessPoolExecutor(processes) as pool:
        chosen = [*names]
        for name, found in zip(chosen, pool.map(partial(find, most=most), chosen), strict=True):
            if found is None:
                print(f"| {name} | not found |", flush=True)
                missed += 1
                continue
            where, one = found
            print(f"| {name} | {where} | {one.states} | {one.broken} |", flush=True)
            for number, step in enumerate(one.history, 1):
                print(f"  {number:2} {step}")
    return 1 if missed else 0


def main() -> int:
    """Explore; print a line for each, and the histories that break something."""
    parser = argparse.ArgumentParser(prog="tests.model", description=__doc__)
    parser.add_argument("--states", type=int, default=MOST, help="of each scene and release")
    parser.add_argument("--scene", help="only scenes whose name has this in it", default="")
    parser.add_argument("--release", help="only releases such as 'cri-o 1.36.3'", default="")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--mutants", action="store_true", help="put known faults in, one by one")
    parser.add_argument("--mutant", help="only those whose name has this in it", default="")
    options = parser.parse_args()
    if options.mutants:
        names = (each for each in MUTANTS if options.mutant in each)
        return find_all(names, options.states, options.processes)
    chosen = [
        (scene, release)
        for release in RELEASES
        for scene in SCENES
        if options.scene in scene.name and options.release in " ".join(release)
    ]
    if not chosen:
        parser.error("no scene and release has that in its name")
    began, states, broken = time.perf_counter(), 0, 0
    with ProcessPoolExecutor(options.processes) as pool:
        found = [pool.submit(explore, *each, options.states) for each in chosen]
        for (scene, release), each in zip(chosen, found, strict=True):
            one = each.result()
            states += one.states
            broken += bool(one.broken)
            whole = ", all there are" if one.whole and not one.broken else ""
            text = f"{one.states} states{whole}, {one.depth} deep"
            print(f"{' '.join(release)}: {scene.name}: {one.broken or text}", flush=True)
            for number, step in enumerate(one.history, 1):
                print(f"| {number} | {step} |")
    print(f"{states} states, {broken} broken, {time.perf_counter() - began:.0f} s")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
