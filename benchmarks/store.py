"""Time what the store adds to an answer, and what it costs to start with one.

Commits are of whole pod lifecycles beside running containers, on the disk of the working folder.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from nri_policy.engine.engine import Engine
from nri_policy.engine.event import Created, Event, Stopped, Synchronized
from nri_policy.node import view_of
from nri_policy.store.store import Store
from nri_policy.workload.pod import Container
from tests.support import nodes

ROUNDS = 1500
MACHINES = (
    (nodes.SMALL, 10),
    ("package:2 numa:4 l3:2 core:8 pu:2", 100),
    ("package:8 numa:4 l3:4 core:16 pu:2", 500),
)
ANNOTATIONS = {f"example.com/key-{number}": 40 * "x" for number in range(8)}


def main() -> None:
    """Print quantiles of a commit, and the time to open and to synchronise."""
    for spec, running in MACHINES:
        with TemporaryDirectory(dir=".") as folder:
            _measure(Path(folder), spec, running)


def _measure(state_dir: Path, spec: str, running: int) -> None:
    machine = nodes.machine(spec)
    store, engine = Store(state_dir, machine), Engine(machine, nodes.settings())
    present = [_container(number) for number in range(running)]
    for event in _start(present):
        _commit(store, engine, event)
    spent: list[float] = []
    for number in range(ROUNDS):
        newcomer = _container(number)
        spent += [_commit(store, engine, event) for event in _life(newcomer)]
    store.close()
    size = sum(file.stat().st_size for file in store.path.parent.iterdir())
    began = time.perf_counter()
    store = Store(state_dir, machine)
    opened = time.perf_counter()
    listed = tuple(
        nodes.running(placed.container, *engine.state.sent[container_id])
        for container_id, placed in engine.state.placed.items()
    )
    again = Engine(machine, nodes.settings())
    event = Synchronized(containers=listed, held=store.held.grants)
    decision, view = again.handle(event), view_of(again)
    restored = time.perf_counter()
    store.commit(event, decision, view, time.time())
    committed = time.perf_counter()
    store.close()
    spent.sort()
    p50, p99, most = (1e6 * spent[int(share * (len(spent) - 1))] for share in (0.5, 0.99, 1.0))
    open_ms, decide_ms, commit_ms = (
        1e3 * (after - before)
        for before, after in ((began, opened), (opened, restored), (restored, committed))
    )
    print(
        f"commit, {len(machine.online)} CPUs, {running} containers:"
        f" p50 {p50:.0f} µs, p99 {p99:.0f} µs, most {most:.0f} µs;"
        f" {size / 2**20:.1f} MiB after {2 * ROUNDS + running} records"
    )
    print(
        f"restart with them: open {open_ms:.0f} ms, decide {decide_ms:.0f} ms,"
        f" commit {commit_ms:.0f} ms, {len(decision.changes)} changes"
    )


def _start(present: list[Container]) -> Iterator[Event]:
    yield Synchronized(containers=())
    for container in present:
        yield Created(container=container)


def _life(container: Container) -> Iterator[Event]:
    yield Created(container=container)
    yield Stopped(container_id=container.id)


def _commit(store: Store, engine: Engine, event: Event) -> float:
    """Return how long the store takes for what the engine makes of *event*."""
    decision, view = engine.handle(event), view_of(engine)
    began = time.perf_counter()
    store.commit(event, decision, view, time.time())
    return time.perf_counter() - began


def _container(number: int) -> Container:
    return nodes.container(1000 if number % 4 == 0 else 500, annotations=ANNOTATIONS)
