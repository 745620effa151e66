"""Time the search for those who make way, on a node that is nearly full; placement.md §2."""

from __future__ import annotations

import random
import time

from benchmarks.table import ROUNDS, Section, Timing, best, number
from nri_policy.engine.choice.shortage import PlacementError
from nri_policy.engine.engine import Engine
from nri_policy.engine.event import Created, Event
from nri_policy.engine.placement.making_way import find_relocations
from nri_policy.engine.placement.placement import place
from nri_policy.workload.pod import Container
from tests.support import busy_node, nodes

CPUS, RUNNING = 256, 200
LOAD = 0.95  # of the CPUs are requested
LARGEST = 32  # CPUs of a newcomer
_RESERVED = {"cpu": "cpuset:0"}


def nearly_full() -> list[Event]:
    """Return events after which so many containers run, three of four of which share CPUs."""
    choices = random.Random(1)
    few = [choices.randrange(100, 900, 50) for _ in range(RUNNING * 3 // 4)]
    rest = int(LOAD * CPUS - sum(few) / 1000) // (RUNNING - len(few))
    amounts = [*few, *[1000 * rest] * (RUNNING - len(few))]
    choices.shuffle(amounts)
    return [Created(container=nodes.container(milli)) for milli in amounts]


def engine_of(events: list[Event], movers: int) -> Engine:
    settings = nodes.settings(reservedResources=_RESERVED, makeWay={"movers": movers})
    engine = Engine(nodes.machine(busy_node.MACHINES[CPUS]), settings)
    for event in events:
        engine.handle(event)
    return engine


def searched(engine: Engine, container: Container) -> Timing | None:
    """Return how long the search takes for a newcomer, None where nobody could make way."""
    state = engine.state
    request, _ = state.layout.requests.read(container)
    try:
        first = place(state.fork(), container, request, last=False)
    except PlacementError:
        return None
    table = first.findings.table
    assert table is not None, "pools were compared"
    if not find_relocations(state, request, first.grant, table, None).options:
        return None

    def search() -> Timing:
        spent = []
        for _ in range(ROUNDS):
            began = time.perf_counter()
            find_relocations(state, request, first.grant, table, None)
            spent.append(time.perf_counter() - began)
        return Timing.of(spent)

    return best(search)


def created(engine: Engine, container: Container) -> Timing:
    """Return how long the creation takes, each time in the same state."""

    def create() -> Timing:
        spent = []
        for _ in range(ROUNDS // 4):
            twin = engine.fork()
            began = time.perf_counter()
            twin.handle(Created(container=container))
            spent.append(time.perf_counter() - began)
        return Timing.of(spent)

    return best(create)


def section() -> Section:
    engine, still = (engine_of(nearly_full(), movers) for movers in (4, 0))
    rows = []
    for whole in range(1, LARGEST + 1):
        newcomer = nodes.container(1000 * whole)
        if (search := searched(engine, newcomer)) is not None:
            timings = search, created(engine, newcomer), created(still, newcomer)
            rows.append((str(whole), *(number(each.p50) for each in timings)))
    return Section(
        title="Making way",
        text=f"Newcomers with CPUs of their own for which others could move, at {CPUS} CPUs and"
        f" {RUNNING} containers that request {LOAD:.0%} of them. Medians in µs: the search alone,"
        " the whole creation, and the creation on a node where nobody may move.",
        head=("CPUs", "search", "creation", "nobody moves"),
        rows=rows,
    )


def main() -> None:
    print(section().plain())
