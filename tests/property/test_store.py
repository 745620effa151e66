"""Stored values are read back unchanged; anything else in the store raises one kind of error."""

from __future__ import annotations

from contextlib import suppress
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from nri_policy.engine.engine import Engine
from nri_policy.engine.event import (
    KINDS,
    Created,
    Described,
    Drifted,
    Elapsed,
    Equipped,
    Event,
    PodStopped,
    Reconfigured,
    Resized,
    ResizeEnded,
    Started,
    Stopped,
    StoredGrant,
    Synchronized,
    kind,
)
from nri_policy.engine.explanation import Explanation
from nri_policy.engine.grant import Decision, Grant, Placement
from nri_policy.engine.state.layout import layout_of
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.pools.supply import Table
from nri_policy.store import encoding
from nri_policy.store.compaction import compact
from nri_policy.workload.peers import Pull
from nri_policy.workload.pod import Container
from nri_policy.workload.request import Entitlement, Request, Steering
from tests.support import nodes, stores

LIVES = 40

sets = st.frozensets(st.integers(0, 8191), max_size=20).map(CPUSet)
times = st.floats(0, 1e12)
st.register_type_strategy(CPUSet, sets)
st.register_type_strategy(
    Grant,
    st.builds(Grant, tenant=st.booleans(), ended=st.dictionaries(st.text(), sets, max_size=2)),
)
st.register_type_strategy(Steering, st.builds(Steering, affinities=st.just(()), hints=st.just(())))
st.register_type_strategy(Request, st.builds(Request, cold_start=st.none() | times))
st.register_type_strategy(Entitlement, st.builds(Entitlement, cold_start=st.none() | times))
LAYOUT = layout_of(nodes.machine(), nodes.settings())
ours = st.dictionaries(st.text(max_size=9).map("{}.resource-policy.nri.io/pod".format), st.text())
containers = st.builds(
    lambda container, annotations: replace(
        container, pod=replace(container.pod, annotations=annotations)
    ),
    st.from_type(Container),
    ours,
)
grants = st.builds(StoredGrant, deadline=st.none() | times)
events = st.one_of(
    st.builds(Created, container=containers, admitted=st.booleans()),
    st.from_type(Resized),
    st.builds(Started, now=times),
    st.builds(Elapsed, now=times),
    st.from_type(Stopped),
    st.from_type(PodStopped),
    st.from_type(Drifted),
    st.from_type(ResizeEnded),
    st.from_type(Equipped),
    st.from_type(Described),
    st.builds(
        Synchronized,
        containers=st.lists(containers, max_size=3).map(tuple),
        now=times,
        held=st.dictionaries(st.text(max_size=5), grants, max_size=3),
    ),
    st.sampled_from(
        [
            Reconfigured(settings=nodes.settings(preferSharedCPUs=True)),
            Reconfigured(machine=nodes.machine()),
            Reconfigured(machine=nodes.machine("package:1 core:4 pu:1"), settings=LAYOUT.settings),
        ]
    ),
)


def decisions() -> st.SearchStrategy[Decision]:
    pools = st.integers(0, len(LAYOUT.tree.pools) - 1)
    pulls = st.builds(Pull, pool=pools)
    explanations = st.builds(
        Explanation,
        tree=st.just(LAYOUT.tree),
        pool=st.none() | pools,
        scores=st.none(),
        pulls=st.none() | st.lists(pulls, max_size=3).map(tuple),
        notes=st.lists(st.text(), max_size=2).map(tuple),
    )
    limits = st.dictionaries(st.text(), st.text(), max_size=2)
    placements = st.builds(Placement, quota=st.none() | st.integers(-1, 9), limits=limits)
    few = st.lists(placements, min_size=1, max_size=3)
    return st.builds(
        Decision,
        container_id=st.text(),
        placement=st.none() | placements,
        changes=few.flatmap(lambda alike: st.dictionaries(st.text(), st.sampled_from(alike))),
        explanation=st.none() | explanations,
    )


@given(events)
def test_an_event_is_read_as_it_was(event: Event) -> None:
    text = encoding.encode_event(event)
    again = encoding.decode_event(kind(event), text, origin="test")
    if isinstance(event, Reconfigured):  # what has no effect is not stored
        assert isinstance(again, Reconfigured)
        assert again.machine == event.machine
        assert (again.settings is None) == (event.settings is None)
        assert encoding.encode_event(again) == text
    else:
        assert again == event


@given(decisions(), st.none() | st.text())
def test_a_decision_is_read_as_it_was(decision: Decision, refusal: str | None) -> None:
    text = encoding.encode_decision(decision, refusal, decision.explanation)
    again = encoding.decode_decision(text, None, LAYOUT)
    assert again == (decision, refusal, None)
    assert [*again[0].changes] == [*decision.changes], "in the same order"


@given(grants)
def test_a_grant_is_read_as_it_was(grant: StoredGrant) -> None:
    assert encoding.decode_grant(encoding.encode(grant)) == grant


@given(
    st.sampled_from([*KINDS, "nothing"]),
    st.binary(max_size=200) | st.text('{}[]":,0-9container', max_size=60).map(str.encode),
)
def test_any_bytes_are_a_value_or_an_error(name: str, text: bytes) -> None:
    with suppress(ValueError):
        encoding.decode_event(name, text, origin="test")
    for decode in (encoding.decode_grant, encoding.decode_machine):
        with pytest.raises(ValueError, match="not a stored value"):
            decode(text)
    with suppress(ValueError):
        encoding.decode_settings(text, origin="test")
    with suppress(ValueError):
        encoding.decode_decision(text, text, LAYOUT)


@given(events, st.data())
def test_a_changed_event_is_an_event_or_an_error(event: Event, data: st.DataObject) -> None:
    text = bytearray(encoding.encode_event(event))
    at = data.draw(st.integers(0, len(text) - 1))
    text[at] = data.draw(st.integers(0, 255))
    with suppress(ValueError):
        encoding.decode_event(kind(event), bytes(text), origin="test")


@given(st.integers(1, 4000), st.integers(0, 15), st.data())
def test_a_table_is_read_as_it_was_and_any_other_bytes_are_an_error(
    request: int, count: int, data: st.DataObject
) -> None:
    engine = Engine(nodes.machine(), nodes.settings())
    for _ in range(count):
        engine.handle(Created(container=nodes.best_effort()))
    decision = engine.handle(Created(container=nodes.container(request)))
    assert decision.explanation is not None
    table = decision.explanation.table
    assert table is not None
    packed = table.pack()
    again = Table.unpack(packed, table.count)
    for pool in range(table.count):
        assert again.row(pool) == table.row(pool)
        assert again.missing(pool) == table.missing(pool)
    cut = packed[: data.draw(st.integers(0, len(packed) - 1))]
    with pytest.raises(ValueError, match="not a table"):
        Table.unpack(cut, table.count)
    with suppress(ValueError):
        Table.unpack(data.draw(st.binary(max_size=300)), data.draw(st.integers(-1, 20)))


@settings(max_examples=LIVES, deadline=None)
@given(
    st.integers(0, 2**32), st.lists(st.integers(1, 40), min_size=1, max_size=4), st.integers(0, 40)
)
def test_the_store_is_as_the_engine_in_every_life(
    seed: int, lives: list[int], compacted: int
) -> None:
    with TemporaryDirectory() as folder:
        running: list[Container] = []
        in_force = nodes.settings()
        held: dict[str, StoredGrant] = {}
        for number, steps in enumerate(lives):
            store, engine = stores.started(Path(folder), settings=in_force, running=running)
            if number:
                assert stores.grants(engine) == held, "a restart moved a container"
            for step, event in enumerate(islice(stores.life(engine, seed + number), steps)):
                stores.commit(store, engine, event)
                if step == compacted:
                    compact(store.path)
                assert stores.on_disk(store.path) == stores.grants(engine)
            assert stores.grants(stores.replayed(store.path)) == stores.grants(engine)
            held, in_force = stores.grants(engine), engine.layout.settings
            running = [
                nodes.running(placed.container, *engine.state.sent[i], engine.state.quotas.get(i))
                for i, placed in engine.state.placed.items()
            ]
            store.close()
