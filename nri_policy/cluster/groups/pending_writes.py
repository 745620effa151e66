"""Writes of groups and pods that are under way: each is sent once, until its outcome is known.

Promised places count from the moment that their write is sent. A write that failed is dropped, and
its promise with it; what it was for is left alone for a while. A write without an answer may have
been done: its promise holds, and it is repeated.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from nri_policy.cluster.engine.state.cluster_state import ClusterState
from nri_policy.cluster.groups.members import Members
from nri_policy.cluster.groups.placed_pods import PlacedPods
from nri_policy.cluster.groups.table import GroupTable
from nri_policy.cluster.groups.writes import (
    GroupWrite,
    Notice,
    OpenGate,
    PodWrite,
    Write,
    WriteStatus,
    group_of,
    pod_of,
)
from nri_policy.cluster.objects.metadata import Key
from nri_policy.foundation.clock import Clock


class PendingWrites:
    """Marks writes as under way, or no longer, in the records of groups and pods."""

    def __init__(
        self,
        state: ClusterState,
        groups: GroupTable,
        members: Members,
        placed_pods: PlacedPods,
        clock: Clock,
    ) -> None:
        self._state = state
        self._groups = groups
        self._members = members
        self._placed_pods = placed_pods
        self._clock = clock

    def send(self, writes: Iterable[Write]) -> Iterator[Write]:
        """Yield *writes*, each of which is under way from then on; promised places count."""
        for write in writes:
            if isinstance(write, PodWrite):
                changed: dict[str, Any] = {"write": write, "unanswered": False}
                if not isinstance(write, OpenGate):
                    changed["ended"] = write.message
                self._members.update(pod_of(write).key, **changed)
            elif not isinstance(write, Notice):
                key = write.group.key
                if isinstance(write, WriteStatus) and write.promised:
                    self._state.set_group(write.group)
                    self._placed_pods.recount(key, write.group)  # pods on failed hosts stay there
                self._groups.update(key, write=write, unanswered=False)
            yield write

    def repeat(self) -> Iterator[GroupWrite]:
        """Yield again the writes of groups that had no answer, after their pause."""
        now = self._clock.now()
        for key in [key for key in self._groups.unanswered if not self._groups[key].pauses(now)]:
            if (write := self._groups[key].write) is not None:
                yield write
            self._groups.update(key, unanswered=False)

    def drop(self, write: GroupWrite | PodWrite, reason: str, wait: float) -> list[Write]:
        """Drop a write that failed; return an Event that says the *reason*, if that is news.

        With a *reason* the object is left alone for a pause of *wait* seconds at least.
        """
        group = group_of(write)
        if isinstance(write, PodWrite):
            key = pod_of(write).key
            self._members.update(key, write=None, unanswered=False)
            news = bool(reason) and self._back_off_pod(group, key, reason, wait)
            return [Notice(key, "Refused", reason, pod=True)] * news
        record = self._groups[group]
        back_off = record.back_off
        if reason:
            back_off = back_off.after_failure(self._clock.now(), reason, wait)
        self._groups.update(group, write=None, unanswered=False, back_off=back_off, place=None)
        if record.seen is not None:
            self._state.set_group(record.seen.group)
        if not reason:
            return []
        self._groups.look_again(group, back_off.until)
        return [self.notice(group, "Refused", reason)] * (record.back_off.text != reason)

    def await_answer(self, write: GroupWrite | OpenGate, wait: float) -> None:
        """Have a write without an answer repeated after a pause of *wait* seconds at least."""
        if isinstance(write, OpenGate):
            key = write.opening.pod.key
            self._members.update(key, unanswered=write is self._members.state(key).write)
            self._back_off_pod(group_of(write), key, wait=wait)
        else:
            group = write.group.key
            record = self._groups[group]
            back_off = record.back_off.after_failure(self._clock.now(), wait=wait)
            self._groups.update(group, unanswered=write is record.write, back_off=back_off)

    def _back_off_pod(self, group: Key, key: Key, text: str = "", wait: float = 0.0) -> bool:
        """Leave a pod alone whose write failed; return whether the reason is news."""
        before = self._members.state(key).back_off
        back_off = before.after_failure(self._clock.now(), text, wait)
        self._members.update(key, back_off=back_off)
        self._groups.look_again(group, back_off.until)
        return before.text != back_off.text

    def notice(self, group: Key, reason: str, text: str) -> Notice:
        """Return an Event about a group; about its first pod while it has no object."""
        if self._groups[group].seen is None:
            first = min((each.pod.name for each in self._members.of(group)), default=None)
            if first is not None:
                return Notice((group[0], first), reason, text, pod=True)
        return Notice(group, reason, text)
