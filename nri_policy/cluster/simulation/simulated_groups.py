"""Groups of a simulated cluster, from when they come until they end.

Rule 1: no time is waited for; it goes from event to event of the agenda.
Rule 2: groups that are preempted, or start again because a node failed, leave at once and wait, as
if their owners had made their pods again.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
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
from nri_policy.cluster.requests.group import (
    GroupStatus,
    PlacementGroup,
    State,
    hosts_of,
    places_by_pod_set,
)
from nri_policy.cluster.requests.request import units_of
from nri_policy.cluster.simulation.agenda import Agenda
from nri_policy.cluster.simulation.figures import Recorder, amounts_of
from nri_policy.cluster.view import Cluster
from nri_policy.foundation.wording import counted, did_you_mean, quoted

_FIXED = 30.0  # seconds until a node counts as failed under Fixed30s


@dataclass(slots=True)
class Changes:
    """What became of groups since these were last cleared."""

    before: dict[Key, PlacementGroup | None] = field(default_factory=dict)  # None: it is new
    evicted: dict[Key, str] = field(default_factory=dict)  # and why
    ended: dict[Key, State] = field(default_factory=dict)  # and what they were

    def clear(self) -> None:
        """Forget them all."""
        self.before.clear()
        self.evicted.clear()
        self.ended.clear()


class SimulatedGroups:
    """The groups of a cluster, the queue of those that wait, and the time.

    Others may read the attributes; only the methods change what is in them.
    """

    def __init__(self, engine: Engine, cluster: Cluster) -> None:
        """Continue from the state of *engine*, which reads *cluster*."""
        self.agenda = Agenda()
        self.waiting = WaitingGroups(engine, GroupTable())
        topology = engine.state.settings.topologies[0]
        self.recorder = Recorder(engine.state.nodes.values(), topology.levels)
        self.by_key: dict[Key, PlacementGroup] = {  # by age
            key: each
            for key, each in engine.state.groups.items()
            if each.status.state != "Finished"
        }
        self.changes = Changes()
        self.over: set[Key] = set()  # groups that have ended, at some time
        self.peak: tuple[float, list[PlacementGroup]] | None = None  # when, and the groups then
        self._engine = engine
        self._cluster = cluster
        self._failed: dict[str, float] = {}  # node -> when
        self._gone: set[str] | None = None  # failed nodes at the last check of groups
        self._look = inf  # when to compute reserved hosts next
        self._runs: dict[Key, float] = {}  # for how many seconds those run that end by themselves
        self._number = 0  # of the group that came or queued up last
        self._most = 0.0  # the largest share of a resource that was in use
        for key, group in self.by_key.items():
            if group.status.assignments:
                self.recorder.use(amounts_of(group, self._kinds(group), 1))
            else:
                self._wait(key)

    def submit(self, group: PlacementGroup, seconds: float | None, kind: str) -> None:
        """Take a group that comes now, and ends so many *seconds* after it was placed."""
        key = group.key
        self.drop(key)
        if seconds is not None:
            group = _ending(group)
        self._number += 1
        # younger than all that came before, and than all that had a time before the simulation
        self.by_key[key] = replace(group, created=f"~{self._number:012}")
        self.recorder.came("/".join(key), kind, self.agenda.now)
        if seconds is not None:
            self._runs[key] = seconds
        self._wait(key)

    def _wait(self, key: Key) -> None:
        self._queue_up(key)
        self.changes.before.setdefault(key, None)

    def _queue_up(self, key: Key) -> None:
        group = self.by_key[key]
        self._number += 1
        runs = bool(group.status.assignments)
        rank = rank_of(group.priority, self.agenda.now, f"{self._number:012}", runs=runs)
        if runs:
            self.agenda.schedule(self.agenda.now + self._engine.state.settings.groups.timeout)
        self.waiting.queue.put(key, QueuePlace(rank, topology_name(group)))

    def advance(self, until: float) -> None:
        """Play the events that are due until then; time never goes back."""
        while self.agenda.next() <= until:
            for key in self.agenda.take_due():
                self.drop(key)
            self.settle()
        self.agenda.now = max(self.agenda.now, until)

    def end(self) -> None:
        """Play all events that are left."""
        while (due := self.agenda.next()) < inf:
            self.advance(due)

    def fail(self, name: str) -> None:
        """Have a node fail now."""
        self._set_ready(name, ready=False)
        self._failed.setdefault(name, self.agenda.now)
        self.agenda.schedule(self.agenda.now + _FIXED)

    def recover(self, name: str) -> None:
        """Make a node ready again; raises DocumentError for an unknown node."""
        self._set_ready(name, ready=True)
        self._failed.pop(name, None)

    def settle(self) -> None:
        """Place anew what failed, and try the groups that wait."""
        if self.agenda.now >= self._look:
            self._look = inf
        self._note_failures()
        self._try_waiting()
        self.recorder.note(self.agenda.now, len(self.waiting.queue))
        share = self.recorder.share()
        if share > self._most:
            self._most = share
            self.peak = (self.agenda.now, [*self._engine.state.groups.values()])

    def drop(self, key: Key) -> None:
        """Have a group end, or leave the queue; it may be unknown."""
        group = self.by_key.pop(key, None)
        self._runs.pop(key, None)
        self.agenda.cancel_end(key)
        self.changes.before.pop(key, None)
        self.waiting.queue.remove(key)
        if group is not None:
            self.changes.ended[key] = group.status.state
            self.over.add(key)
        if group is not None and group.status.assignments:
            self.recorder.use(amounts_of(group, self._kinds(group), -1))
            self._engine.state.remove_group(*key)
            self.waiting.queue.note_change()

    def scale(self, key: Key, counts: int | dict[str, int], path: str) -> None:
        """Have a group want so many pods: those it has more wait, the last ones end."""
        group = self.by_key[key]
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
        waits = key in self.waiting.queue
        self.by_key[key] = scaled
        if not any(each.count for each in pod_sets):
            self._set(key, GroupStatus(state="Placed", message="it has no pods"))
            self.waiting.queue.remove(key)
            return
        if not group.status.assignments:
            if waits:
                self.waiting.queue.note_edit(key)
            else:
                self._set(key, GroupStatus())
                self._queue_up(key)
            return
        fewer = [_first(each, counts.get(each.pod_set)) for each in group.status.assignments]
        self._set(key, replace(group.status, assignments=fewer, message=""))
        self.waiting.queue.remove(key)
        if self._lacks_pods(key):
            self._queue_up(key)
        else:
            self.waiting.queue.note_change()

    def _missing_pods(self, key: Key) -> Counter[str]:
        """Return how many pods of a group that has places have none, by pod set."""
        group = self.by_key[key]
        if not group.status.assignments:
            return Counter()
        wanted = Counter({each.name: each.count for each in group.pod_sets})
        return wanted - places_by_pod_set(group)

    def _lacks_pods(self, key: Key) -> bool:
        """Whether a placed group has pods without a place, or on failed nodes."""
        return bool(self.by_key[key].status.unhealthy_nodes or self._missing_pods(key))

    def _set_ready(self, name: str, *, ready: bool) -> None:
        node = self._engine.state.nodes.get(name)
        if node is None:
            hint = did_you_mean(name, self._engine.state.nodes)
            raise DocumentError("", f"there is no node {quoted(name)}{hint}")
        self._cluster.set_node(replace(node, ready=ready))
        self.waiting.see_cluster()

    def _kinds(self, group: PlacementGroup) -> dict[str, Amounts]:
        return {each.name: self._engine.state.kind_of(each) for each in group.pod_sets}

    def _set(self, key: Key, status: GroupStatus) -> None:
        group = self.by_key[key]
        if status == group.status:
            return
        self.changes.before.setdefault(key, group)
        if group.status.assignments:
            self.recorder.use(amounts_of(group, self._kinds(group), -1))
        self.by_key[key] = changed = replace(group, status=status)
        if status.assignments:
            self.recorder.use(amounts_of(changed, self._kinds(changed), 1))
            self._engine.state.set_group(changed)
        elif group.status.assignments:
            self._engine.state.remove_group(*key)
            self.waiting.queue.note_change()

    def _note_failures(self) -> None:
        """Have groups wait that have lost pods with nodes, which count as failed.

        At once, or after 30 s under Fixed30s. All groups are looked through only if nodes failed or
        recovered.
        """
        patience = _FIXED if self._engine.state.settings.failure.policy == "Fixed30s" else 0.0
        gone = {name for name, since in self._failed.items() if self.agenda.now - since >= patience}
        for key in [*self.by_key] if gone != self._gone else ():
            status = self.by_key[key].status
            unhealthy = sorted(hosts_of(self.by_key[key]).keys() & gone)
            if unhealthy == status.unhealthy_nodes:
                continue
            state: State = "Degraded" if unhealthy else "Placed"
            self._set(
                key,
                replace(status, unhealthy_nodes=unhealthy, state=state, message="", reserved=[]),
            )
            self.waiting.queue.remove(key)
            if self._lacks_pods(key):
                self._queue_up(key)
        self._gone = gone

    def _try_waiting(self) -> None:
        queue = self.waiting.queue
        self.waiting.hold(self.agenda.now, self.by_key.__getitem__)
        if (look := self.waiting.next_look()) < self._look:
            self._look = look
            self.agenda.schedule(look)
        self.waiting.begin_round()
        for key in self.waiting.worth_trying(queue.all_due()):
            if self.by_key[key].status.unhealthy_nodes:
                self._replace(key)
                continue
            if more := self._missing_pods(key):
                self._grow(key, more)
                continue
            asked = replace(self.by_key[key], status=GroupStatus())
            found = self.waiting.place(key, asked)
            if found.state != "Placed" and self._preempt(key, asked):
                found = self.waiting.place(key, asked)
            if found.state == "Placed":
                queue.remove(key)
                self._set(key, found)
                self.recorder.note_placement("/".join(key), self.by_key[key], self.agenda.now)
                if key in self._runs:
                    self.agenda.schedule(self.agenda.now + self._runs[key], key)
                continue
            hopeless = self.waiting.is_hopeless(asked)
            self.waiting.note_refusal(key, asked, hopeless=hopeless)
            self.recorder.note_refusal("/".join(key), found.message)
            self._refuse(key, self.waiting.refusal(asked, found), hopeless=hopeless)

    def _replace(self, key: Key) -> None:
        """Place the pods of failed nodes anew; under failFast all pods of a group without room.

        Their owner makes them again, and they wait.
        """
        group = self.by_key[key]
        there, unhealthy = hosts_of(group), group.status.unhealthy_nodes
        found = self.waiting.place(key, group)
        if found.assignments:
            self.recorder.moves += sum(there[node] for node in unhealthy)
        elif self._engine.state.settings.failure.fail_fast:
            self.recorder.lost += 1
            pods = counted(sum(there[node] for node in unhealthy), "pod")
            self._evict(key, f"starts again: no room for {pods} of {', '.join(unhealthy)}")
            return
        else:
            self.waiting.queue.note_refusal(key, hopeless=False)
            self._say(key, found.message)
            return
        self.waiting.queue.remove(key)
        self._set(key, found)
        if self._missing_pods(key):
            self._queue_up(key)

    def _say(self, key: Key, problem: str) -> None:
        """Have a group that lacks pods say where it stands, and why it cannot get them."""
        group = self.by_key[key]
        standing = self.waiting.standing(key, group, self.waiting.queue.rank(key))
        message = "; ".join(filter(None, (standing, problem)))
        reserved = [*self.waiting.reserved(key)]
        self._set(key, replace(group.status, message=message, reserved=reserved))

    def _preempt(self, own: Key, group: PlacementGroup) -> bool:
        """Have others leave so that *group* fits, if the settings say so; return if some do."""
        if not self._engine.state.settings.groups.preemption:
            return False
        leaving = find_victims(self._engine, group) or []
        for each in leaving:
            self._evict(each.key, f"preempted by {'/'.join(own)}")
        self.recorder.preempted += len(leaving)
        self.waiting.begin_round()
        return bool(leaving)

    def _evict(self, key: Key, why: str) -> None:
        """Have a group lose all its places, and wait."""
        self.agenda.cancel_end(key)
        self.waiting.queue.remove(key)
        self._set(key, GroupStatus())
        self._queue_up(key)
        self.changes.evicted[key] = why

    def _grow(self, key: Key, more: Counter[str]) -> None:
        """Find places for *more* pods of a group; what it has stays."""
        group = self.by_key[key]
        found = self.waiting.place(key, group, more=more)
        if found.assignments:
            self.waiting.queue.remove(key)
            self._set(key, replace(found, state=group.status.state))
            return
        self.waiting.queue.note_refusal(key, hopeless=False)
        self.recorder.attempts_without_room += 1
        self._say(key, f"{counted(more.total(), 'more pod')} cannot be placed: {found.message}")

    def _refuse(self, key: Key, found: GroupStatus, *, hopeless: bool) -> None:
        queue, reserved = self.waiting.queue, self.waiting.reserved(key)
        if not self.by_key[key].status.message:  # for the first time
            due = queue.place(key).since + self._engine.state.settings.groups.timeout
            self.agenda.schedule(max(self.agenda.now, due))
        standing = ""
        if not hopeless:
            standing = self.waiting.standing(key, self.by_key[key], queue.rank(key))
        message = "; ".join(filter(None, (standing, found.message)))
        self._set(key, GroupStatus(state=found.state, message=message, reserved=[*reserved]))

    def message(self, group: PlacementGroup) -> str:
        """Return the message of a group, of one that waits by what zones leave room for."""
        key, status = group.key, group.status
        if key not in self.waiting.queue or status.assignments:
            return status.message
        asked = replace(group, status=GroupStatus())
        standing = ""
        if status.state == "Waiting":
            standing = self.waiting.standing(key, asked, self.waiting.queue.rank(key))
        refused = self.waiting.refusal(asked, self.waiting.count_by_zones(key, asked))
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
