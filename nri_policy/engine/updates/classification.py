"""Classification: the classes of containers, and the updates for them.

Owns when classes are computed: a scheduling class once, at the creation, because it cannot be
changed later; I/O limits again when disks or settings change.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from nri_policy.classes import (
    Classes,
    Equipment,
    Origin,
    RDTGroup,
    Scheduling,
    limits_to_write,
    select_blockio,
    select_classes,
    select_crio,
    select_rdt,
    select_scheduling,
)
from nri_policy.engine.event import Created, StoredGrant
from nri_policy.engine.grant import Decision, Placement
from nri_policy.engine.state.state import State
from nri_policy.tuning.interrupts import find_denied
from nri_policy.workload.annotations import AnnotationError, Scope
from nri_policy.workload.pod import Container
from nri_policy.workload.request import Request

_CREATED_EARLIER = "it was created before this policy could set it"


def check_tuning(state: State, container: Container, request: Request) -> None:
    """Raise AnnotationError for what the tuner cannot set for a container.

    That is: interrupts without exclusive CPUs for them, interrupts that the settings do not let a
    container choose, or a bad value of CRI-O's annotations.
    """
    if request.exclusive:
        select_crio(state.layout.settings, state.equipment, container, request)
    choice, text = request.steering.interrupts, ""
    if choice is None:
        return
    if request.exclusive:
        allowed = state.layout.settings.controllable_interrupts
        why = find_denied(choice, dict(state.equipment.interrupts), allowed)
        text = f"possible here: {why}" if why else ""
    elif choice.scope is Scope.CONTAINER:
        why = request.steering.because or "it asks for no whole CPU"
        text = f"possible for it: only exclusive CPUs claim or mask interrupts ({why})"
    if text:
        raise AnnotationError(choice.key, container.pod.annotations[choice.key], text)


def classes_of(
    state: State, container: Container, request: Request, event: Created
) -> Classes | None:
    """Return the classes of a container under creation; None if it has none.

    Raises AnnotationError if it must be refused.
    """
    if event.unheard:
        return find_classes(state, container, request)
    try:
        return select_classes(state.layout.settings, state.equipment, container, request)
    except AnnotationError:
        if not event.admitted:
            raise
        return _classes_without_errors(state, container, request)


def reclassify(
    state: State, container: Container, request: Request, stored: StoredGrant | None
) -> None:
    """Set the classes of a running container: as stored, or as for one created without us."""
    classes = None
    if stored is not None:
        classes = stored.classes
    elif (missed := find_classes(state, container, request)) is not None:
        classes = replace(missed, blockio=None)  # I/O limits are sent later, as new limits
    if classes is not None:
        state.classes[container.id] = classes


def find_classes(state: State, container: Container, request: Request) -> Classes | None:
    """Return the classes of a container that was created without this policy.

    Only I/O limits can still be set.
    """
    settings, equipment = state.layout.settings, state.equipment
    try:
        classes = select_classes(settings, equipment, container, request)
    except AnnotationError:
        return _classes_without_errors(state, container, request)
    if classes is None:
        return None
    scheduling, rdt = classes.scheduling, classes.rdt
    if scheduling is not None:
        why = f"scheduling class {scheduling.name}: {_CREATED_EARLIER}"
        scheduling = replace(scheduling, scheduler=None, io_priority=None, lacking=(why,))
    if rdt is not None and rdt.group is not None:
        rdt = replace(rdt, group=None, lacking=(f"RDT class {rdt.name}: {_CREATED_EARLIER}",))
    return replace(classes, scheduling=scheduling, rdt=rdt)


def _classes_without_errors(state: State, container: Container, request: Request) -> Classes:
    """Return the classes of a container that it is too late to refuse; errors become notes."""
    about = (state.layout.settings, state.equipment, container, request)
    asked, asked_rdt = request.steering.scheduling_class, request.steering.rdt_class
    try:
        scheduling = select_scheduling(*about)
    except AnnotationError as error:
        assert asked is not None, "defaults are not refused"
        why = (str(error),)
        scheduling = Scheduling(name=asked.name, origin=Origin.ANNOTATION, lacking=why)
    try:
        rdt = select_rdt(*about)
    except AnnotationError as error:
        assert asked_rdt is not None, "defaults are not refused"
        rdt = RDTGroup(name=asked_rdt.name, origin=Origin.ANNOTATION, lacking=(str(error),))
    return Classes(scheduling=scheduling, blockio=select_blockio(*about), rdt=rdt)


def add_classes(state: State, decision: Decision, classes: Classes) -> Decision:
    """Return the decision about a container under creation with its classes, which it is in now."""
    container_id = decision.container_id
    assert container_id is not None
    assert decision.placement is not None, "the decision about a new container has its placement"
    state.classes[container_id] = classes
    return replace(
        decision,
        classes=classes,
        placement=replace(decision.placement, limits=classes.limits),
        warnings=(*decision.warnings, *classes.lacking, *classes.notes),
    )


def update_limits(state: State, cause: str, *, everyone: bool = False) -> dict[str, Placement]:
    """Return the updates of containers whose I/O limits changed.

    Only containers in an I/O class are checked; *everyone* after new settings, which may add some.
    """
    changes = {}
    settings, equipment = state.layout.settings, state.equipment
    for container_id in [*(state.placed if everyone else state.classes)]:
        before = state.classes.get(container_id) or Classes()
        if before.blockio is None and not everyone:
            continue
        placed = state.placed[container_id]
        now = select_blockio(settings, equipment, placed.container, placed.request)
        if now is not None and equipment.no_io_updates and now.limits != before.limits:
            why = f"block I/O class {now.name}: {equipment.no_io_updates}"
            now = replace(now, limits=before.limits, lacking=(why,))
        if now == before.blockio:
            continue
        classes = state.classes[container_id] = replace(before, blockio=now)
        limits = limits_to_write(before.limits, classes.limits, equipment)
        if limits and not equipment.no_io_updates:
            cpus, mems = state.sent[container_id]
            changes[container_id] = Placement(
                cpus=cpus, mems=mems, shares=None, cause=cause, limits=limits
            )
    return changes


def updatable_limits(classes: Classes | None, equipment: Equipment) -> Mapping[str, str]:
    """Return the limits of a container's I/O, if the runtime can change them."""
    return {} if classes is None or equipment.no_io_updates else classes.limits


def with_limits(state: State, decision: Decision, cause: str) -> Decision:
    """Return a decision about all containers with their new I/O limits."""
    changes = {**decision.changes}
    for each, new in update_limits(state, cause, everyone=True).items():
        changes[each] = replace(changes.get(each, new), limits=new.limits)
    return replace(decision, changes=changes)
