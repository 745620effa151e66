"""Kept grants: books previous grants of running containers, as far as possible; placement.md §10.

Owns the phases of booking, and the conditions. Containers that lost something are returned to the
caller, which completes them or places them again.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from nri_policy.engine.grant import Grant
from nri_policy.engine.placement.candidate import Candidate, find_unshared, read_grant
from nri_policy.engine.placement.degraded_admission import add_notes, keep
from nri_policy.engine.state.state import State
from nri_policy.foundation.cpuset import EMPTY, CPUSet
from nri_policy.workload.request import Sort


class Restored(Struct):
    """What became of candidates, in words, each with the container's name."""

    # what is wrong with one that stays; in a `strict` change also why one fits nowhere
    flagged: list[str] = field(default_factory=list)
    short: list[str] = field(default_factory=list)  # texts on memory booked beyond the nodes'
    notes: list[str] = field(default_factory=list)  # texts on containers that were placed again
    # pod id -> why it lost its room; the text does not name the pod
    roomless: dict[str, str] = field(default_factory=dict)


def keep_all(
    state: State, candidates: Sequence[Candidate], result: Restored, *, forced: bool
) -> list[Candidate]:
    """Book the grants that containers can keep; return the containers that cannot keep all.

    Four phases ensure that a container with all its CPUs never moves for one that lost some:

    1. The exclusive CPUs of all known grants are set aside.
    2. Known grants are booked: first those without a shared part, then those with both, then the
       sharers. A degraded container keeps what it has before others get more.
    3. Grants are read from the cpusets of containers without a known one. Sharers are recognised
       by the CPUs of a pool that known grants leave.
    4. Mixed grants whose shared part had no room in phase 2 move to a pool above.
    """
    alone = find_unshared(candidate.cpus for candidate in candidates)
    known = sorted((each for each in candidates if _keeps(each)), key=_shares)
    unknown = sorted((each for each in candidates if not each.held), key=_shares_all)
    left = [each for each in candidates if each.held and not _keeps(each)]
    aside = [_set_aside(state, candidate, forced=forced) for candidate in known]
    split = []
    for candidate, own in zip(known, aside, strict=True):
        held = candidate.held
        assert held is not None, "a known container has its old grant"
        state.supply.give(own)
        mems = held.mems & state.layout.memory.nodes if forced else held.mems
        grant = replace(held, exclusive=own, mems=mems)
        if own or not held.exclusive:
            if possible(state, candidate, grant):
                left += _keep(state, candidate, grant, result, forced=forced)
                continue
            if own and held.shares:
                state.supply.take(own)
                split.append((candidate, grant))
                continue
        left.append(candidate)
    for candidate in unknown:
        read = read_grant(state, candidate, alone)
        if (
            read is not None
            and (not forced or _whole(candidate, read))
            and _has_zone(state, candidate, read)
            and possible(state, candidate, read)
        ):
            _keep(state, candidate, read, result, forced=forced)
        else:
            left.append(candidate)
    for candidate, grant in split:
        state.supply.give(grant.exclusive)
        left += _keep_split(state, candidate, grant, result, forced=forced)
    return left


def _keep(
    state: State, candidate: Candidate, grant: Grant, result: Restored, *, forced: bool
) -> list[Candidate]:
    """Book a grant; return its candidate if it is degraded, or not whole in a *forced* change."""
    keep_one(state, candidate, grant, result)
    incomplete = candidate.degraded or (forced and not _whole(candidate, grant))
    return [candidate] if incomplete else []


def keep_one(state: State, candidate: Candidate, grant: Grant, result: Restored) -> None:
    """Book a grant that is held already, and note what memory is short for it."""
    texts = keep(state, candidate, grant)
    result.short += [f"{candidate.container.full_name}: {text}" for text in texts]


def _keep_split(
    state: State, candidate: Candidate, grant: Grant, result: Restored, *, forced: bool
) -> list[Candidate]:
    """Book a mixed grant on the nearest pool above that has room for its shared part.

    If none has, a *forced* change books it without the shared part. Return the candidate unless it
    keeps everything.
    """
    pools, name = state.layout.tree.pools, candidate.container.full_name
    for pool in state.layout.tree.path(pools[grant.pool]):
        wider = replace(grant, pool=pool.id)
        if possible(state, candidate, wider):
            left = _keep(state, candidate, wider, result, forced=forced)
            before = pools[grant.pool].name
            note = f"its shared part moved from {before}, which has no room, to {pool.name}"
            add_notes(state, candidate.container.id, note)
            result.notes.append(f"{name}: {note}")
            return left
    if forced:
        keep_one(state, candidate, replace(grant, shared=0, shares=False), result)
    return [candidate]


def _keeps(candidate: Candidate) -> bool:
    """Return whether a container's grant fits its request, or is the best that there was."""
    return candidate.held is not None and (candidate.same or candidate.degraded is not None)


def _shares_all(candidate: Candidate) -> bool:
    return not candidate.request.exclusive


def _shares(candidate: Candidate) -> int:
    """Return the order: 0 only exclusive CPUs, 1 mixed, 2 no exclusive CPUs or unknown."""
    held = candidate.held
    return 2 if held is None or not held.exclusive else int(held.shares)


def _set_aside(state: State, candidate: Candidate, *, forced: bool) -> CPUSet:
    """Take the exclusive CPUs that a container held, or what is left of them in a *forced* change.

    Return them, or no CPUs if any is missing.
    """
    held = candidate.held
    assert held is not None, "a known container has its old grant"
    free = state.supply.free_isolated_cpus() if held.isolated else state.supply.free_cpus()
    own = held.exclusive & free & state.layout.tree.pools[held.pool].cpus
    if own != held.exclusive and not forced:
        return EMPTY
    state.supply.take(own)
    return own


def _whole(candidate: Candidate, grant: Grant) -> bool:
    """Whether *grant* is all that was asked for, on the memory held: less is what hotplug left."""
    request, held = candidate.request, candidate.held
    cpus = len(grant.exclusive) >= request.exclusive and grant.shared == request.shared
    return cpus and (held is None or grant.mems == held.mems)


def _has_zone(state: State, candidate: Candidate, grant: Grant) -> bool:
    """Return whether a grant that was read has memory nodes, if the runtime should show them."""
    pinned = state.layout.settings.pin_memory and not candidate.request.memory_preserve
    return bool(grant.mems) or not (pinned and state.layout.memory.nodes)


def possible(state: State, candidate: Candidate, grant: Grant) -> bool:
    """Whether *grant* can be booked as it is without breaking an invariant of §2.

    A container on the reserved CPUs may stay although they are overbooked.
    """
    request = candidate.request
    nodes = state.layout.memory.nodes
    if nodes and not grant.mems <= nodes:
        return False
    if grant.sort is Sort.RESERVED:
        left = 1000 * len(state.layout.capacity.reserved) - state.reserved_milli
        there = candidate.cpus == state.cpus(grant, request.hide_hyperthreads)
        return candidate.there or there or grant.shared <= max(0, left)
    if grant.sort is Sort.PRESERVE:
        return True
    cpus = state.layout.tree.pools[grant.pool].cpus
    slack = state.supply.slack(
        grant.pool, grant.shared, grant.shares and not grant.preemptible, False
    )
    if grant.isolated:
        return grant.exclusive <= state.supply.free_isolated_cpus() & cpus and slack.permits(EMPTY)
    return grant.exclusive <= state.supply.free_cpus() & cpus and slack.permits(grant.exclusive)
