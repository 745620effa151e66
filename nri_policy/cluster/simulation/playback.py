"""Playing the steps of a scenario, or jobs by time, in a simulated cluster.

Groups wait in the service's own queue, with hosts set aside as on a live cluster.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from msgspec.structs import replace

from nri_policy.cluster.engine.engine import Engine
from nri_policy.cluster.objects.document import DocumentError, join
from nri_policy.cluster.objects.metadata import Key
from nri_policy.cluster.objects.priority import PriorityClasses
from nri_policy.cluster.planning.group_answers import notes_of
from nri_policy.cluster.planning.preview import count_by_domain, find_group
from nri_policy.cluster.requests.group import (
    PlacementGroup,
    name_by_kind,
)
from nri_policy.cluster.simulation.figures import Figures
from nri_policy.cluster.simulation.played import (
    GroupState,
    Played,
    describe_change,
    find_differences,
)
from nri_policy.cluster.simulation.simulated_groups import SimulatedGroups
from nri_policy.cluster.simulation.steps import SimulationStep
from nri_policy.cluster.simulation.synthetic_jobs import SyntheticJob
from nri_policy.cluster.view import Cluster
from nri_policy.cluster.workloads.workload import (
    add_priority_classes,
    describe_left_out_kinds,
    read_groups,
)
from nri_policy.foundation.units import parse_duration
from nri_policy.foundation.wording import quoted

_GROUP = "group"  # the kind of one that names none


class Simulation:
    """A cluster in which steps are played."""

    def __init__(self, engine: Engine, cluster: Cluster, classes: PriorityClasses) -> None:
        """Continue from the state of *engine*, which reads *cluster*.

        Priorities follow *classes*; steps may add classes.
        """
        self._classes = classes
        self._engine = engine
        cluster.follow(engine.state)
        self.groups = SimulatedGroups(engine, cluster)

    def play(self, step: SimulationStep, *, every: bool = False) -> Played:
        """Play a step; raises DocumentError for one that names what there is not.

        What is played has the groups that changed in the step, or *every* one.
        """
        if step.at is not None:
            self.groups.advance(parse_duration(step.at))
        runs = None if step.runs is None else parse_duration(step.runs)
        notes = self._apply(step, runs)
        for name in step.delete or ():
            self.groups.drop(self._key(name))
        for name, counts in (step.scale or {}).items():
            self.groups.scale(self._key(name), counts, join("scale", name))
        for name in step.fail or ():
            self.groups.fail(name)
        for name in step.recover or ():
            self.groups.recover(name)
        if step.advance is not None:
            self.groups.advance(self.groups.agenda.now + parse_duration(step.advance))
        self.groups.settle()
        problems: list[str] = []
        groups, changes = self.groups.by_key, self.groups.changes
        for name, expected in (step.expect or {}).items():
            problems += find_differences(expected, self._state(groups[self._key(name)]))
        shown = groups if every else dict.fromkeys(changes.before)
        states = [
            replace(self._state(groups[key]), change=self._change(key))
            for key in shown
            if key in groups
        ]
        states += [
            GroupState("/".join(key), "Ended", "", {}, change=f"was {before}")
            for key, before in changes.ended.items()
            if key not in groups
        ]
        changes.clear()
        return Played(
            step=step, groups=states, problems=problems, at=self.groups.agenda.now, notes=notes
        )

    def _apply(self, step: SimulationStep, runs: float | None) -> list[str]:
        """Take the groups that a step applies; return what people should know of them."""
        text = describe_left_out_kinds(step.apply or ())
        notes = [f"left out, as they are not placed: {text}"] if text else []
        add_priority_classes(step.apply or (), self._classes)
        for found in read_groups(step.apply or (), self._classes):
            group, other = found, self.groups.by_key.get(found.key)
            if other is not None and other.kind not in ("", group.kind):
                group = name_by_kind(group)
                notes.append(
                    f"the {group.kind} {found.full_name} is called {group.full_name} here:"
                    f" its name is that of a {other.kind}, too"
                )
            notes += notes_of(self._engine.state, group)
            if group.singly:
                notes.append(f"{group.full_name}: a simulation places its pods together")
            self.groups.submit(group, runs, step.kind or _GROUP)
        return notes

    def run(self, jobs: Iterable[SyntheticJob]) -> None:
        """Have jobs come, by time, until the last one has ended or waits for ever."""
        for job in jobs:
            self.groups.advance(job.at)
            self.groups.submit(job.group, job.seconds, job.kind)
            self.groups.settle()
            self.groups.changes.clear()  # there are no steps
        self.groups.end()

    def show_peak(self) -> float | None:
        """Have the engine as it was when most of a resource was in use, and play no more.

        Return when that was; None if nothing was ever in use, which changes nothing.
        """
        if self.groups.peak is None:
            return None
        at, groups = self.groups.peak
        for key in [*self._engine.state.groups]:
            self._engine.state.remove_group(*key)
        for group in groups:
            self._engine.state.set_group(group)
        return at

    def figures(self) -> Figures:
        """Return what came of all groups until now."""
        examples = self.groups.recorder.examples()
        for key in self.groups.waiting.queue:
            if (name := "/".join(key)) in examples:
                self.groups.recorder.explain(name, self.groups.message(self.groups.by_key[key]))
        return self.groups.recorder.figures(self.groups.agenda.now)

    def _key(self, name: str) -> Key:
        try:
            return find_group(self.groups.by_key, name).key
        except DocumentError:
            namespace, _, own = name.rpartition("/")
            if (namespace or "default", own) in self.groups.over:
                raise DocumentError("", f"the group {quoted(name)} has ended") from None
            raise

    def _change(self, key: Key) -> str:
        """Return what became of a group in the step."""
        changes, now = self.groups.changes, self.groups.by_key[key]
        if key in changes.evicted:
            return changes.evicted[key]
        return describe_change(changes.before.get(key, now), now)

    def _state(self, group: PlacementGroup) -> GroupState:
        pods: Counter[str] = Counter()
        for part in count_by_domain(self._engine.state, group)[1]:
            pods[part.values[-1]] += part.pods
        return GroupState(
            name=group.full_name,
            state=group.status.state,
            message=self.groups.message(group),
            domains=dict(pods),
        )
