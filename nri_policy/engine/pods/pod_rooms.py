"""Pod rooms: cuts the CPUs of a pod as a whole, and resizes them; spec placement.md §3.3.

Owns when a pod gets its room, and which of its CPUs a resize keeps. `room_shares` divides the room
among the containers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from msgspec.structs import replace

from nri_policy.engine.choice.exclusive_cpus import take
from nri_policy.engine.choice.shortage import Lack, PlacementError
from nri_policy.engine.event import StoredGrant
from nri_policy.engine.grant import HeldGrant
from nri_policy.engine.placement.candidate import Candidate, with_stored_grant
from nri_policy.engine.placement.placement import place
from nri_policy.engine.placement.room_shares import settle, slices_of, tenants
from nri_policy.engine.state.layout import Layout
from nri_policy.engine.state.state import Placed, State
from nri_policy.foundation.cpuset import EMPTY, CPUSet
from nri_policy.foundation.wording import counted
from nri_policy.workload.pod import Container, ContainerState, Pod, Resources, overlay
from nri_policy.workload.request import Request, Sort, Steering
from nri_policy.workload.request_reader import room_milli


def stand_in(pod: Pod, *, created: int = 0) -> Container:
    """Return what stands for *pod*, and holds its room."""
    return Container(
        id=pod.id,
        pod=pod,
        name="",
        state=ContainerState.RUNNING,
        created=created,
        labels={},
        resources=pod.amounts or Resources(),
        hints=pod.hints,
        stands_for_pod=True,
    )


def open_room(state: State, first: Container, request: Request) -> tuple[str, ...]:
    """Cut the room of a pod for its *first* tenant, if it should have one; return warnings.

    A pod with containers on other CPUs gets none. Raises PlacementError if there is no space.
    """
    pod = first.pod
    if not request.steering.room or pod.id in state.rooms or first.claims:
        return ()
    if Sort.NORMAL in (state.placed[each].grant.sort for each in state.of_pod(pod.id)):
        return ()
    if first.id == pod.id:
        return ("its pod gets no room: its id is the pod's",)
    room = stand_in(pod, created=first.created)
    hints = (*room.hints, *(each for each in first.hints if each not in room.hints))
    room = replace(room, hints=hints)
    asked, why_not = state.layout.requests.read(room)
    if why_not:
        return why_not
    # the room is where the first tenant's huge pages are; tenants book these themselves
    pages = () if request.memory_preserve else request.hugepages
    asked = replace(asked, steering=_steer_like(asked, request), hugepages=pages)
    try:
        place(state, room, asked)
    except PlacementError as refusal:
        refusal.detail = f"its pod's room of {counted(asked.exclusive, 'CPU')}: {refusal}"
        if refusal.explanation is not None:
            notes = (*refusal.explanation.notes[:-1], refusal.detail)
            refusal.explanation = replace(
                refusal.explanation, container=first.full_name, notes=notes
            )
        raise
    if pages:
        state.release_pages(pod.id)
    return ()


def _steer_like(asked: Request, request: Request) -> Steering:
    """Return the steering of a room with the affinities of *request*."""
    return replace(asked.steering, affinities=request.steering.affinities)


def living_pods(containers: Iterable[Container], others: Iterable[Pod]) -> dict[str, Pod]:
    """Return the pods of *containers*, and *others* without a container now, by id.

    Of two of one name, as after a crash of the runtime, the one with containers is the pod.
    """
    pods = {each.pod.id: each.pod for each in containers}
    names = {(each.namespace, each.name) for each in pods.values()}
    return pods | {each.id: each for each in others if (each.namespace, each.name) not in names}


def drop_rooms(state: State, living: Collection[str]) -> None:
    """Take the rooms of all but the *living* pods back."""
    for pod_id in [each for each in state.rooms if each not in living]:
        state.drop(pod_id)


def recall_rooms(
    state: State,
    pods: Iterable[Pod],
    containers: Sequence[Candidate],
    stored: Mapping[str, StoredGrant],
) -> tuple[list[Candidate], dict[str, str]]:
    """Return the rooms that running *pods* had by what is *stored*, or should have got.

    The latter if all *containers* that would be its tenants are new to us: then the pod's room is
    where they run, if that can be, or is cut for them now. Also return, by container id, why a pod
    cannot have a room.
    """
    found, no_room = list[Candidate](), dict[str, str]()
    ids = {pool.name: pool.id for pool in state.layout.tree.pools}
    tenants: dict[str, list[Candidate]] = {}
    for each in containers:
        if each.request.sort is Sort.NORMAL:
            tenants.setdefault(each.container.pod.id, []).append(each)
    for pod in pods:
        if pod.id in state.rooms:
            continue
        own, known = tenants.get(pod.id, []), stored.get(pod.id)
        if known is not None and known.of_room and known.pod_uid == pod.uid:
            found.append(_recall(state.layout, pod, known, ids))
        elif own and own[0].request.steering.room and all(each.held is None for each in own):
            oldest = min(each.container.created for each in own)
            room = stand_in(pod, created=oldest)
            request, why_not = state.layout.requests.read(room)
            if why_not:
                no_room |= {each.container.id: why_not[0] for each in own}
                continue
            cpus = CPUSet.union(each.cpus for each in own)
            mems = CPUSet.union(each.mems for each in own)
            found.append(Candidate(container=room, request=request, cpus=cpus, mems=mems))
    return found, no_room


def _recall(layout: Layout, pod: Pod, known: StoredGrant, ids: Mapping[str, int]) -> Candidate:
    """Return the room of *pod* with the grant that is stored of it."""
    asked = known.resources or Resources()
    room = replace(
        stand_in(replace(pod, amounts=asked), created=known.created), resized=known.resized
    )
    request, _ = layout.requests.read(room)
    candidate = Candidate(container=room, request=request, cpus=known.grant.exclusive, mems=EMPTY)
    return with_stored_grant(candidate, known, ids, there=True)


def resize_room(state: State, room: Placed, resources: Resources) -> None:
    """Give a room the CPUs and memory of its pod's new amounts (§3.3.4).

    It grows like a container (§4): it keeps its CPUs as far as possible, and slices outside of it
    move into it. It shrinks by whole CPUs outside of all slices. Raises PlacementError if that is
    impossible, and may leave the state half changed.
    """
    pod_id = room.container.id
    asked = overlay(room.container.resources, resources)
    pod = replace(room.container.pod, amounts=asked)
    known = replace(room.container, pod=pod, resources=asked, resized=True)
    request, why_not = state.layout.requests.read(known)
    oldest = next(tenants(state, pod_id), room)  # also after a restart, which knows no other
    request = replace(request, steering=_steer_like(request, oldest.request))
    had, has = room_milli(room.container), room_milli(known)
    if why_not and (has > had or not has):
        raise _refusal(state, room, request, f"its room cannot be resized: {', '.join(why_not)}")
    kept, slices = room.grant.exclusive, slices_of(state, pod_id)
    if request.exclusive < len(kept):
        kept = _shrink(state, room, request, slices)
    grant = room.grant
    state.drop(pod_id, settle=False)
    held = HeldGrant(grant=replace(grant, exclusive=kept), booked=room.request.memory)
    try:
        place(state, known, request, held)
    except PlacementError as refusal:
        raise _refusal(state, room, request, _why_not(room, request, refusal)) from refusal
    resized = state.rooms[pod_id]
    state.enter(replace(resized, grant=replace(resized.grant, ended=grant.ended)))
    _move_slices(state, pod_id)
    settle(state, pod_id)


def _move_slices(state: State, pod_id: str) -> None:
    """Place tenants again whose slice, or pool, is no longer that of their pod's room."""
    room = state.rooms[pod_id].grant
    for each in [*tenants(state, pod_id)]:
        container_id, resizing = each.container.id, state.resizing.get(each.container.id)
        own = each.grant.exclusive
        if not own or (own <= room.exclusive and each.grant.pool == room.pool):
            continue
        state.drop(container_id, settle=False)
        place(state, each.container, each.request, HeldGrant(grant=each.grant))
        state.moved[container_id] = "its pod's room moved"
        if resizing is not None:
            state.await_resize(container_id, resizing)


def grow_room(state: State, pod_id: str, whole: Resources | None) -> None:
    """Grow the room of a pod, if it has one, to *whole*, never shrink it; as `resize_room`."""
    room = state.rooms.get(pod_id)
    if room is None or whole is None:
        return
    known = room.container.resources
    larger = replace(room.container, resources=whole)
    if room_milli(larger) <= room_milli(room.container):
        whole = replace(known, memory_limit=whole.memory_limit)
    if whole.memory_limit < known.memory_limit:
        whole = replace(whole, memory_limit=known.memory_limit)
    if whole != known:
        resize_room(state, room, whole)


def fit_room(state: State, pod_id: str, whole: Resources | None) -> None:
    """Leave the room of a pod, if it has one, no more than *whole*, as far as slices let it."""
    room = state.rooms.get(pod_id)
    if room is None or whole is None or room.container.resources == whole:
        return
    before = state.snapshot()
    try:
        resize_room(state, room, whole)
    except PlacementError:  # a larger room than necessary blocks no container
        state.restore(before)


def _why_not(room: Placed, request: Request, refusal: PlacementError) -> str:
    """Return why a room cannot have what is requested now, in the words of a pod's owner."""
    has = counted(len(room.grant.exclusive), "CPU")
    return f"its pod's room of {has} cannot be resized to {request.exclusive}: {refusal}"


def _refusal(state: State, room: Placed, request: Request, text: str) -> PlacementError:
    """Return the error that a room cannot have what is requested now."""
    grant = room.grant
    pool, available = state.layout.tree.pools[grant.pool].name, 1000 * len(grant.exclusive)
    return PlacementError(Lack.CPU, request, pool=pool, available=available, detail=text)


def _shrink(state: State, room: Placed, request: Request, slices: CPUSet) -> CPUSet:
    """Return the CPUs that a shrinking room keeps: those of its *slices*, and others."""
    cpus, layout = room.grant.exclusive, state.layout
    if request.exclusive < len(slices):
        text = (
            f"its room cannot shrink to {counted(request.exclusive, 'CPU')}: its containers have"
            f" {len(slices)} exclusive CPUs of it"
        )
        raise _refusal(state, room, request, text)
    pool = layout.tree.pools[room.grant.pool]
    kept = take(layout, request, pool, cpus, tuple(filter(None, (slices,))), None)
    if not slices <= kept:
        text = f"its room cannot shrink to {counted(request.exclusive, 'CPU')} in whole cores"
        raise _refusal(state, room, request, text)
    return kept
