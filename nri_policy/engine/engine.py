"""Engine: events in, decisions out.

Rule 1: it opens no file, socket or clock, and keeps nothing outside its State, so the same events
give the same decisions. Rule 2: every event is a transaction: it is applied whole, or an error is
raised and nothing has changed.

Spec placement.md; the choice itself is in `placement`, the return after a restart in
`synchronization`.
"""

from __future__ import annotations

from copy import copy
from typing import assert_never

from msgspec import Struct
from msgspec.structs import replace

from nri_policy.engine.choice.choice import interim_placement
from nri_policy.engine.event import (
    Created,
    Described,
    Drifted,
    Elapsed,
    Equipped,
    Event,
    PodStopped,
    Prepared,
    Reconfigured,
    Resized,
    ResizeEnded,
    Started,
    Stopped,
    Synchronized,
    Unprepared,
)
from nri_policy.engine.grant import Decision, Moved, Placement
from nri_policy.engine.lifecycle.correction import describe
from nri_policy.engine.lifecycle.lifecycle import create, elapse, keep, resend, start, stop
from nri_policy.engine.lifecycle.resizing import end_resize, resize
from nri_policy.engine.placement.resource_claims import hold_again, prepare, unprepare
from nri_policy.engine.restart.reconfiguration import await_resizes, reconfigure
from nri_policy.engine.restart.restoration import place_candidates, resume
from nri_policy.engine.restart.synchronization import synchronize
from nri_policy.engine.state.layout import Layout, layout_of
from nri_policy.engine.state.state import Snapshot, State
from nri_policy.engine.updates.announcement import announce_all
from nri_policy.engine.updates.classification import update_limits, with_limits
from nri_policy.foundation.cpuset import EMPTY, CPUSet
from nri_policy.hardware.machine import Machine
from nri_policy.pools.capacity import NOTHING, Earlier
from nri_policy.settings import Settings
from nri_policy.workload.pod import Container


class Touched(Struct, frozen=True):
    """The holders that changed in the latest event, in `Snapshot.placed`."""

    mark: object  # of the entries after the event
    before: object  # mark of the previous entries; None if any of them may have changed
    ids: tuple[str, ...]


class Engine:
    """Decides for all containers of one node."""

    def __init__(self, machine: Machine, settings: Settings, earlier: Earlier = NOTHING) -> None:
        """Start without containers; raises CapacityError if *settings* are impossible on *machine*.

        *earlier* has the CPUs in use before a restart: the reserved ones stay the same as far as
        possible, because running containers use them.
        """
        self._state = State(layout_of(machine, settings, earlier))
        self._tables = self._state.snapshot()
        self._touched = Touched(object(), None, ())
        self._unheard = earlier.exclusive  # of containers before the first Synchronized
        self._earlier: CPUSet | None = earlier.reserved  # when stored grants were made

    @classmethod
    def resume(cls, layout: Layout, picture: Synchronized) -> Engine:
        """Return an engine in the state that *picture* shows, with the same order of containers.

        It then decides like the engine that the picture is of. Raises ValueError or KeyError if
        *picture* is impossible on *layout*.
        """
        engine = cls.__new__(cls)
        state = resume(layout, picture)
        engine._state, engine._unheard, engine._earlier = state, EMPTY, None  # noqa: SLF001
        engine._tables = state.snapshot()  # noqa: SLF001
        engine._touched = Touched(object(), None, ())  # noqa: SLF001
        return engine

    @property
    def layout(self) -> Layout:
        """What follows from the machine and the settings in force."""
        return self._state.layout

    @property
    def state(self) -> State:
        """The present state, read-only."""
        return self._state

    @property
    def tables(self) -> Snapshot:
        """The tables of the state after the latest event; they never change."""
        return self._tables

    @property
    def touched(self) -> Touched:
        """The holders whose grants changed in the latest event."""
        return self._touched

    def fork(self) -> Engine:
        """Return an independent engine in the same state, to try events on."""
        twin = copy(self)
        twin._state = self._state.fork()  # noqa: SLF001 - another of this class
        return twin

    def interim_placement(self, container: Container) -> Placement:
        """Return where a container can wait that has to be admitted before it is decided on."""
        _, request, _ = self.layout.requests.read_admitted(container)
        return interim_placement(self._state, request)

    def handle(self, event: Event) -> Decision:  # noqa: C901, PLR0912 - a case for each event
        """Apply *event* and return the decision.

        Raises Refused: nothing has changed, and the text is for the author of the event: of a
        container (PlacementError, AnnotationError), or of new settings (CapacityError).
        """
        state = self._state
        state.moved.clear()
        state.touched.clear()
        try:
            match event:
                case Created():
                    decision = create(state, event)
                case Started():
                    decision = start(state, event)
                case Elapsed():
                    decision = elapse(state, event.now)
                case Resized():
                    decision = resize(state, event)
                case ResizeEnded():
                    decision = end_resize(state, event)
                case Stopped(keeps=True):
                    decision = keep(state, event.container_id)
                case Stopped() | PodStopped():
                    decision = stop(state, event)
                case Synchronized():
                    decision = synchronize(state, event, self._earlier)
                    self._unheard, self._earlier = EMPTY, None
                case Reconfigured():
                    decision = self._reconfigure(event)
                case Described():
                    decision = describe(state, event)
                case Prepared():
                    decision = prepare(state, event)
                case Unprepared():
                    decision = unprepare(state, event)
                case Drifted():
                    decision = resend(state, event.container_ids)
                case Equipped():
                    state.equipment = event.equipment
                    decision = Decision(changes=update_limits(state, "the node's disks changed"))
                case _:
                    assert_never(event)
        except BaseException:
            self._state = state
            state.restore(self._tables)
            raise
        if state.moved and state is self._state:
            decision = replace(decision, moved=self._list_moved(decision.container_id))
        self._tables = self._state.snapshot()
        assert decision.container_id not in decision.changes, "its placement is not a change"
        before = self._touched.mark if state is self._state else None
        self._touched = Touched(object(), before, tuple(self._state.touched))
        return decision

    def _list_moved(self, asked: str | None) -> tuple[Moved, ...]:
        """Return the other containers that this event moved to another pool."""
        before, now = self._tables.placed, self._state.placed
        return tuple(
            Moved(container_id=each, before=before[each].grant.pool, after=now[each].grant.pool)
            for each in self._state.moved
            if each != asked and each in before and each in now
            if before[each].grant.pool != now[each].grant.pool
        )

    def _reconfigure(self, event: Reconfigured) -> Decision:
        """Move everyone to the new layout; settings that leave a container no place are refused."""
        old = self._state
        change = reconfigure(old, event, self._unheard)
        self._state = new = change.state
        hold_again(new, change.claims)
        missing = None if change.forced else old.memory.missing
        found = place_candidates(new, change.candidates, forced=change.forced, missing=missing)
        await_resizes(new, change.resizes)
        new.cold = {each: old.cold.get(each) for each in new.cold}
        decision = Decision(
            changes=announce_all(new, new.placed, change.cause),
            warnings=(*new.layout.shortages, *new.layout.capacity.notes, *found),
        )
        return with_limits(new, decision, change.cause)
