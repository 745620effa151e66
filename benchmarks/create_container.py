"""Time CreateContainer as the runtime sees it, and what part of it is the engine's.

A real session over a unix socket, in one event loop with the embedded runtime: each figure holds
both sides' work on the wire. Decisions alone are timed on larger machines, as a ratio to it.
"""

from __future__ import annotations

import asyncio
import logging
import statistics
import time
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from nri_policy.cli.simulation import SimulatedNode
from nri_policy.engine.engine import Engine
from nri_policy.engine.event import Created, Event, Stopped
from nri_policy.engine.grant import Decision
from tests import nodes

ROUNDS = 300
MACHINES = (
    (nodes.SMALL, 10),
    ("package:2 numa:4 l3:2 core:8 pu:2", 200),
    ("package:8 numa:4 l3:4 core:16 pu:2", 500),
)


def main() -> None:
    """Print the medians."""
    logging.disable(logging.INFO)
    total, engine = asyncio.run(_requests())
    print(f"CreateContainer, 16 CPUs, 10 containers: {total:.0f} µs, the engine's {engine:.0f} µs")
    for spec, running in MACHINES:
        machine = nodes.machine(spec)
        cost = _decision(spec, running)
        cpus = len(machine.online)
        print(
            f"decision, {cpus} CPUs, {running} containers: {cost:.0f} µs,"
            f" {cost / (total - engine):.2f} of the rest of a request"
        )


async def _requests() -> tuple[float, float]:
    """Return the medians in µs of a whole request and of the engine's part."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        node = SimulatedNode(nodes.machine(), nodes.settings(), folder, stack)
        runtime = await stack.enter_async_context(node.runtime)
        await node.restart()
        await runtime.synchronized()
        assert node.daemon is not None
        for number in range(10):
            await runtime.start_pod(_pod(f"running-{number}", "500m"))
        spent: list[float] = []
        _time_engine(node.daemon.engine, spent)
        totals = []
        for number in range(ROUNDS):
            pod = await runtime.run_pod(_pod(f"new-{number}", "1"))
            began = time.perf_counter()
            await runtime.create_container(pod, "main")
            totals.append(time.perf_counter() - began)
            await runtime.delete_pod(pod)
        return 1e6 * statistics.median(totals), 1e6 * statistics.median(spent)


def _time_engine(engine: Engine, spent: list[float]) -> None:
    """Have *engine* note in *spent* how long each creation takes it."""
    handle = engine.handle

    def timed(event: Event) -> Decision:
        began = time.perf_counter()
        decision = handle(event)
        if isinstance(event, Created):
            spent.append(time.perf_counter() - began)
        return decision

    engine.handle = timed  # type: ignore[method-assign]  # one object, for the time of this run


def _decision(spec: str, running: int) -> float:
    """Return the median in µs of placing one more container beside *running* ones."""
    engine = Engine(nodes.machine(spec), nodes.settings())
    for number in range(running):
        engine.handle(Created(container=nodes.container(500 if number % 4 else 1000)))
    costs = []
    for number in range(ROUNDS):
        newcomer = nodes.container(1000 if number % 2 else 500)
        began = time.perf_counter()
        engine.handle(Created(container=newcomer))
        costs.append(time.perf_counter() - began)
        engine.handle(Stopped(container_id=newcomer.id))
    return 1e6 * statistics.median(costs)


def _pod(name: str, cpu: str) -> dict[str, object]:
    amounts = {"cpu": cpu, "memory": "64Mi"}
    container = {"name": "main", "image": "busybox", "resources": {"limits": amounts}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"containers": [container]},
    }
