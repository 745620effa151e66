"""What a store holds, compared with the engine that wrote it and with a replay of its journal."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from pathlib import Path

from nri_policy.engine.engine import Engine
from nri_policy.engine.event import (
    Created,
    Event,
    PodStopped,
    Reconfigured,
    Resized,
    Stopped,
    StoredGrant,
    Synchronized,
)
from nri_policy.hardware.machine import Machine
from nri_policy.manifests.quality_of_service import QoS
from nri_policy.node import Outcome, view_of
from nri_policy.settings import Settings
from nri_policy.store.database import open_for_reading, read_contents
from nri_policy.store.journal import Record, open_journal
from nri_policy.store.replay import RecordedReplay, handle
from nri_policy.store.store import Store
from nri_policy.workload.pod import Container
from tests.support import nodes

AMOUNTS = (0, 100, 500, 1000, 1500, 2000, 3000)


def commit(store: Store, engine: Engine, event: Event, now: float = 0.0) -> Outcome:
    """Have *engine* decide and *store* remember; StoreError."""
    decided = handle(engine, event)
    store.commit(event, decided, view_of(engine), now)
    return decided


def started(
    state_dir: Path,
    machine: Machine | None = None,
    settings: Settings | None = None,
    running: Iterable[Container] = (),
) -> tuple[Store, Engine]:
    """Return a store below *state_dir* and an engine that knows what is *running*."""
    machine = machine or nodes.machine()
    store = Store(state_dir, machine)
    engine = Engine(machine, settings or nodes.settings(), store.held.earlier)
    commit(store, engine, Synchronized(containers=tuple(running), held=store.held.grants))
    return store, engine


def grants(engine: Engine) -> dict[str, StoredGrant]:
    """Return what the store should hold for *engine*."""
    view = view_of(engine)
    return {each: view.to_store(each) for each in (*view.placed, *view.rooms)}


def on_disk(path: Path) -> dict[str, StoredGrant]:
    """Return what the database at *path* holds."""
    connection = open_for_reading(path)
    try:
        return dict(read_contents(connection, path).grants)
    finally:
        connection.close()


def records(path: Path) -> list[Record]:
    """Return the journal in the database at *path*."""
    with open_journal(path) as journal:
        return list(journal.records())


def replayed(path: Path, after: int = 0) -> Engine:
    """Return an engine that went through the journal and came to the very same decisions.

    Through the records with higher numbers than *after*.
    """
    return replay(record for record in records(path) if record.seq > after)


def replay(journal: Iterable[Record]) -> Engine:
    """Return an engine that went through these records and came to the very same decisions."""
    recorded = RecordedReplay()
    for record in journal:
        differences = [*recorded.step(record)]
        assert not differences, differences[0]
    assert recorded.engine is not None
    return recorded.engine


def life(engine: Engine, seed: int) -> Iterator[Event]:
    """Yield random events for *engine*, which has to handle each before the next is asked for."""
    choices = random.Random(seed)
    while True:
        placed = [*engine.state.placed.values()]
        what = choices.choice(("create", "create", "resize", "stop", "pod", "settings"))
        if what == "create" or not placed:
            request = choices.choice(AMOUNTS)
            qos = choices.choice(list(QoS)) if request else QoS.BEST_EFFORT
            limit = request if qos is QoS.GUARANTEED else None
            request = 0 if qos is QoS.BEST_EFFORT else request
            yield Created(container=nodes.container(request, limit, qos=qos))
            continue
        container = choices.choice(placed).container
        if what == "resize":
            request = choices.choice(AMOUNTS)
            limit = request if container.pod.qos is QoS.GUARANTEED else None
            yield Resized(container_id=container.id, resources=nodes.resources(request, limit))
        elif what == "settings":
            shared = choices.random() < 0.5
            yield Reconfigured(settings=nodes.settings(preferSharedCPUs=shared))
        elif what == "pod":
            yield PodStopped(pod_id=container.pod.id)
        else:
            yield Stopped(container_id=container.id)
