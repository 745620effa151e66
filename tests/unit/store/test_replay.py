from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from nri_policy.engine.engine import Engine
from nri_policy.engine.event import (
    Created,
    Elapsed,
    Event,
    Reconfigured,
    Started,
    Stopped,
    Synchronized,
    kind,
)
from nri_policy.engine.grant import Decision, Moved
from nri_policy.engine.placement.resource_claims import stand_in
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.hardware.machine import Machine
from nri_policy.manifests.quality_of_service import QoS
from nri_policy.node import Statistics, view_of
from nri_policy.settings import Settings
from nri_policy.store import writer
from nri_policy.store.database import RecordLink
from nri_policy.store.differences import describe, list_differences
from nri_policy.store.history import History
from nri_policy.store.journal import Record
from nri_policy.store.replay import AlternativeReplay, Difference, RecordedReplay
from nri_policy.store.store import Store
from nri_policy.workload.annotation_values import HintKind
from nri_policy.workload.hints import Hint
from nri_policy.workload.pod import ContainerState
from tests.support import claims, memory_maps, nodes, rooms, stores

# pmem that the kernel itself may use: containers can do with it alone
PMEM = memory_maps.with_nodes(nodes.machine(memory_maps.TIERED), normal=True)
COLD = {
    "memory-type.resource-policy.nri.io/pod": "dram,pmem",
    "cold-start.resource-policy.nri.io/pod": "duration: 30s",
}
BURSTABLE_ANYWHERE = {"unlimited-burstable.resource-policy.nri.io/pod": "system"}


def recorded(path: Path) -> tuple[Statistics, list[Difference]]:
    replay = RecordedReplay()
    differences = [each for record in stores.records(path) for each in replay.step(record)]
    return replay.statistics, differences


def otherwise(
    path: Path, settings: Settings | None = None, machine: Machine | None = None
) -> Statistics:
    replay = AlternativeReplay(settings, machine)
    for record in stores.records(path):
        replay.step(record)
    return replay.statistics


def test_settings_before_the_first_list_of_containers_come_out_as_recorded(
    tmp_path: Path,
) -> None:
    settings = nodes.settings()
    store, engine = Store(tmp_path, nodes.machine()), Engine(nodes.machine(), settings)
    stores.commit(store, engine, Reconfigured(settings=settings))
    running = replace(nodes.container(500), state=ContainerState.RUNNING)
    stores.commit(store, engine, Synchronized(containers=(running,)))
    store.close()
    assert stores.records(store.path)
    assert recorded(store.path)[1] == []


def test_reserved_cpus_that_went_offline_are_noted_after_a_restart_and_in_a_replay(
    tmp_path: Path,
) -> None:
    settings = nodes.settings(reservedResources={"cpu": "cpuset:0-1"})
    store, _ = stores.started(tmp_path, settings=settings)
    store.close()
    smaller = nodes.machine(f"{nodes.SMALL} offline=1")
    store, engine = stores.started(tmp_path, smaller, settings)
    note = "reservedResources.cpu: some of these CPUs are offline: 0 is reserved"
    assert engine.layout.shortages == (note,)
    decision = stores.commit(store, engine, Reconfigured(settings=settings))
    assert isinstance(decision, Decision)
    assert decision.warnings == (note,)
    store.close()
    assert recorded(store.path)[1] == []


def test_those_who_share_are_told_in_the_same_order_after_a_base(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whose pool came into use first, a base does not tell."""
    monkeypatch.setattr(writer, "BASE_EVERY", 1)
    store, engine = stores.started(tmp_path, nodes.machine("package:2 core:4 pu:1"))
    first = nodes.container(500)
    wide = nodes.container(500, 500, qos=QoS.BURSTABLE, annotations=BURSTABLE_ANYWHERE)
    wide = replace(wide, resources=nodes.resources(500, None))
    for container in (first, wide, nodes.container(500), nodes.container(500)):
        stores.commit(store, engine, Created(container=container))
    pools = [placed.grant.pool for placed in engine.state.placed.values()]
    assert (pools[0], len(set(pools))) == (pools[3], 3), "the last where the first is"
    stores.commit(store, engine, Stopped(container_id=first.id))
    base = max(each.seq for each in stores.records(store.path) if each.link is RecordLink.BASE)
    decisions = [
        stores.commit(store, engine, Created(container=nodes.container(1000))) for _ in range(2)
    ]
    assert all(isinstance(each, Decision) and len(each.changes) == 2 for each in decisions)
    stores.replayed(store.path, after=base - 1)


def test_who_comes_after_a_base_is_younger_than_who_had_gone_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runtime does not report when containers were created."""
    monkeypatch.setattr(writer, "BASE_EVERY", 1)
    store, engine = stores.started(tmp_path)
    stays, gone, new = (replace(nodes.container(500), created=0) for _ in range(3))
    for event in (
        Created(container=stays),
        Created(container=gone),
        Stopped(container_id=gone.id),
        Created(container=new),
    ):
        stores.commit(store, engine, event)
    base = [each.seq for each in stores.records(store.path) if each.link is RecordLink.BASE][-2]
    replayed = stores.replayed(store.path, after=base - 1)
    assert stores.grants(replayed) == stores.grants(engine)


def test_who_has_not_started_at_a_base_starts_cold_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "BASE_EVERY", 1)
    store, engine = stores.started(tmp_path, PMEM)
    container = nodes.container(1000, annotations=COLD)
    stores.commit(store, engine, Created(container=container), now=0.0)
    base = max(each.seq for each in stores.records(store.path) if each.link is RecordLink.BASE)
    listed = nodes.running(container, *engine.state.sent[container.id])
    created = replace(listed, state=ContainerState.CREATED)
    stores.commit(store, engine, Synchronized(containers=(created,), now=5.0), now=5.0)
    assert view_of(engine).next_deadline is None
    assert view_of(stores.replayed(store.path, after=base - 1)).next_deadline is None


def test_a_decision_that_comes_out_otherwise_is_named(tmp_path: Path) -> None:
    store, engine = stores.started(tmp_path)
    stores.commit(store, engine, Created(container=nodes.container(2000)), now=5.0)
    records = stores.records(store.path)
    (created,) = (record for record in records if isinstance(record.event, Created))
    moved = replace(created.decision.placement, cpus=CPUSet([9]))  # type: ignore[type-var]
    grant = replace(created.decision.grant, pool=0, shared=7)  # type: ignore[type-var]
    decision = replace(created.decision, placement=moved, grant=grant, warnings=("so", "so"))
    changed = replace(created, decision=decision, refusal="no room")
    replay = RecordedReplay()
    found = [
        each for record in records for each in replay.step(changed if record is created else record)
    ]
    assert {(each.seq, each.time) for each in found} == {(created.seq, 5.0)}
    assert [(each.what, each.recorded, each.replayed) for each in found] == [
        ("refusal", "no room", "none"),
        ("grant: pool", "NUMA node #0", "NUMA node #1"),
        ("grant: shared", "7", "0"),
        ("placement: cpus", "9", "4-5"),
        ("warnings", "so; so", "none"),
    ]


def test_a_decision_that_was_made_for_other_reasons_is_named(tmp_path: Path) -> None:
    store, engine = stores.started(tmp_path)
    stores.commit(store, engine, Created(container=nodes.container(2000)))
    *before, created = stores.records(store.path)
    assert created.decision.explanation is not None
    why = replace(created.decision.explanation, notes=("so",))
    replay = RecordedReplay()
    assert [each for record in before for each in replay.step(record)] == []
    found = replay.step(replace(created, decision=replace(created.decision, explanation=why)))
    assert [(each.what, each.recorded, each.replayed) for each in found] == [
        ("explanation: notes", "so", "none")
    ]


def test_differences_are_told_in_words(tmp_path: Path) -> None:
    _, engine = stores.started(tmp_path)
    pools, placed = (
        engine.layout.tree.pools,
        engine.handle(Created(container=nodes.container(2000))),
    )
    assert describe(placed.grant, pools) == (
        "pool NUMA node #1, sort normal, exclusive 4-5, mems 1"
    )
    moved = Moved(container_id="c1", before=0, after=1)
    assert describe((moved,), pools) == "c1 to NUMA node #1"
    assert placed.explanation is not None
    other = replace(placed.explanation, notes=("so",), scores=None)
    found = [*list_differences("explanation", placed.explanation, other, pools)]
    assert found[0] == ("explanation: notes", "none", "so")
    assert {each for each, _, _ in found[1:]} == {
        f"explanation: criteria: {pool.name}" for pool in pools
    }
    assert {after for _, _, after in found[1:]} == {"none"}
    assert [*list_differences("changes", {"c1": 1}, {}, pools)] == [("changes: c1", "1", "none")]
    assert describe({"a": True, "b": False}, pools) == "a yes"


def test_after_a_difference_the_next_base_puts_the_replay_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "BASE_EVERY", 4)
    store, engine = stores.started(tmp_path)
    for _ in range(10):
        stores.commit(store, engine, Created(container=nodes.container(1000)))
    records = stores.records(store.path)
    lost = next(record for record in records if isinstance(record.event, Created))
    replay = RecordedReplay()
    found = [each for record in records if record is not lost for each in replay.step(record)]
    assert any(each.what.startswith("grants: ctr-") for each in found)
    assert stores.grants(replay.engine) == stores.grants(engine)  # type: ignore[arg-type]
    names = {each.container.full_name for each in engine.state.placed.values()}
    assert replay.statistics.outcomes.keys() == names, "who is known from the base only counts, too"


def test_a_picture_that_lacks_a_grant_is_an_error_that_names_the_record(tmp_path: Path) -> None:
    store, engine = stores.started(tmp_path, running=[nodes.container(1000)])
    stores.commit(store, engine, Created(container=nodes.container(1000)))
    base = next(record for record in stores.records(store.path) if record.link is RecordLink.BASE)
    assert isinstance(base.event, Synchronized)
    broken = replace(base, event=replace(base.event, held={}))
    with pytest.raises(ValueError, match=f"record {base.seq} misses"):
        [*RecordedReplay().step(broken)]


def test_the_same_settings_change_nothing(tmp_path: Path) -> None:
    store, engine = stores.started(tmp_path)
    for event, _ in zip(stores.life(engine, seed=3), range(600), strict=False):
        if not isinstance(event, Reconfigured):
            stores.commit(store, engine, event)
    statistics, differences = recorded(store.path)
    assert differences == []
    same = otherwise(store.path, settings=nodes.settings())
    assert same.outcomes == statistics.outcomes
    assert same.score() == statistics.score()
    assert statistics.score().placed > 20
    assert statistics.score().refused > 0


def test_other_settings_place_otherwise_and_the_score_tells(tmp_path: Path) -> None:
    store, engine = stores.started(tmp_path)
    containers = [nodes.container(500, 500, qos=QoS.BURSTABLE) for _ in range(3)]
    for container in containers:
        free = replace(container, resources=nodes.resources(500, None))
        stores.commit(store, engine, Created(container=free))
    statistics, _ = recorded(store.path)
    other = otherwise(store.path, settings=nodes.settings(unlimitedBurstable="numa"))
    assert (statistics.score().asking, statistics.score().aligned) == (3, 0)
    assert (other.score().asking, other.score().aligned) == (3, 3)
    assert {fate.pool for fate in other.outcomes.values()} <= {f"NUMA node #{n}" for n in range(4)}


def test_reloads_of_the_journal_do_not_undo_the_settings_that_are_tried(tmp_path: Path) -> None:
    store, engine = stores.started(tmp_path)
    stores.commit(store, engine, Reconfigured(settings=nodes.settings(preferSharedCPUs=False)))
    container = nodes.container(2000)
    stores.commit(store, engine, Created(container=container))
    other = otherwise(store.path, settings=nodes.settings(preferSharedCPUs=True))
    assert not other.outcomes[container.full_name].exclusive
    assert recorded(store.path)[0].outcomes[container.full_name].exclusive


def test_on_a_smaller_machine_some_are_refused(tmp_path: Path) -> None:
    store, engine = stores.started(tmp_path)
    containers = [nodes.container(3000) for _ in range(4)]
    for container in containers:
        stores.commit(store, engine, Created(container=container))
    stores.commit(store, engine, Stopped(container_id=containers[3].id))
    other = otherwise(store.path, machine=nodes.machine("package:1 core:4 pu:2"))
    outcomes = [other.outcomes[container.full_name].refusal for container in containers]
    assert outcomes[:2] == [None, None]
    assert "comes closest" in str(outcomes[2])
    assert other.score().refused == 2


def test_who_runs_when_the_journal_begins_comes_as_if_anew_and_gaps_are_caught_up(
    tmp_path: Path,
) -> None:
    store, engine = stores.started(tmp_path)
    early, gone = nodes.container(1000), nodes.container(1000)
    for container in (early, gone):
        stores.commit(store, engine, Created(container=container))
    store.close()
    late = nodes.container(2000)
    running = [nodes.running(each, CPUSet(), CPUSet()) for each in (early, late)]
    store, engine = stores.started(tmp_path, running=running)
    other = otherwise(store.path, settings=nodes.settings(preferSharedCPUs=True))
    assert [*other.outcomes] == [each.full_name for each in (early, gone, late)]
    replay = AlternativeReplay(nodes.settings(preferSharedCPUs=True), None)
    for record in stores.records(store.path):
        replay.step(record)
    assert replay._engine is not None
    assert set(replay._engine.state.placed) == {early.id, late.id}


def test_claims_are_held_whole_in_whatever_order_their_parts_are_stored(tmp_path: Path) -> None:
    """A part that has lost a CPU and got another one stands behind those of other claims."""
    store, _ = stores.started(tmp_path)
    record = next(each for each in stores.records(store.path) if each.link is RecordLink.BASE)
    near, far = (claims.part(1000, node, request=f"on-{node}") for node in (0, 1))
    parts = near, claims.part(1000, 1, claim="other"), far
    picture = Synchronized(containers=tuple(map(stand_in, parts)))
    replay = AlternativeReplay(None, None)
    replay.step(replace(record, event=picture))
    assert replay._engine is not None
    assert {*replay._engine.state.claims} == {each.id for each in parts}


def test_a_cold_start_ends_in_time_under_other_circumstances(tmp_path: Path) -> None:
    machine = PMEM
    store, engine = stores.started(tmp_path, machine)
    container = nodes.container(1000, annotations=COLD)
    stores.commit(store, engine, Created(container=container), now=0.0)
    stores.commit(store, engine, Started(container_id=container.id, now=1.0), now=1.0)
    assert view_of(engine).next_deadline == 31.0
    before = otherwise(store.path, settings=nodes.settings(preferSharedCPUs=True))
    stores.commit(store, engine, Created(container=nodes.container(100)), now=32.0)
    after = otherwise(store.path, settings=nodes.settings(preferSharedCPUs=True))
    assert (before.score().moves, after.score().moves) == (0, 1)
    assert before.outcomes[container.full_name].mems < after.outcomes[container.full_name].mems
    stores.commit(store, engine, Elapsed(now=32.5), now=32.5)
    again = otherwise(store.path, settings=nodes.settings(preferSharedCPUs=True))
    assert again.outcomes == after.outcomes
    assert recorded(store.path)[1] == []


def test_a_record_is_of_a_stretch_that_can_be_replayed_or_is_counted(tmp_path: Path) -> None:
    store, engine = stores.started(tmp_path)
    stores.commit(store, engine, Created(container=nodes.container(100)))
    replay = RecordedReplay()
    links: list[Record] = stores.records(store.path)
    for record in links:
        [*replay.step(record)]
    assert [record.link for record in links] == [RecordLink.GAP, RecordLink.BASE, RecordLink.NEXT]
    assert replay.skipped == 1


def test_who_was_refused_is_not_tried_again_for_running_in_truth(tmp_path: Path) -> None:
    """There it had a place, so it is in every picture."""
    store, engine = stores.started(tmp_path)
    wide = nodes.container(6000)
    stores.commit(store, engine, Created(container=wide))
    listed = nodes.running(wide, *engine.state.sent[wide.id])
    stores.commit(store, engine, Synchronized(containers=(listed,)))
    replay = AlternativeReplay(None, nodes.machine("package:1 core:4"))
    decided: list[str] = []
    note = replay.statistics.observe

    def noted(event: Event, *more: object) -> None:
        decided.append(kind(event))
        note(event, *more)  # type: ignore[arg-type]

    replay.statistics.observe = noted  # type: ignore[method-assign, assignment]
    for record in stores.records(store.path):
        replay.step(record)
    assert replay.statistics.score().refused == 1
    assert decided == ["created"]


def test_who_was_placed_because_nothing_was_pinned_is_refused_where_cpus_are_pinned(
    tmp_path: Path,
) -> None:
    """And the other way round; what the runtime went on with stays admitted."""
    machine, off = nodes.machine("package:1 core:4 pu:1"), {"pinCPU": False, "pinMemory": False}
    store, engine = stores.started(tmp_path, machine, nodes.settings(**off))
    first, second, third = (nodes.container(2000) for _ in range(3))
    for container in (first, second):
        stores.commit(store, engine, Created(container=container, admitted=True))
    stores.commit(store, engine, Created(container=third, admitted=True, unheard=True))
    as_it_was, _ = recorded(store.path)
    pinned = otherwise(store.path, settings=nodes.settings())
    assert (as_it_was.score().placed, as_it_was.score().refused) == (3, 0)
    assert (pinned.score().placed, pinned.score().refused) == (2, 1)
    refusal = pinned.outcomes[second.full_name].refusal
    assert refusal is not None
    assert refusal.startswith("no pool has room for 2 exclusive CPUs")

    store, engine = stores.started(tmp_path / "pinned", machine, nodes.settings())
    for container in (first, second):
        stores.commit(store, engine, Created(container=container))
    unpinned = otherwise(store.path, settings=nodes.settings(**off))
    assert (unpinned.score().placed, unpinned.score().refused) == (2, 0)


def test_who_was_placed_with_less_than_it_asks_for_still_asks_for_it_after_a_base(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "BASE_EVERY", 1)
    store, engine = stores.started(tmp_path, nodes.machine("package:1 core:2 pu:1"))
    full, late = nodes.container(1000), nodes.container(2000)
    stores.commit(store, engine, Created(container=full))
    stores.commit(store, engine, Created(container=late, admitted=True))
    stores.commit(store, engine, Created(container=nodes.best_effort()))
    base = max(each.seq for each in stores.records(store.path) if each.link is RecordLink.BASE)
    replayed = stores.replayed(store.path, after=base - 1)
    assert stores.grants(replayed) == stores.grants(engine)
    assert replayed.state.placed[late.id].asked.exclusive == 2
    assert recorded(store.path)[0].score().asking == 2


def test_where_nothing_is_pinned_who_runs_already_is_placed_all_the_same(tmp_path: Path) -> None:
    running = [nodes.container(2000) for _ in range(2)]
    machine = nodes.machine("package:1 core:4 pu:1")
    store, engine = stores.started(tmp_path, machine, nodes.settings(), running=running)
    stores.commit(store, engine, Created(container=nodes.best_effort()))
    unpinned = nodes.settings(pinCPU=False, pinMemory=False)
    assert otherwise(store.path, settings=nodes.settings()).score().refused == 1
    assert otherwise(store.path, settings=unpinned).score().refused == 0


def test_why_a_room_is_where_it_is_is_recorded_of_its_tenants(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "BASE_EVERY", 1)
    store, engine = stores.started(tmp_path)
    whole = rooms.pod(4000)
    for each in (rooms.tenant(whole, "main", 2000), rooms.tenant(whole, "log", 500)):
        stores.commit(store, engine, Created(container=each))
    assert not recorded(store.path)[1]
    records = stores.records(store.path)
    main = next(each for each in records if isinstance(each.event, Created))
    why, room = main.decision.explanation, engine.state.rooms[whole.id]
    assert why is not None
    assert why.scores == room.explanation.scores
    assert why.room is not None
    assert why.room.exclusive == 4


def test_what_was_near_to_a_container_is_not_on_another_machine(tmp_path: Path) -> None:
    store, engine = stores.started(tmp_path)
    near = Hint(kind=HintKind.DEVICES, source="gpu", cpus=CPUSet([12]), nodes=CPUSet())
    container = replace(nodes.container(1000), hints=(near,))
    stores.commit(store, engine, Created(container=container))
    name = container.full_name
    assert recorded(store.path)[0].outcomes[name].pool == "NUMA node #3"
    assert otherwise(store.path, nodes.settings()).outcomes[name].pool == "NUMA node #3"
    there = otherwise(store.path, machine=nodes.machine("package:2 numa:2 core:8 pu:2"))
    assert there.outcomes[name].pool == "NUMA node #1"


def test_sharing_a_cpu_less_is_an_update_and_no_move(tmp_path: Path) -> None:
    store, engine = stores.started(tmp_path, nodes.machine("package:1 core:4"))
    for container in (nodes.best_effort(), nodes.container(1000)):
        stores.commit(store, engine, Created(container=container))
    score = recorded(store.path)[0].score()
    assert (score.updates, score.moves) == (1, 0)


def test_who_makes_way_and_goes_back_is_recorded_and_comes_out_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "BASE_EVERY", 2)
    settings = nodes.settings(reservedResources={"cpu": "cpuset:0"})
    machine = nodes.machine("package:2 numa:1 core:4 pu:1")
    store, engine = stores.started(tmp_path, machine, settings)
    small, large, more = nodes.container(100), nodes.container(4000), nodes.container(4000)
    up, back = Moved(container_id=small.id, before=1, after=2), (2, 1)
    for event in (
        Created(container=small),
        Created(container=large),
        Stopped(container_id=large.id),
        Created(container=more),
        Stopped(container_id=more.id),
    ):
        stores.commit(store, engine, event)
    moved = [each.decision.moved for each in stores.records(store.path)]
    down = replace(up, before=back[0], after=back[1])
    assert [each for each in moved if each] == [(up,), (down,), (up,)], "it goes back only once"
    for base in (0, *(e.seq for e in stores.records(store.path) if e.link is RecordLink.BASE)):
        assert stores.grants(stores.replayed(store.path, after=base - 1)) == stores.grants(engine)
    assert recorded(store.path)[0].score().moves == 3
    off = nodes.settings(reservedResources={"cpu": "cpuset:0"}, makeWay={"movers": 0})
    assert otherwise(store.path, off).score().moves == 0
    causes = [each.cause for each in History(store.path).changes(small.id, small.pod.id)]
    text = f"moved from socket #1 to root: {large.full_name} needs CPUs close together"
    assert "back on socket #1" in causes
    assert any(each.startswith(text) for each in causes)
    (first, *_) = (each for each in stores.records(store.path) if each.decision.moved)
    changed = replace(first, decision=replace(first.decision, moved=(down,)))
    replay = RecordedReplay()
    found = [
        each
        for record in stores.records(store.path)
        for each in replay.step(changed if record.seq == first.seq else record)
    ]
    assert [(each.seq, each.what) for each in found] == [(first.seq, "moved")]
