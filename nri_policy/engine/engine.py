"""Engine: events in, decisions out.

Rule 1: it opens no file, socket or clock, and keeps nothing outside its State, so the same events
give the same decisions. Rule 2: every event is a transaction: it is applied whole, or an error is
raised and nothing has changed.

Spec placement.md; the choice itself is in `placement`, the return after a restart in
`synchronization`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import copy
from typing import assert_never

from msgspec import Struct
from msgspec.structs import replace

from nri_policy.engine.classification import (
    add_classes,
    check_supported,
    classes_of,
    reclassify,
    updatable_limits,
    update_limits,
    with_limits,
)
from nri_policy.engine.degraded_admission import add_notes, admit_degraded
from nri_policy.engine.event import (
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
)
from nri_policy.engine.explanation import DecisionKind
from nri_policy.engine.grant import Decision, Held, Moved, Placement
from nri_policy.engine.interim import interim_placement
from nri_policy.engine.layout import Layout, layout_of
from nri_policy.engine.placement import place
from nri_policy.engine.pod_level import (
    known_by_others,
    known_together,
    mistaken,
    settle_memory,
    share_memory,
)
from nri_policy.engine.quota import as_granted
from nri_policy.engine.rebooking import bring_back
from nri_policy.engine.recognition import Candidate
from nri_policy.engine.reconfiguration import reconfigure
from nri_policy.engine.requested import check_amounts, overlay, read_admitted, read_request
from nri_policy.engine.rooms import (
    drop_rooms,
    living_pods,
    open_room,
    resize_room,
    restored_rooms,
)
from nri_policy.engine.shortage import PlacementError
from nri_policy.engine.state import Placed, Resizing, Snapshot, State
from nri_policy.engine.synchronization import (
    deduplicate,
    parse_cpus,
    recall,
    restore,
    resume,
    takeover_cause,
    update_from_list,
    with_stored_grant,
)
from nri_policy.engine.tenancy import leave, settle, settle_all
from nri_policy.foundation.cpuset import EMPTY, CPUSet
from nri_policy.hardware.machine import Machine
from nri_policy.pools.capacity import NOTHING, CapacityError, Earlier
from nri_policy.settings import Settings
from nri_policy.workload.amounts import described, resized_requirements
from nri_policy.workload.pod import Container, ContainerState
from nri_policy.workload.request import Request


class Touched(Struct, frozen=True):
    """Whose entries in `Snapshot.placed` came, went or changed in the latest event."""

    mark: object  # of the entries as they are after it
    before: object  # as they were before it; None where all may be others
    ids: tuple[str, ...]


class Engine:
    """Decides for all containers of one node."""

    def __init__(self, machine: Machine, settings: Settings, earlier: Earlier = NOTHING) -> None:
        """Start empty; CapacityError where *settings* ask the impossible of *machine*.

        *earlier* is what was in use when the node ran before: what was reserved stays so as far as
        possible, for running containers know it.
        """
        self._state = State(layout_of(machine, settings, earlier))
        self._tables = self._state.snapshot()
        self._touched = Touched(object(), None, ())
        self._unheard = earlier.exclusive  # of containers that no Synchronized has named yet
        self._earlier: CPUSet | None = earlier.reserved  # that stored grants are of

    @classmethod
    def resume(cls, layout: Layout, picture: Synchronized) -> Engine:
        """Return an engine in the state that *picture* was taken of, down to who came first.

        It decides from then on as the one did that the picture is of. ValueError or KeyError where
        it is no picture of a state on *layout*.
        """
        engine = cls.__new__(cls)
        state = resume(layout, picture, lambda container: read_request(container, layout)[0])
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
        """Who holds what; to be read, not written."""
        return self._state

    @property
    def tables(self) -> Snapshot:
        """The tables of the state after the latest event; they never change."""
        return self._tables

    @property
    def touched(self) -> Touched:
        """Whose grants are others after the latest event."""
        return self._touched

    def fork(self) -> Engine:
        """Return an independent engine in the same state, to try events on."""
        twin = copy(self)
        twin._state = self._state.fork()  # noqa: SLF001 - another of this class
        return twin

    def interim_placement(self, container: Container) -> Placement:
        """Return where a container can wait that has to be admitted before it is decided on."""
        _, request, _ = read_admitted(container, self.layout)
        return interim_placement(self._state, container, request)

    def handle(self, event: Event) -> Decision:  # noqa: C901, PLR0912 - a case for each event
        """Apply *event* and return what to do about it.

        Refused: nothing has changed, and the text is for who caused the event: a container's owner
        (PlacementError, AnnotationError), or who gave new settings (CapacityError).
        """
        state = self._state
        state.moved.clear()
        state.touched.clear()
        try:
            match event:
                case Created():
                    decision = self._created(event)
                case Started():
                    decision = self._started(event)
                case Elapsed():
                    decision = self._elapsed(event.now)
                case Resized():
                    decision = self._resized(event)
                case ResizeEnded():
                    decision = self._resize_ended(event)
                case Stopped() | PodStopped():
                    decision = self._stopped(event)
                case Synchronized():
                    decision = self._synchronized(event)
                    self._unheard, self._earlier = EMPTY, None
                case Reconfigured():
                    decision = self._reconfigured(event)
                case Described():
                    decision = self._described(event)
                case Drifted():
                    decision = self._drifted(event.container_ids)
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
            decision = replace(decision, moved=self._moved(decision.container_id))
        self._tables = self._state.snapshot()
        before = self._touched.mark if state is self._state else None
        self._touched = Touched(object(), before, tuple(self._state.touched))
        return decision

    def _moved(self, asked: str | None) -> tuple[Moved, ...]:
        """Return who else is booked on another pool than before this event."""
        before, now = self._tables.placed, self._state.placed
        return tuple(
            Moved(container_id=each, before=before[each].grant.pool, after=now[each].grant.pool)
            for each in self._state.moved
            if each != asked and each in before and each in now
            if before[each].grant.pool != now[each].grant.pool
        )

    def _created(self, event: Created) -> Decision:
        state, free = self._state, self._state.supply.free_cpus()
        container = event.container
        if container.pod_level is None:
            container = known_by_others(state, container)
        if event.admitted:
            container, request, warnings = read_admitted(container, self.layout)
        else:
            check_amounts(container.resources)
            request, warnings = read_request(container, self.layout)
            check_supported(container, request, self.layout.settings)
        # older runtimes do not say when: whoever comes later is younger
        container = replace(container, created=max(container.created, state.latest + 1))
        for stale in (container.id, state.named(container.full_name)):
            if stale in state.placed:  # a repeated event, or a predecessor whose end was missed
                leave(state, stale)
                state.forget(stale)
        try:
            warnings += open_room(state, container, request)
        except PlacementError as refusal:
            if not event.admitted:
                raise
            warnings += (str(refusal),)
        cause, corrected = "", []
        if container.pod_level:
            cause = f"{container.full_name} shows that its pod has resources as a whole"
            corrected = self._correct(mistaken(state, container), cause)
        classes, asks = None, request.steering.scheduling_class or request.steering.blockio_class
        if asks or state.layout.gives_classes:
            classes = classes_of(state, container, request, event)
        decision = self._place(container, request, free, warnings, None, admitted=event.admitted)
        if corrected:
            told = state.announce_all(corrected, cause)
            decision = replace(decision, changes=(*decision.changes, *told))
        return decision if classes is None else add_classes(state, decision, classes)

    def _place(  # noqa: PLR0913 - what is placed, and what is known of it
        self,
        container: Container,
        request: Request,
        free: CPUSet,
        warnings: tuple[str, ...],
        before: Placed | None,
        *,
        admitted: bool = False,
        resizing: Resizing | None = None,
    ) -> Decision:
        state = self._state
        request = share_memory(state, container, request)
        try:
            held = None
            if before is not None:
                held = Held(grant=before.grant, booked=before.request.memory)
            choice = place(state, container, request, held)
            notes = choice.findings.notes
        except PlacementError as refusal:
            if not admitted:
                raise
            notes = admit_degraded(state, container, request, refusal)
        if admitted:
            add_notes(state, container.id, *warnings)
        if resizing is not None:
            state.await_resize(container.id, resizing)
            settle(state, container.pod.id)
        elif (
            before is not None
            and request.milli < before.request.milli
            and not before.grant.tenant  # what it gives back stays in its pod's room
        ):
            bring_back(state, container.id)
        placed = state.placed[container.id]
        # one that was degraded keeps the weight that it came with
        placement = state.announce(container.id, "asked for", with_shares=placed.request is request)
        return Decision(
            container_id=container.id,
            grant=placed.grant,
            placement=placement,
            changes=self._changes(free, f"{container.full_name} was placed"),
            explanation=placed.explanation,
            warnings=warnings + notes,
        )

    def _started(self, event: Started) -> Decision:
        placed = self._state.placed.get(event.container_id)
        if placed is not None:
            running = replace(placed.container, state=ContainerState.RUNNING)
            self._state.enter(replace(placed, container=running))
        if self._state.cold.get(event.container_id, 0.0) is None:
            self._heat(event.container_id, event.now)
        return Decision(container_id=event.container_id)

    def _heat(self, container_id: str, now: float) -> None:
        """Note when a container that has started on pmem alone gets dram."""
        wait = self._state.placed[container_id].request.cold_start or 0.0
        self._state.cold[container_id] = now + wait

    def _elapsed(self, now: float) -> Decision:
        state, free = self._state, self._state.supply.free_cpus()
        due = [each for each, at in state.cold.items() if at is not None and at <= now]
        for container_id in due:
            state.warm(container_id)
        return Decision(changes=self._changes(free, "its cold start is over"))

    def _resized(self, event: Resized) -> Decision:
        state, free, container_id = self._state, self._state.supply.free_cpus(), event.container_id
        placed = state.placed.get(container_id)
        if container_id in state.rooms:
            check_amounts(event.resources)
            room = state.rooms[container_id]
            resize_room(state, room, event.resources)
            cause = f"the room of {room.container.full_name} was resized"
            return Decision(changes=self._changes(free, cause))
        if placed is None:
            return Decision(container_id=container_id)
        check_amounts(event.resources)
        resizing = None
        if not event.certain:
            resizing = state.resizing.get(container_id) or Resizing(
                before=placed, sent=state.sent[container_id], kept=EMPTY
            )
        container = placed.container
        asked = as_granted(event.resources, container.resources, container.pod.qos)
        merged = overlay(container.resources, asked)
        if event.pod is not None:
            container = replace(container, pod=replace(container.pod, amounts=event.pod))
        if merged != container.resources:
            requirements = resized_requirements(container, merged)
            container = replace(
                container, resources=merged, resized=True, requirements=requirements
            )
        request, warnings = read_request(container, self.layout)
        if request.pod_memory and request.pod_memory == placed.request.pod_memory:
            request = replace(request, memory=placed.request.memory)
        # one that was degraded asks for more than it has anyway, not now
        if request == placed.request or merged == placed.container.resources:
            state.enter(replace(placed, container=container))
            if resizing is not None:
                state.resizing[container_id] = resizing
            placement = state.announce(container_id, "asked for", with_shares=True)
            return Decision(
                container_id=container_id,
                grant=placed.grant,
                placement=placement,
                explanation=placed.explanation,
            )
        deadline = state.cold.get(container_id)
        state.drop(container_id, settle=False)
        decision = self._place(container, request, free, warnings, placed, resizing=resizing)
        if container_id in state.cold:
            state.cold[container_id] = deadline
        return decision

    def _resize_ended(self, event: ResizeEnded) -> Decision:
        """Let others have what a resize has freed, or put a container back that was not resized."""
        state, free, container_id = self._state, self._state.supply.free_cpus(), event.container_id
        resizing = state.resizing.get(container_id)
        if resizing is None:
            return Decision()
        before, name = resizing.before, resizing.before.container.full_name
        if not event.refused:
            state.end_resize(container_id)
            settle(state, before.container.pod.id)
            if state.placed[container_id].request.milli < before.request.milli:
                bring_back(state, container_id)
            return Decision(changes=self._changes(free, f"{name} was resized"))
        asked, deadline = state.placed[container_id].container, state.cold.get(container_id)
        state.drop(container_id, settle=False)
        del state.sent[container_id]  # what it has now is not certain
        cpus, mems = resizing.sent
        container = replace(before.container, state=asked.state)
        candidate = Candidate(
            container=container, request=before.request, cpus=cpus, mems=mems, held=before.grant
        )
        note = "the runtime refused its resize, so it keeps what it had"
        decision = self._restored([candidate], [f"{name}: {note}"], note)
        placed = state.placed[container_id]
        if placed.explanation.kind is DecisionKind.KEPT:  # for the reasons that it had before
            notes = [each for each in before.explanation.notes if each != note]
            explanation = replace(before.explanation, notes=(*notes, note))
            placed = replace(placed, explanation=explanation)
            state.enter(placed)
        if container_id in state.cold:
            state.cold[container_id] = deadline
        return replace(decision, explanation=placed.explanation)

    def _stopped(self, event: Stopped | PodStopped) -> Decision:
        state, free = self._state, self._state.supply.free_cpus()
        asked = (
            [event.container_id] if isinstance(event, Stopped) else [*state.of_pod(event.pod_id)]
        )
        gone = [leave(state, each) for each in asked if each in state.placed]
        freed = [each for each in gone if not each.grant.tenant]  # a slice goes to its room's rest
        for placed in gone:
            state.forget(placed.container.id)
        if isinstance(event, PodStopped) and event.pod_id in state.rooms:
            freed.append(state.drop(event.pod_id))
        for placed in gone:
            settle(state, placed.container.pod.id)
        if self.layout.settings.shrink_memory:
            state.shrink_memory()
        if freed and state.away:
            bring_back(state)
        if state.pod_memory:
            settle_memory(state, {each.container.pod.id: None for each in gone})
        names = tuple(placed.container.full_name for placed in gone)
        subjects = names or [each.container.full_name for each in freed]
        cause = f"{', '.join(subjects)} stopped"
        return Decision(released=names, changes=self._changes(free, cause))

    def _changes(self, free: CPUSet, cause: str) -> tuple[Placement, ...]:
        """Return what other containers must hear now that the free CPUs are no longer *free*.

        Whoever shares free CPUs that changed, and whoever has moved, be it beside the same CPUs.
        """
        state = self._state
        moved = state.announce_moved(cause) if state.moved else ()
        return *state.announce_sharers(free ^ state.supply.free_cpus(), cause), *moved

    def _synchronized(self, event: Synchronized) -> Decision:
        state = self._state
        state.equipment = event.equipment or state.equipment
        before = state.placed.keys() | event.held.keys()
        present = [*deduplicate(event.containers, before)]
        listed_now = {container.id: container.full_name for container in present}
        came = [each.full_name for each in present if before and each.id not in before]
        left = [
            each.full_name
            for key, each in event.held.items()
            if key not in listed_now and not each.of_room
        ]
        gone = [
            each
            for each, placed in state.placed.items()
            if listed_now.get(each) != placed.container.full_name  # another one has its id
        ]
        for each in gone:
            left.append(leave(state, each).container.full_name)
            state.forget(each)
        pods = living_pods(present, event.pods)
        drop_rooms(state, pods)
        candidates, warnings, deadlines, unread = [], [], {}, {}
        pools = {pool.name: pool.id for pool in self.layout.tree.pools}
        recalled = self._recalled(present, event.held)
        for listed, (known, stored) in recalled:
            cpus, mems = parse_cpus(listed.resources.cpus), parse_cpus(listed.resources.mems)
            placed = state.placed.get(listed.id)
            state.list_quota(listed)
            if placed is not None:
                state.sent[listed.id] = cpus, mems
                deadlines[listed.id] = state.cold.get(listed.id)
                candidates += self._again(placed, listed)
                continue
            container, request, notes = read_admitted(known, self.layout)
            if container is not known:
                unread[container.id] = notes[0]
            warnings += [f"{container.full_name}: {note}" for note in notes]
            state.sent[container.id] = cpus, mems
            candidate = Candidate(container=container, request=request, cpus=cpus, mems=mems)
            reclassify(state, container, request, stored)
            if stored is not None:
                there = self._earlier in {None, self.layout.capacity.reserved}
                candidate = with_stored_grant(candidate, stored, pools, there=there)
                deadlines[container.id] = stored.deadline
            candidates.append(candidate)
        candidates += restored_rooms(state, pods.values(), candidates, event.held)
        state.end_resizes()  # who was resized is listed with what it has
        settle_all(state)
        cause = takeover_cause(left, came)
        decision = self._restored(candidates, warnings, cause)
        decision = with_limits(state, decision, cause)
        for container_id, note in unread.items():
            add_notes(state, container_id, note)
        for container_id, deadline in state.cold.items():
            running = state.placed[container_id].container.state is ContainerState.RUNNING
            if deadline is None:
                state.cold[container_id] = deadlines.get(container_id)
            if state.cold[container_id] is None and running:  # when it started is not known
                self._heat(container_id, event.now)
        return decision

    def _described(self, event: Described) -> Decision:
        """Take in what a pod's object says; whoever was placed for something else is corrected."""
        state, free = self._state, self._state.supply.free_cpus()
        containers = [state.placed[each].container for each in state.of_pod(event.pod_id)]
        known = [described(each, event.said) for each in containers]
        cause = "its pod's object says what it asks for"
        corrected = self._correct(known, cause)
        settle_memory(state, (event.pod_id,))
        changes = self._changes(free, cause)
        return Decision(changes=(*changes, *state.announce_all(corrected, cause)))

    def _correct(self, containers: Iterable[Container], cause: str) -> list[str]:
        """Take *containers* for what is known of them now; return who of them is placed anew.

        One for which there is no room keeps what it has.
        """
        state = self._state
        changed = []
        for known in [*containers]:
            placed = state.placed[known.id]
            container, request, _ = read_admitted(known, self.layout)
            _, estimated, _ = read_admitted(placed.container, self.layout)
            state.enter(replace(placed, container=container))
            if container.id in state.resizing:
                continue
            if request.entitlement == estimated.entitlement:  # one that was degraded has less
                request = replace(placed.request, steering=request.steering)
                state.enter(replace(placed, container=container, request=request))
                continue
            before, deadline = state.snapshot(), state.cold.get(container.id)
            state.drop(container.id, settle=False)
            try:
                request = share_memory(state, container, request)
                held = Held(grant=placed.grant, booked=placed.request.memory)
                place(state, container, request, held, last=False)
                add_notes(state, container.id, f"placed anew: {cause}")
            except PlacementError as refusal:
                state.restore(before)
                add_notes(state, container.id, f"{cause}, but {refusal}; it keeps what it had")
                continue
            if container.id in state.cold:
                state.cold[container.id] = deadline
            changed.append(container.id)
        return changed

    def _recalled(
        self, present: Iterable[Container], held: Mapping[str, StoredGrant]
    ) -> list[tuple[Container, tuple[Container, StoredGrant | None]]]:
        """Return listed containers, each as it was known, with its stored grant, if any."""
        listed = [*present]
        recalled = [recall(each, held) for each in listed]
        together = known_together(container for container, _ in recalled)
        return [
            (each, (container, stored))
            for each, container, (_, stored) in zip(listed, together, recalled, strict=True)
        ]

    def _again(self, placed: Placed, listed: Container) -> list[Candidate]:
        """Take in how a known container runs; return it if a missed resize moves it."""
        state, known = self._state, placed.container
        container = update_from_list(known, placed.request.milli, listed)
        if container == known:
            return []
        state.enter(replace(placed, container=container))
        if container.resources == known.resources:
            return []
        request, _ = read_request(container, self.layout)
        if request == placed.request:
            return []
        state.drop(known.id)
        cpus, mems = state.sent[known.id]
        same = request.entitlement == placed.request.entitlement
        return [
            Candidate(
                container=container,
                request=request,
                cpus=cpus,
                mems=mems,
                held=placed.grant,
                same=same,
                there=True,
            )
        ]

    def _restored(
        self,
        candidates: list[Candidate],
        warnings: list[str],
        cause: str,
        *,
        forced: bool = False,
        missing: int | None = None,
    ) -> Decision:
        """Place *candidates* and tell who must hear.

        Refuse it all if one is lost or more than *missing* bytes of memory are short; None: never.
        """
        state = self._state
        restored = restore(state, candidates, forced=forced, strict=missing is not None)
        settle_memory(state, state.pod_memory)
        if missing is not None:
            shorter = restored.short if state.memory.missing > missing else []
            if lost := [*restored.refused, *restored.flagged, *shorter]:
                raise CapacityError("; ".join(lost))
        return Decision(
            changes=state.announce_all(state.placed, cause),
            warnings=(*warnings, *restored.flagged, *restored.short, *restored.notes),
        )

    def _drifted(self, container_ids: tuple[str, ...]) -> Decision:
        """Tell the runtime again where containers run: what it has of them is not what counts."""
        state = self._state
        placed = [each for each in container_ids if each in state.placed]
        for each in placed:
            del state.sent[each]
        changes = [
            replace(
                change,
                limits=updatable_limits(state.classes.get(change.container_id), state.equipment),
            )
            for change in state.announce_all(placed, "it had drifted")
        ]
        return Decision(changes=tuple(changes))

    def _reconfigured(self, event: Reconfigured) -> Decision:
        """Move everyone to the new layout; settings that leave a container no place are refused."""
        old = self._state
        change = reconfigure(old, event, self._unheard)
        self._state = new = change.state
        decision = self._restored(
            change.candidates,
            [*new.layout.shortages],
            change.cause,
            forced=change.forced,
            missing=None if change.forced else old.memory.missing,
        )
        new.cold = {each: old.cold.get(each) for each in new.cold}
        return with_limits(new, decision, change.cause)
