"""Playing what happens in a cluster: groups come and go, nodes fail and recover, time passes.

Groups wait in the service's own queue, with hosts set aside as on a live cluster. A group may end
some time after it was placed; time goes on from event to event, none of it is waited for. So groups
that are preempted, or end with a failed node, leave at once: owners make their pods again, which
wait.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable
from math import inf

from msgspec.structs import replace

from nri_policy.cluster.engine.engine import Engine
from nri_policy.cluster.engine.preemption import find_victims
from nri_policy.cluster.groups.record import QueuePlace, rank_of
from nri_policy.cluster.groups.table import GroupTable
from nri_policy.cluster.groups.waiting import WaitingGroups, topology_name
from nri_policy.cluster.objects.assignment import (
    MAX_COUNT,
    Assignment,
    DomainAssignment,
    check_count,
)
from nri_policy.cluster.objects.document import Amounts, DocumentError, join
from nri_policy.cluster.objects.metadata import Key
from nri_policy.cluster.objects.priority import PriorityClasses
from nri_policy.cluster.planning.group_answers import notes_of
from nri_policy.cluster.planning.preview import count_by_domain, find_group
from nri_policy.cluster.requests.group import (
    GroupStatus,
    PlacementGroup,
    State,
    hosts_of,
    name_by_kind,
    places_by_pod_set,
)
from nri_policy.cluster.requests.request import units_of
from nri_policy.cluster.simulation.figures import Figures, Recorder, amounts_of
from nri_policy.cluster.simulation.played import (
    GroupState,
    Played,
    describe_change,
    find_differences,
)
from nri_policy.cluster.simulation.steps import SimulationStep
from nri_policy.cluster.simulation.synthetic_jobs import SyntheticJob
from nri_policy.cluster.view import Cluster
from nri_policy.cluster.workloads.workload import (
    add_priority_classes,
    describe_left_out_kinds,
    read_groups,
)
from nri_policy.foundation.units import parse_duration
from nri_policy.foundation.wording import counted, did_you_mean, quoted

_FIXED = 30.0  # seconds until a node counts as failed under Fixed30s
_GROUP = "group"  # the kind of one that names none


class Simulation:
    """A cluster in which steps are played."""

    def __init__(self, engine: Engine, cluster: Cluster, classes: PriorityClasses) -> None:
        """Continue from the state of *engine*, which reads *cluster*.

        Priorities follow *classes*; steps may add classes.
        """
        self._classes = classes
        self._engine = engine
        self._cluster = cluster
        cluster.follow(engine.state)
        self._waiting = WaitingGroups(engine, GroupTable())
        self._now = 0.0
        self._failed: dict[str, float] = {}  # node -> when
        self._gone: set[str] | None = None  # failed nodes at the last check of groups
        self._look = inf  # when to compute reserved hosts next
        self._groups: dict[Key, PlacementGroup] = {  # by age
            key: each
            for key, each in engine.state.groups.items()
            if each.status.state != "Finished"
        }
        self._runs: dict[Key, float] = {}  # for how many seconds those run that end by themselves
        self._events: list[tuple[float, int, Key | None]] = []  # when, and the group that ends then
        self._ending: dict[Key, int] = {}  # the number of the event
        self._number = 0
        self._most = 0.0  # the largest share of a resource that was in use
        self._peak: tuple[float, list[PlacementGroup]] | None = None  # when, and the groups then
        self._changed: dict[Key, PlacementGroup | None] = {}  # as before the step; None: new
        self._evicted: dict[Key, str] = {}  # in the step, and why
        self._ended: dict[Key, State] = {}  # in the step, and what they were
        self._over: set[Key] = set()  # groups that have ended, at some time
        topology = engine.state.settings.topologies[0]
        self._recorder = Recorder(engine.state.nodes.values(), topology.levels)
        for key, group in self._groups.items():
            if group.status.assignments:
                self._recorder.use(amounts_of(group, self._kinds(group), 1))
            else:
                self._wait(key)

    def play(self, step: SimulationStep, *, every: bool = False) -> Played:
        """Play a step; raises DocumentError for one that names what there is not.

        What is played has the groups that changed in the step, or *every* one.
        """
        if step.at is not None:
            self._advance(max(self._now, parse_duration(step.at)))
        runs = None if step.runs is None else parse_duration(step.runs)
        notes = self._apply(step, runs)
        for name in step.delete or ():
            self._drop(self._key(name))
        for name, counts in (step.scale or {}).items():
            self._scale(self._key(name), counts, join("scale", name))
        for name in step.fail or ():
            self._set_ready(name, ready=False)
            self._failed.setdefault(name, self._now)
            self._look_at(self._now + _FIXED)
        for name in step.recover or ():
            self._set_ready(name, ready=True)
            self._failed.pop(name, None)
        if step.advance is not None:
            self._advance(self._now + parse_duration(step.advance))
        self._settle()
        problems: list[str] = []
        for name, expected in (step.expect or {}).items():
            problems += find_differences(expected, self._state(self._groups[self._key(name)]))
        shown = self._groups if every else dict.fromkeys(self._changed)
        states = [
            replace(self._state(self._groups[key]), change=self._change(key))
            for key in shown
            if key in self._groups
        ]
        states += [
            GroupState("/".join(key), "Ended", "", {}, change=f"was {before}")
            for key, before in self._ended.items()
            if key not in self._groups
        ]
        self._changed.clear()
        self._evicted.clear()
        self._ended.clear()
        return Played(step=step, groups=states, problems=problems, at=self._now, notes=notes)

    def _apply(self, step: SimulationStep, runs: float | None) -> list[str]:
        """Take the groups that a step applies; return what people should know of them."""
        text = describe_left_out_kinds(step.apply or ())
        notes = [f"left out, as they are not placed: {text}"] if text else []
        add_priority_classes(step.apply or (), self._classes)
        for found in read_groups(step.apply or (), self._classes):
            group, other = found, self._groups.get(found.key)
            if other is not None and other.kind not in ("", group.kind):
                group = name_by_kind(group)
                notes.append(
                    f"the {group.kind} {found.full_name} is called {group.full_name} here:"
                    f" its name is that of a {other.kind}, too"
                )
            notes += notes_of(self._engine.state, group)
            if group.singly:
                notes.append(f"{group.full_name}: a simulation places its pods together")
            self.submit(group, runs, step.kind or _GROUP)
        return notes

    def submit(self, group: PlacementGroup, seconds: float | None, kind: str) -> None:
        """Take a group that comes now, and ends so many *seconds* after it was placed."""
        key = group.key
        self._drop(key)
        if seconds is not None:
            group = _ending(group)
        self._number += 1
        # younger than all that came before, and than all that had a time before the simulation
        self._groups[key] = replace(group, created=f"~{self._number:012}")
        self._recorder.came("/".join(key), kind, self._now)
        if seconds is not None:
            self._runs[key] = seconds
        self._wait(key)

    def run(self, jobs: Iterable[SyntheticJob]) -> None:
        """Have jobs come, by time, until the last one has ended or waits for ever."""
        for job in jobs:
            self._advance(job.at)
            self.submit(job.group, job.seconds, job.kind)
            self._settle()
            self._ended.clear()  # there are no steps
        self.end()

    def end(self) -> None:
        """Play all events that are left."""
        while self._events:
            self._advance(self._events[0][0])

    def show_peak(self) -> float | None:
        """Have the engine as it was when most of a resource was in use, and play no more.

        Return when that was; None if nothing was ever in use, which changes nothing.
        """
        if self._peak is None:
            return None
        at, groups = self._peak
        for key in [*self._engine.state.groups]:
            self._engine.state.remove_group(*key)
        for group in groups:
            self._engine.state.set_group(group)
        return at

    def figures(self) -> Figures:
        """Return what came of all groups until now."""
        examples = self._recorder.examples()
        for key in self._waiting.queue:
            if (name := "/".join(key)) in examples:
                self._recorder.explain(name, self._message(self._groups[key]))
        return self._recorder.figures(self._now)

    def _wait(self, key: Key) -> None:
        self._queue_up(key)
        self._changed.setdefault(key, None)

    def _queue_up(self, key: Key) -> None:
        group = self._groups[key]
        self._number += 1
        runs = bool(group.status.assignments)
        rank = rank_of(group.priority, self._now, f"{self._number:012}", runs=runs)
        if runs:
            self._look_at(self._now + self._engine.state.settings.groups.timeout)
        self._waiting.queue.put(key, QueuePlace(rank, topology_name(group)))

    def _look_at(self, at: float, ending: Key | None = None) -> None:
        """Have something happen then; a group may be *ending*."""
        self._number += 1
        if ending is not None:
            self._ending[ending] = self._number
        heapq.heappush(self._events, (at, self._number, ending))

    def _advance(self, until: float) -> None:
        """Play the events that are due until then."""
        while self._events and self._events[0][0] <= until:
            self._now = self._events[0][0]
            while self._events and self._events[0][0] <= self._now:
                _, number, key = heapq.heappop(self._events)
                if key is not None and self._ending.get(key) == number:
                    self._drop(key)
            self._settle()
        self._now = until

    def _settle(self) -> None:
        """Place anew what failed, and try the groups that wait."""
        if self._now >= self._look:
            self._look = inf
        self._note_failures()
        self._try_waiting()
        self._recorder.note(self._now, len(self._waiting.queue))
        share = self._recorder.share()
        if share > self._most:
            self._most = share
            self._peak = (self._now, [*self._engine.state.groups.values()])

    def _drop(self, key: Key) -> None:
        group = self._groups.pop(key, None)
        self._runs.pop(key, None)
        self._ending.pop(key, None)
        self._changed.pop(key, None)
        self._waiting.queue.remove(key)
        if group is not None:
            self._ended[key] = group.status.state
            self._over.add(key)
        if group is not None and group.status.assignments:
            self._recorder.use(amounts_of(group, self._kinds(group), -1))
            self._engine.state.remove_group(*key)
            self._waiting.queue.note_change()

    def _scale(self, key: Key, counts: int | dict[str, int], path: str) -> None:
        """Have a group want so many pods: those it has more wait, the last ones end."""
        group = self._groups[key]
        names = [each.name for each in group.pod_sets]
        if isinstance(counts, int):
            if len(names) > 1:
                raise DocumentError(path, f"names none of the pod sets {', '.join(names)}")
            counts = {names[0]: counts}
        for name, count in counts.items():
            if name not in names:
                raise DocumentError(path, f"no pod set {quoted(name)}{did_you_mean(name, names)}")
            check_count(count, 0, join(path, name))
        pod_sets = tuple(
            replace(each, count=counts.get(each.name, each.count)) for each in group.pod_sets
        )
        scaled = replace(group, pod_sets=pod_sets)
        units_of(scaled)  # refuses pods that fill no whole slices
        waits = key in self._waiting.queue
        self._groups[key] = scaled
        if not any(each.count for each in pod_sets):
            self._set(key, GroupStatus(state="Placed", message="it has no pods"))
            self._waiting.queue.remove(key)
            return
        if not group.status.assignments:
            if waits:
                self._waiting.queue.note_edit(key)
            else:
                self._set(key, GroupStatus())
                self._queue_up(key)
            return
        fewer = [_first(each, counts.get(each.pod_set)) for each in group.status.assignments]
        self._set(key, replace(group.status, assignments=fewer, message=""))
        self._waiting.queue.remove(key)
        if self._lacks_pods(key):
            self._queue_up(key)
        else:
            self._waiting.queue.note_change()

    def _missing_pods(self, key: Key) -> Counter[str]:
        """Return how many pods of a group that has places have none, by pod set."""
        group = self._groups[key]
        if not group.status.assignments:
            return Counter()
        wanted = Counter({each.name: each.count for each in group.pod_sets})
        return wanted - places_by_pod_set(group)

    def _lacks_pods(self, key: Key) -> bool:
        """Whether a placed group has pods without a place, or on failed nodes."""
        return bool(self._groups[key].status.unhealthy_nodes or self._missing_pods(key))

    def _key(self, name: str) -> Key:
        try:
            return find_group(self._groups, name).key
        except DocumentError:
            namespace, _, own = name.rpartition("/")
            if (namespace or "default", own) in self._over:
                raise DocumentError("", f"the group {quoted(name)} has ended") from None
            raise

    def _set_ready(self, name: str, *, ready: bool) -> None:
        node = self._engine.state.nodes.get(name)
        if node is None:
            hint = did_you_mean(name, self._engine.state.nodes)
            raise DocumentError("", f"there is no node {quoted(name)}{hint}")
        self._cluster.set_node(replace(node, ready=ready))
        self._waiting.see_cluster()

    def _kinds(self, group: PlacementGroup) -> dict[str, Amounts]:
        return {each.name: self._engine.state.kind_of(each) for each in group.pod_sets}

    def _set(self, key: Key, status: GroupStatus) -> None:
        group = self._groups[key]
        if status == group.status:
            return
        self._changed.setdefault(key, group)
        if group.status.assignments:
            self._recorder.use(amounts_of(group, self._kinds(group), -1))
        self._groups[key] = changed = replace(group, status=status)
        if status.assignments:
            self._recorder.use(amounts_of(changed, self._kinds(changed), 1))
            self._engine.state.set_group(changed)
        elif group.status.assignments:
            self._engine.state.remove_group(*key)
            self._waiting.queue.note_change()

    def _note_failures(self) -> None:
        """Have groups wait that have lost pods with nodes, which count as failed.

        At once, or after 30 s under Fixed30s. All groups are looked through only if nodes failed or
        recovered.
        """
        patience = _FIXED if self._engine.state.settings.failure.policy == "Fixed30s" else 0.0
        gone = {name for name, since in self._failed.items() if self._now - since >= patience}
        for key in [*self._groups] if gone != self._gone else ():
            status = self._groups[key].status
            unhealthy = sorted(hosts_of(self._groups[key]).keys() & gone)
            if unhealthy == status.unhealthy_nodes:
                continue
            state: State = "Degraded" if unhealthy else "Placed"
            self._set(
                key,
                replace(status, unhealthy_nodes=unhealthy, state=state, message="", reserved=[]),
            )
            self._waiting.queue.remove(key)
            if self._lacks_pods(key):
                self._queue_up(key)
        self._gone = gone

    def _try_waiting(self) -> None:
        queue = self._waiting.queue
        self._waiting.hold(self._now, self._groups.__getitem__)
        if (look := self._waiting.next_look()) < self._look:
            self._look = look
            self._look_at(look)
        self._waiting.begin_round()
        for key in self._waiting.worth_trying(queue.all_due()):
            if self._groups[key].status.unhealthy_nodes:
                self._replace(key)
                continue
            if more := self._missing_pods(key):
                self._grow(key, more)
                continue
            asked = replace(self._groups[key], status=GroupStatus())
            found = self._waiting.place(key, asked)
            if found.state != "Placed" and self._preempt(key, asked):
                found = self._waiting.place(key, asked)
            if found.state == "Placed":
                queue.remove(key)
                self._set(key, found)
                self._recorder.note_placement("/".join(key), self._groups[key], self._now)
                if key in self._runs:
                    self._look_at(self._now + self._runs[key], key)
                continue
            hopeless = self._waiting.is_hopeless(asked)
            self._waiting.note_refusal(key, asked, hopeless=hopeless)
            self._recorder.note_refusal("/".join(key), found.message)
            self._refuse(key, self._waiting.refusal(asked, found), hopeless=hopeless)

    def _replace(self, key: Key) -> None:
        """Place the pods of failed nodes anew; under failFast all pods of a group without room.

        Their owner makes them again, and they wait.
        """
        group = self._groups[key]
        there, unhealthy = hosts_of(group), group.status.unhealthy_nodes
        found = self._waiting.place(key, group)
        if found.assignments:
            self._recorder.moves += sum(there[node] for node in unhealthy)
        elif self._engine.state.settings.failure.fail_fast:
            self._recorder.lost += 1
            pods = counted(sum(there[node] for node in unhealthy), "pod")
            self._evict(key, f"starts again: no room for {pods} of {', '.join(unhealthy)}")
            return
        else:
            self._waiting.queue.note_refusal(key, hopeless=False)
            self._say(key, found.message)
            return
        self._waiting.queue.remove(key)
        self._set(key, found)
        if self._missing_pods(key):
            self._queue_up(key)

    def _say(self, key: Key, problem: str) -> None:
        """Have a group that lacks pods say where it stands, and why it cannot get them."""
        group = self._groups[key]
        standing = self._waiting.standing(key, group, self._waiting.queue.rank(key))
        message = "; ".join(filter(None, (standing, problem)))
        reserved = [*self._waiting.reserved(key)]
        self._set(key, replace(group.status, message=message, reserved=reserved))

    def _preempt(self, own: Key, group: PlacementGroup) -> bool:
        """Have others leave so that *group* fits, if the settings say so; return if some do."""
        if not self._engine.state.settings.groups.preemption:
            return False
        leaving = find_victims(self._engine, group) or []
        for each in leaving:
            self._evict(each.key, f"preempted by {'/'.join(own)}")
        self._recorder.preempted += len(leaving)
        self._waiting.begin_round()
        return bool(leaving)

    def _evict(self, key: Key, why: str) -> None:
        """Have a group lose all its places, and wait."""
        self._ending.pop(key, None)
        self._waiting.queue.remove(key)
        self._set(key, GroupStatus())
        self._queue_up(key)
        self._evicted[key] = why

    def _grow(self, key: Key, more: Counter[str]) -> None:
        """Find places for *more* pods of a group; what it has stays."""
        group = self._groups[key]
        found = self._waiting.place(key, group, more=more)
        if found.assignments:
            self._waiting.queue.remove(key)
            self._set(key, replace(found, state=group.status.state))
            return
        self._waiting.queue.note_refusal(key, hopeless=False)
        self._recorder.attempts_without_room += 1
        self._say(key, f"{counted(more.total(), 'more pod')} cannot be placed: {found.message}")

    def _refuse(self, key: Key, found: GroupStatus, *, hopeless: bool) -> None:
        queue, reserved = self._waiting.queue, self._waiting.reserved(key)
        if not self._groups[key].status.message:  # for the first time
            due = queue.place(key).since + self._engine.state.settings.groups.timeout
            self._look_at(max(self._now, due))
        standing = ""
        if not hopeless:
            standing = self._waiting.standing(key, self._groups[key], queue.rank(key))
        message = "; ".join(filter(None, (standing, found.message)))
        self._set(key, GroupStatus(state=found.state, message=message, reserved=[*reserved]))

    def _change(self, key: Key) -> str:
        """Return what became of a group in the step."""
        if key in self._evicted:
            return self._evicted[key]
        now = self._groups[key]
        return describe_change(self._changed.get(key, now), now)

    def _state(self, group: PlacementGroup) -> GroupState:
        pods: Counter[str] = Counter()
        for part in count_by_domain(self._engine.state, group)[1]:
            pods[part.values[-1]] += part.pods
        return GroupState(
            name=group.full_name,
            state=group.status.state,
            message=self._message(group),
            domains=dict(pods),
        )

    def _message(self, group: PlacementGroup) -> str:
        """Return the message of a group, of one that waits by what zones leave room for."""
        key, status = group.key, group.status
        if key not in self._waiting.queue or status.assignments:
            return status.message
        asked = replace(group, status=GroupStatus())
        standing = ""
        if status.state == "Waiting":
            standing = self._waiting.standing(key, asked, self._waiting.queue.rank(key))
        refused = self._waiting.refusal(asked, self._waiting.count_by_zones(key, asked))
        return "; ".join(filter(None, (standing, refused.message)))


def _ending(group: PlacementGroup) -> PlacementGroup:
    """Return *group* with pods that end by themselves."""
    pod_sets = []
    for each in group.pod_sets:
        spec = replace(each.template.spec, restart_policy="Never")
        template = replace(each.template, spec=spec)
        pod_sets.append(replace(each, template=template))
    return replace(group, pod_sets=(*pod_sets,))


def _first(given: Assignment, count: int | None) -> Assignment:
    """Return where the first *count* pods of a pod set are, by rank; all if that is None."""
    left, domains = MAX_COUNT if count is None else count, []
    for each in given.domains:
        if left:
            domains.append(DomainAssignment(each.values, min(each.count, left)))
            left -= domains[-1].count
    return replace(given, domains=domains)
