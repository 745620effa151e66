"""Replay: runs a recorded journal again, as recorded, or with other settings or another machine.

Owns where a replay can start, and gaps. `RecordedReplay` repeats the records and reports decisions
that differ. `AlternativeReplay` repeats the arrivals and ends of containers under other
circumstances: the containers of the first BASE, or of the one after a gap, are created in the
recorded order, as if the circumstances had been the same all along.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct
from msgspec.structs import replace

from nri_policy.engine.choice.shortage import PlacementError
from nri_policy.engine.engine import Engine
from nri_policy.engine.event import (
    Created,
    Elapsed,
    Equipped,
    Event,
    Prepared,
    Reconfigured,
    Started,
    Stopped,
    Synchronized,
)
from nri_policy.engine.explanation import DecisionKind, Explanation
from nri_policy.engine.grant import Decision
from nri_policy.foundation.refusal import Refused
from nri_policy.hardware.machine import Machine
from nri_policy.node import Outcome, Statistics, view_of
from nri_policy.settings import Settings
from nri_policy.store.database import RecordLink
from nri_policy.store.differences import list_differences
from nri_policy.store.journal import Record
from nri_policy.workload.claim import ClaimPart
from nri_policy.workload.pod import Container, ContainerState


class Difference(Struct, frozen=True, kw_only=True):
    """A record whose replay gave another decision."""

    seq: int
    time: float  # seconds since the epoch
    what: str  # the part of the decision
    recorded: str
    replayed: str


class RecordedReplay:
    """The recorded engine, rebuilt from the records."""

    def __init__(self) -> None:
        self.engine: Engine | None = None  # None while its state is unknown
        self.statistics = Statistics()
        self.skipped = 0  # records after a gap, before the next base

    def step(self, record: Record) -> Iterator[Difference]:
        """Replay one record and yield differences; raises ValueError for a malformed record."""
        if record.link is RecordLink.BASE:
            assert isinstance(record.event, Synchronized), "a picture of all containers"
            yield from self._rebase(record, record.event)
        elif record.link is RecordLink.GAP or self.engine is None:
            self.engine = None
            self.skipped += 1
        else:
            outcome = handle(self.engine, record.event)
            self.statistics.observe(record.event, outcome, view_of(self.engine))
            yield from _compare(record, outcome)

    def _rebase(self, record: Record, picture: Synchronized) -> Iterator[Difference]:
        if self.engine is not None:
            view = view_of(self.engine)
            held = {each: view.to_store(each) for each in view.holders}
            if held == picture.held:
                return
            yield from _differences(record, "grants", picture.held, held)
        try:
            self.engine = Engine.resume(record.layout, picture)
        except KeyError as error:
            raise ValueError(f"record {record.seq} misses {error}") from error
        self.statistics.record_all(view_of(self.engine))


class AlternativeReplay:
    """An engine with other *settings* or another *machine*; None: as recorded."""

    def __init__(self, settings: Settings | None, machine: Machine | None) -> None:
        self._settings = settings
        self._machine = machine
        self._engine: Engine | None = None
        self._complete = False  # whether there is no gap since the last base
        self.statistics = Statistics()

    def step(self, record: Record) -> None:
        """Replay one record; raises CapacityError if the circumstances are impossible."""
        event = record.event
        if record.link is RecordLink.GAP:
            self._complete = False
        elif record.link is RecordLink.BASE:
            assert isinstance(event, Synchronized), "a picture of all containers"
            if not self._complete:
                self._catch_up(record, event)
                self._complete = True
        elif self._complete:
            self._replay_event(record, event)

    def _replay_event(self, record: Record, event: Event) -> None:
        assert self._engine is not None, "the base record before it made the engine"
        deadline = view_of(self._engine).next_deadline
        if isinstance(event, Elapsed) or (deadline is not None and deadline <= record.time):
            self._handle(Elapsed(now=record.time))
        match event:
            case Synchronized():
                self._catch_up(record, event)
            case Created(container=container, admitted=admitted, unheard=unheard):
                if record.layout.settings.pins_nothing:  # all were admitted
                    admitted = unheard
                self._create(container, admitted=admitted, unheard=unheard)
            case Reconfigured():
                settings = None if self._settings else event.settings
                machine = None if self._machine else event.machine
                if settings or machine:
                    self._handle(Reconfigured(settings=settings, machine=machine))
            case Elapsed():
                pass  # handled above, as of the record's time
            case _:
                self._handle(event)

    def _catch_up(self, record: Record, picture: Synchronized) -> None:
        """Stop containers that are not in the *picture*; create the missing ones.

        A container that this engine refused before is not created again.
        """
        if self._engine is None:
            layout = record.layout
            self._engine = Engine(
                self._machine or layout.machine, self._settings or layout.settings
            )
        equipment = picture.equipment
        if equipment is not None and equipment != view_of(self._engine).equipment:
            self._handle(Equipped(equipment=equipment))
        # a room is made again for its first tenant
        containers = {each.id: each for each in picture.containers if not each.stands_in}
        for gone in [each for each in view_of(self._engine).placed if each not in containers]:
            self._handle(Stopped(container_id=gone))
        claims: dict[str, list[ClaimPart]] = {}  # the parts of a claim may be far apart
        for part in (each.part for each in picture.containers if each.part is not None):
            claims.setdefault(part.claim, []).append(part)
        for parts in claims.values():
            self._handle(Prepared(parts=tuple(parts)))
        for container in containers.values():
            fate = self.statistics.outcomes.get(container.full_name)
            refused = fate is not None and fate.refusal is not None
            if container.id not in view_of(self._engine).placed and not refused:
                self._create(container)
                if container.state is ContainerState.RUNNING:
                    self._handle(Started(container_id=container.id, now=record.time))

    def _create(
        self, container: Container, *, admitted: bool = False, unheard: bool = False
    ) -> None:
        """Create a container; it cannot be refused if it is *admitted* or nothing is pinned."""
        assert self._engine is not None, "the engine exists before the first container"
        admitted |= self._engine.layout.settings.pins_nothing
        container = self._update(container)
        self._handle(Created(container=container, admitted=admitted, unheard=unheard))

    def _update(self, container: Container) -> Container:
        """Return *container* as it would be created here: hints are of the recorded machine."""
        resources = replace(container.resources, cpus="", mems="")
        if self._machine:
            container = replace(container, hints=(), devices=())
        return replace(container, state=ContainerState.CREATED, resources=resources)

    def _handle(self, event: Event) -> None:
        assert self._engine is not None, "the engine exists before the first event"
        outcome = handle(self._engine, event)
        self.statistics.observe(event, outcome, view_of(self._engine))


def handle(engine: Engine, event: Event) -> Outcome:
    """Have *engine* handle *event*; return a refusal as the outcome."""
    try:
        return engine.handle(event)
    except Refused as refusal:
        return refusal


def _compare(record: Record, outcome: Outcome) -> Iterator[Difference]:
    """Yield the differences between *outcome* and the record."""
    decision, refusal, why = Decision(), None, None
    if isinstance(outcome, Decision):
        decision, why = outcome, outcome.explanation
    else:
        refusal = str(outcome)
        why = outcome.explanation if isinstance(outcome, PlacementError) else None
    then = record.decision
    pairs: dict[str, tuple[object, object]] = {
        "refusal": (record.refusal, refusal),
        "grant": (then.grant, decision.grant),
        "placement": (then.placement, decision.placement),
        "containers that change": ([*then.changes], [*decision.changes]),
        "changes": (then.changes, decision.changes),
        "warnings": (then.warnings, decision.warnings),
        "classes": (then.classes, decision.classes),
        "moved": (then.moved, decision.moved),
    }
    for what, (before, after) in pairs.items():
        yield from _differences(record, what, before, after)
    # the base record has no reasons for containers that existed before it
    known = why is None or not (why.kind is DecisionKind.KEPT or _is_in_old_room(why))
    if known and _reasons(then.explanation) != _reasons(why):
        yield from _differences(record, "explanation", then.explanation, why)


def _is_in_old_room(why: Explanation) -> bool:
    """Return whether a container was placed in a room that existed at the base."""
    return why.kind is DecisionKind.TENANT and why.scores is None


def _reasons(explanation: Explanation | None) -> tuple[object, ...] | None:
    """Return the parts of an explanation that are compared."""
    if explanation is None:
        return None
    table = explanation.table
    return (
        explanation.container,
        explanation.kind.value,
        explanation.pool,
        explanation.notes,
        None if table is None else table.pack(),
    )


def _differences(record: Record, what: str, before: object, after: object) -> Iterator[Difference]:
    pools = record.layout.tree.pools
    for part, recorded, replayed in list_differences(what, before, after, pools):
        yield Difference(
            seq=record.seq, time=record.time, what=part, recorded=recorded, replayed=replayed
        )
