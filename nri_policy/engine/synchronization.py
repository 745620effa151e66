"""Synchronisation: finding every running container its place again; spec placement.md §10.

Owns the order, the recognition of a stored grant and the reading of a cpuset as a grant. Nobody is
disturbed for a container that cannot be placed: what is left is what it gets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from operator import attrgetter

from msgspec.structs import asdict, replace

from nri_policy.classes import Equipment
from nri_policy.engine.degraded_admission import add_notes, admit_degraded, keep
from nri_policy.engine.event import StoredGrant, Synchronized
from nri_policy.engine.grant import Grant, Held
from nri_policy.engine.keeping import Restored, keep_all, keep_one, possible
from nri_policy.engine.layout import Layout
from nri_policy.engine.placement import place
from nri_policy.engine.pod_level import settle_memory
from nri_policy.engine.quota import NO_QUOTA, as_granted, quota_of, with_limit
from nri_policy.engine.rebooking import make_room
from nri_policy.engine.recognition import Candidate
from nri_policy.engine.shortage import PlacementError
from nri_policy.engine.state import State
from nri_policy.engine.tenants import evict, is_tenant, restore_tenants
from nri_policy.foundation.cpuset import EMPTY, CPUSet
from nri_policy.foundation.wording import some
from nri_policy.workload.amounts import resized_requirements
from nri_policy.workload.pod import Container, QoS, Resources, shares_of
from nri_policy.workload.request import Request

_PAGE = 1 << 16  # bytes; the largest page of any kernel
NO_LIMIT = 1 << 62  # bytes; what cgroup v1 shows for none

_RequestOf = Callable[[Container], Request]


def recall(
    container: Container, held: Mapping[str, StoredGrant]
) -> tuple[Container, StoredGrant | None]:
    """Return a container that the runtime lists as it was known, and its stored grant, if any."""
    stored = held.get(container.id)
    if stored is None:
        return with_limit(container), None
    if (stored.pod_uid, stored.full_name) != (container.pod.uid, container.full_name):
        return with_limit(container), None
    known = replace(
        container,
        pod=replace(container.pod, amounts=stored.pod_amounts or container.pod.amounts),
        resized=stored.resized,
        created=stored.created or container.created,
        requirements=stored.requirements,
        pod_level=stored.pod_level,
    )
    if stored.resources is not None:
        known = replace(known, resources=stored.resources)
    return update_from_list(known, stored.entitlement.milli, container), stored


def update_from_list(known: Container, milli: int, listed: Container) -> Container:
    """Return a *known* container as the runtime lists it now, which may tell of a missed resize.

    Its CPU shares may be those that we have set for *milli* rather than what it asked for.
    """
    old, new = known.resources, as_granted(listed.resources, known.resources, known.pod.qos)
    merged = replace(
        old,
        cpu_shares=old.cpu_shares if new.cpu_shares == shares_of(milli) else new.cpu_shares,
        cpu_quota=new.cpu_quota,
        cpu_period=new.cpu_period,
        memory_limit=new.memory_limit,
    )
    state = max(known.state, listed.state)
    if not new.cpu_shares or _amounts(merged) == _amounts(old):  # no shares: it does not say
        return replace(known, state=state)
    requirements = resized_requirements(known, merged, heard=False)
    return replace(known, state=state, resources=merged, resized=True, requirements=requirements)


def in_force(
    listed: Container,
    found: Resources,
    known: Resources | None,
    milli: int,
    told: CPUSet | None = None,
) -> Container:
    """Return a container that the runtime lists, with the amounts that it has by three witnesses.

    A runtime may list what a container was created with (CRI-O after its restart); what is *known*
    of it, if anything, may be from before a resize. So that one counts that agrees with what its
    cgroup was *found* to have. Where none does, both are older, and the cgroup counts. Its shares
    may be those that we have set for *milli*. One without a quota shows by its CPUs, those that it
    was *told* of last, that what is known came into force.
    """
    said, qos = listed.resources, listed.pod.qos
    latest = found.cpu_shares or (found.cpu_quota == NO_QUOTA and parse_cpus(found.cpus) == told)
    known = said if known is None else _with_amounts(said, known)
    if has(found, known, milli, qos) and (latest or not has(found, said, milli, qos)):
        return replace(listed, resources=known)
    if has(found, said, milli, qos):
        return listed
    says = found.cpu_shares not in (0, known.cpu_shares, shares_of(milli))
    now = replace(known, cpu_shares=found.cpu_shares) if says else known
    # Kubernetes takes no limit away: where none is found, the kernel does not say, or somebody
    # else has lifted it
    if found.cpu_limit is not None:
        now = replace(now, cpu_quota=found.cpu_quota, cpu_period=found.cpu_period)
        if listed.pod.qos is QoS.GUARANTEED and listed.pod_level is not True:
            now = replace(now, cpu_shares=shares_of(found.cpu_limit))
    if _memory(found):
        now = replace(now, memory_limit=found.memory_limit)
    return replace(listed, resources=now, resized=True)


def _with_amounts(listed: Resources, known: Resources) -> Resources:
    """Return what is *listed*, with the amounts that are *known*."""
    return replace(
        listed,
        cpu_shares=known.cpu_shares,
        cpu_quota=known.cpu_quota,
        cpu_period=known.cpu_period,
        memory_limit=known.memory_limit,
    )


def has(found: Resources, asked: Resources, milli: int, qos: QoS) -> bool:
    """Return whether a cgroup was *found* to have what was *asked* for, as far as it says.

    Its shares may be those that we have set for *milli*, its quota may have been taken away.
    """
    found = as_granted(found, asked, qos)
    same_shares = found.cpu_shares in (0, asked.cpu_shares, shares_of(milli))
    return same_shares and _agrees(found, asked)


def _agrees(found: Resources, said: Resources) -> bool:
    """Return whether a cgroup was *found* to have the limits of CPU and memory that are *said*."""
    return _same_cpu(found, said) and _memory(found) == _memory(said)


def _same_cpu(found: Resources, said: Resources) -> bool:
    """Return whether the limits of CPU are the same, or would be for systemd.

    It rounds up to a hundredth of a CPU whenever it writes a scope's quota again.
    """
    one, other = found.cpu_limit, said.cpu_limit
    return one == other or (other is not None and one == -(-other // 10) * 10)


def _memory(resources: Resources) -> int:
    """Return the limit of memory as exactly as the kernel keeps it, 0 for none."""
    limit = resources.memory_limit
    return 0 if limit >= NO_LIMIT else limit // _PAGE


def _amounts(resources: Resources) -> tuple[int, int | None, int]:
    return resources.cpu_request, resources.cpu_limit, resources.memory_limit


def with_stored_grant(
    candidate: Candidate, stored: StoredGrant, pools: Mapping[str, int], *, there: bool
) -> Candidate:
    """Return *candidate* with its *stored* grant, if *pools* (ids by name) still has its pool.

    *there* is whether the reserved CPUs are those that it was stored with.
    """
    if stored.pool not in pools:
        return candidate
    held = _recalled_grant(stored, pools)
    same = candidate.request.entitlement == stored.entitlement
    return replace(candidate, held=held, same=same, there=there)


def _recalled_grant(stored: StoredGrant, pools: Mapping[str, int]) -> Grant:
    """Return a *stored* grant on the tree of *pools*, which has its pool; KeyError if it has not.

    It has no home any more where the tree has no pool of that name.
    """
    home = None if stored.home is None else pools.get(stored.home)
    return replace(stored.grant, pool=pools[stored.pool], home=home)


def resume(layout: Layout, picture: Synchronized, request_of: _RequestOf) -> State:
    """Return the state that *picture* was taken of: all that was held then, in the same order.

    ValueError or KeyError where it is no picture of a state on *layout*.
    """
    state = State(layout, picture.equipment or Equipment())
    pools = {pool.name: pool.id for pool in layout.tree.pools}
    for listed in picture.containers:
        stored = picture.held[listed.id]
        asked = stored.resources or listed.resources
        container = replace(listed, resized=stored.resized, resources=asked)
        steering = request_of(container).steering
        candidate = Candidate(
            container=container,
            request=Request(**asdict(stored.entitlement), steering=steering),
            cpus=parse_cpus(listed.resources.cpus),
            mems=parse_cpus(listed.resources.mems),
        )
        grant = _recalled_grant(stored, pools)
        keep(state, container, candidate.request, grant)
        if container.stands_for_pod:  # the runtime knows nothing of rooms
            continue
        state.sent[container.id] = candidate.cpus, candidate.mems
        pinned = layout.settings.pin_cpu
        quota = quota_of(container, candidate.request, grant, None, pinned=pinned)
        if quota is not None:
            state.quotas[container.id] = quota
        if stored.classes is not None:
            state.classes[container.id] = stored.classes
        if container.id in state.cold:
            state.cold[container.id] = stored.deadline
    state.latest = max(state.latest, picture.latest)
    settle_memory(state, state.pod_memory)
    return state


def restore(
    state: State,
    candidates: Sequence[Candidate],
    *,
    forced: bool = False,
    strict: bool = False,
) -> Restored:
    """Place all *candidates*, first those that can stay as they are.

    They run already: who fits nowhere gets what the others leave, unless the change is *strict*,
    and can be refused for it. In a *forced* one CPUs are gone: who has lost some goes on with what
    is left of its own. Tenants come after their rooms, or as others do if these have no place.
    """
    result = Restored()
    rooms = state.rooms.keys() | {
        each.container.id for each in candidates if each.container.stands_for_pod
    }
    tenants = [each for each in candidates if is_tenant(each, rooms)]
    others = [evict(each) for each in candidates if not is_tenant(each, rooms)]
    _restore(state, others, result, forced=forced, strict=strict)
    if tenants:
        orphans = [each for each in tenants if each.container.pod.id not in state.rooms]
        _restore(state, [*map(evict, orphans)], result, forced=forced, strict=strict)
        staying = (each for each in tenants if each.container.pod.id in state.rooms)
        restore_tenants(state, sorted(staying, key=_order), result, strict=strict)
    make_room(state, "other containers keep the last CPUs there")
    return result


def _restore(
    state: State,
    candidates: Sequence[Candidate],
    result: Restored,
    *,
    forced: bool,
    strict: bool,
) -> None:
    """Place *candidates*, none of which is a tenant, and note in *result* what became of them."""
    homeless = []
    left = keep_all(state, candidates, result, forced=forced)
    for candidate in sorted(left, key=_order):
        kept = state.holder(candidate.container.id) is not None
        if kept and not candidate.degraded:  # with what is left of its own
            _complete(state, candidate, result)
            continue
        name = candidate.container.full_name
        before, held = state.snapshot(), candidate.held
        if kept:
            state.drop(candidate.container.id, settle=False)
        try:
            known = None if held is None else Held(grant=held)
            choice = place(state, candidate.container, candidate.request, known, last=False)
            result.notes += [f"{name}: {note}" for note in choice.findings.notes]
            _note_move(state, candidate)
        except PlacementError as refusal:
            state.restore(before)
            if kept:
                result.notes.append(f"{name}: {refusal}; it keeps a part of what it had")
            elif held is not None and not candidate.same and possible(state, candidate, held):
                keep_one(state, candidate, held, result)
                result.flagged.append(f"{name}: {refusal}; it keeps what it had")
            elif strict:
                result.refused.append(f"{name}: {refusal}")
            elif candidate.container.stands_for_pod:
                result.flagged.append(f"{name}: {refusal}; its containers have no room any more")
            else:
                homeless.append((candidate, refusal))
    for candidate, why in homeless:
        texts = admit_degraded(state, candidate.container, candidate.request, why)
        result.flagged += [f"{candidate.container.full_name}: {text}" for text in texts]
        _note_move(state, candidate)
    _warm(state, left)


def _complete(state: State, candidate: Candidate, result: Restored) -> None:
    """Add to what is left of a container what it lacks, beside it or else in pools above.

    Its own CPUs stay its own. Who lost nothing now, but lacks something since an earlier change,
    goes to no pool outside its own.
    """
    container, held = candidate.container, candidate.held
    assert held is not None, "something is left of it"
    tree, whole = state.layout.tree, state.snapshot()
    now = state.holder(container.id)
    assert now is not None, "something is left of it"
    rest = now.grant
    lost = rest.exclusive != held.exclusive or rest.shared != held.shared
    refused = ""
    for pool in tree.path(tree.pools[held.pool]) if lost else (tree.pools[held.pool],):
        state.drop(container.id, settle=False)
        stay = Held(grant=replace(rest, pool=pool.id), stays=True)
        try:
            choice = place(state, container, candidate.request, stay, last=False)
        except PlacementError as refusal:
            state.restore(whole)
            refused = refused or str(refusal)
            continue
        if not rest.exclusive <= choice.grant.exclusive:  # ordinary CPUs for isolated ones
            state.restore(whole)
            refused = refused or "too few isolated CPUs are left"
            continue
        result.notes += [f"{container.full_name}: {note}" for note in choice.findings.notes]
        _note_move(state, candidate)
        return
    result.flagged.append(f"{container.full_name}: {refused}; it has fewer now")


def _note_move(state: State, candidate: Candidate) -> None:
    """Let the explanation of a running container that was placed anew say why it did not stay."""
    placed = state.holder(candidate.container.id)
    assert placed is not None, "it has just been placed"
    if (
        not candidate.cpus
        or state.cpus(placed.grant, placed.request.hide_hyperthreads) == candidate.cpus
    ):
        return
    why = "those are no longer available"
    if candidate.held is None:
        why = (
            "there is no record of its placement, and this policy would not place a container on"
            " exactly those"
        )
    elif not candidate.same:
        why = "its request or the settings give it something else now"
    add_notes(state, candidate.container.id, f"it ran on CPUs {candidate.cpus} before: {why}")


def _warm(state: State, candidates: Iterable[Candidate]) -> None:
    """Give dram to those of *candidates* that were placed anew long after their start."""
    for candidate in candidates:
        container_id, mems = candidate.container.id, candidate.mems
        if container_id in state.cold and mems and not state.layout.memory.is_cold(mems):
            state.warm(container_id)


def _order(candidate: Candidate) -> tuple[int, int, int]:
    """Guaranteed exclusive by size, Guaranteed shared, Burstable, BestEffort, each oldest first."""
    request = candidate.request
    if request.exclusive:
        return 0, -request.exclusive, candidate.container.created
    qos = (QoS.GUARANTEED, QoS.BURSTABLE, QoS.BEST_EFFORT).index(request.qos)
    return 1 + qos, 0, candidate.container.created


def parse_cpus(text: str) -> CPUSet:
    """Return the set that the runtime's text names, empty where it names none."""
    try:
        return CPUSet.parse(text)
    except ValueError:
        return EMPTY


def deduplicate(containers: Iterable[Container], known: AbstractSet[str]) -> Iterable[Container]:
    """Return the containers that exist; of two of one id or name the running, newest one (§10).

    Where the runtime does not say which is newer, the one whose id is *known* is: its creation came
    last.
    """

    def rank(container: Container) -> tuple[int, int, bool]:
        return container.state, container.created, container.id in known

    for key in (attrgetter("id"), attrgetter("full_name")):
        kept: dict[str, Container] = {}
        for container in containers:
            other = kept.get(key(container))
            if other is None or rank(other) < rank(container):
                kept[key(container)] = container
        containers = kept.values()
    return containers


def takeover_cause(left: list[str], came: list[str]) -> str:
    """Return why containers change when the daemon comes back, and to which others."""
    cause = "the daemon took over the running containers"
    for names, did in (left, "stopped"), (came, "came"):
        cause += f"; {some(names)} {did} meanwhile" if names else ""
    return cause
