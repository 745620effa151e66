"""What typical decisions and requests cost: calls of functions, Python's and compiled.

They are counted, not timed, so they are the same on every machine and under any load: a change that
makes one dearer shows in its review, in `costs.json`. To take the new counts over:

    NRI_POLICY_TAKE_COSTS=1 .venv/bin/pytest tests/unit/test_costs.py

They are of the oldest Python that is supported; newer ones make fewer calls. What one call does is
not counted: loops inside of kernels are timed by `make bench`.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

from msgspec.structs import replace

from nri_policy.engine.engine import Engine
from nri_policy.engine.event import Created, Event, Resized, Stopped
from nri_policy.workload.pod import Container
from tests.support import busy_node, nodes, pod_lives

COSTS = Path(__file__).with_name("costs.json")
TOLERANCE = 1.02
RECORDED_WITH = (3, 11)
CPUS, RUNNING = 256, 200


def calls(work: Callable[[], object]) -> int:
    """Return how many functions are called."""
    count = 0

    def note(_frame: FrameType, event: str, _what: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    gc.disable()  # others have it call functions of theirs
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
        gc.enable()
    return count


def crowded(cpus: int = CPUS, running: int = RUNNING) -> Engine:
    engine = busy_node.engine(cpus, busy_node.running(cpus, running))
    for _ in range(2):  # what is worked out once is
        for newcomer in newcomers().values():
            engine.handle(Created(container=newcomer))
            engine.handle(Stopped(container_id=newcomer.id))
    return engine


def newcomers() -> dict[str, Container]:
    """Return containers to be created, each of another sort."""
    exclusive = busy_node.container(1000)
    return {
        "exclusive": exclusive,
        "eleven exclusive": busy_node.container(11000),
        "shared": busy_node.container(500),
        "burstable": nodes.container(500, 2000, name="main"),
        "best effort": nodes.best_effort(name="main"),
        "reserved": nodes.container(100, namespace="kube-system", name="main"),
        "with an affinity": busy_node.newcomer("affinity", 500, 0),
        "with a hint": busy_node.newcomer("hints", 500, 0),
        "of much memory": busy_node.newcomer("memory", 500, 0),
    }


def decisions(engine: Engine) -> Iterator[tuple[str, Event]]:
    for sort, newcomer in newcomers().items():
        yield f"create {sort}", Created(container=newcomer)
        yield f"release {sort}", Stopped(container_id=newcomer.id)
    held = next(each for each in engine.state.placed.values() if not each.request.exclusive)
    more = replace(held.container.resources, cpu_quota=60_000)
    yield "resize shared", Resized(container_id=held.container.id, resources=more)


def measured(cpus: int = CPUS, running: int = RUNNING) -> dict[str, int]:
    engine = crowded(cpus, running)
    return {
        name: calls(lambda event=event: engine.handle(event))  # type: ignore[misc]
        for name, event in decisions(engine)
    }


async def requests(folder: Path) -> dict[str, int]:
    """Return the calls of each request of two pods' lives, with what comes after the answer."""
    logging.disable()
    try:
        daemon = pod_lives.Daemon(nodes.machine(), folder)
        counts = {}
        for sort, milli in {"shared": 500, "exclusive": 1000}.items():
            for turn in range(3):  # what is worked out once is
                for method, ask in daemon.life(f"{sort}-{turn}", milli):
                    counts[f"{method} {sort}"] = calls(ask)
    finally:
        logging.disable(logging.NOTSET)
    daemon.store.close()
    return counts


async def test_decisions_and_requests_cost_what_they_did(tmp_path: Path) -> None:
    costs = measured() | await requests(tmp_path)
    if os.environ.get("NRI_POLICY_TAKE_COSTS"):
        COSTS.write_text(json.dumps(costs, indent=2) + "\n")
    known = json.loads(COSTS.read_text())
    assert costs.keys() == known.keys()
    dearer = {
        name: (known[name], new) for name, new in costs.items() if new > known[name] * TOLERANCE
    }
    assert not dearer, "calls before and now; see this module's text if that is meant"
    if sys.version_info[:2] == RECORDED_WITH:
        cheaper = {n: (known[n], new) for n, new in costs.items() if new * TOLERANCE < known[n]}
        assert not cheaper, "calls before and now: take the new counts over"


async def test_the_count_is_the_same_each_time(tmp_path: Path) -> None:
    assert measured() == measured()
    assert await requests(tmp_path / "one") == await requests(tmp_path / "other")


def test_the_calls_grow_far_slower_than_the_containers() -> None:
    few, many = measured(1024, 50), measured(1024, 500)
    grown = {name: many[name] / few[name] for name in few}
    assert max(grown.values()) < 2, grown
