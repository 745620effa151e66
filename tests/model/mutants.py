"""Faults that are put into the daemon, one at a time: the model must find each.

Each takes away one line of it, or one rule.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

from nri_policy.delivery import cpuset_checks, partition_files
from nri_policy.delivery.cpuset_checks import CpusetCheck
from nri_policy.delivery.delivery_state import DeliveryState
from nri_policy.delivery.desired import Desired
from nri_policy.delivery.executor import Executor
from nri_policy.delivery.messages import Messages
from nri_policy.delivery.occupancy import Occupancy
from nri_policy.delivery.overlaps import Overlaps
from nri_policy.delivery.partitions import Partitions
from nri_policy.delivery.record_table import RecordTable
from nri_policy.engine import engine
from nri_policy.engine.event import Reconfigured
from nri_policy.engine.restart import reconfiguration
from nri_policy.engine.restart.reconfiguration import Reconfiguration, reconfigure
from nri_policy.engine.state.state import State
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.plugin.answers import Answers
from nri_policy.plugin.components import PluginComponents
from nri_policy.plugin.policy_plugin import PolicyPlugin
from nri_policy.plugin.resizes import Resizes

Fault = Callable[[], AbstractContextManager[object]]


async def _nothing(*_: object, **_options: object) -> None:
    """Do nothing."""


async def _finds_none(*_: object) -> tuple[()]:
    """Find nothing."""
    return ()


def _ignored(*_: object, **_options: object) -> tuple[()]:
    """Do nothing, and have nothing to say."""
    return ()


def _all_that_were_lost(checks: Sequence[CpusetCheck], _: CPUSet) -> Sequence[CpusetCheck]:
    """Return the checks of containers whose update was lost, be their CPUs free or not."""
    return [each for each in checks if each.lost and each.found is not None]


def _patched(owner: object, name: str, instead: Callable[..., Any]) -> Fault:
    return lambda: mock.patch.object(owner, name, instead)


def _changed(owner: type, name: str, line: str, instead: str) -> Fault:
    """Return the fault that a method has with *instead* of a *line*."""

    def put_in() -> AbstractContextManager[object]:
        method = inspect.getattr_static(owner, name)
        source = textwrap.dedent(inspect.getsource(method))
        assert source.count(line) == 1, f"{name} has {source.count(line)} times {line!r}"
        made: dict[str, Any] = {}
        code = compile(source.replace(line, instead), name, "exec")
        exec(code, method.__globals__, made)
        return mock.patch.object(owner, name, made[name])

    return put_in


def _forget_resizes() -> AbstractContextManager[object]:
    def forgetful(old: State, event: Reconfigured, unheard: CPUSet) -> Reconfiguration:
        old.resizing.clear()
        return reconfigure(old, event, unheard)

    return mock.patch.object(engine, "reconfigure", forgetful)


MUTANTS: dict[str, Fault] = {
    "a start does not wait for others to leave its CPUs": _patched(
        Executor, "wait_until_clear", _nothing
    ),
    "a start does not look at what is in doubt": _patched(Executor, "look_before", _nothing),
    "a start does not look for what systemd has undone": _patched(Overlaps, "undone", _finds_none),
    "a resize is answered before others have left its CPUs": _patched(Executor, "narrow", _nothing),
    "what is sent while the runtime is busy is not taken for lost": _changed(
        DeliveryState, "_flight", "lost=lost", "lost=False"
    ),
    "what a new daemon finds is taken for kept by systemd": _changed(
        DeliveryState, "_note_in_place", "each in event.new and placement.cpus", "False"
    ),
    "no look finds that a start has ended": _patched(
        DeliveryState, "_look_at_start", lambda *_: None
    ),
    "what starts during a registration is not looked at": _patched(
        DeliveryState, "_perhaps_started", lambda _, known: known
    ),
    "the ends of starts that no look sees are not asked for": _patched(
        Executor, "makes_up_for_starts", lambda _: True
    ),
    "systemd is not asked to keep what was written": _patched(Executor, "persist", _nothing),
    "a file is not written for what a message was to bring": _patched(
        DeliveryState, "put", RecordTable.put
    ),
    "no answer takes changes along": _patched(Answers, "take", lambda *_a, **_k: []),
    "new settings move a container that is still a partition": _patched(
        reconfiguration, "_stays", lambda *_: False
    ),
    "new settings forget what a resize keeps": _forget_resizes,
    "a start takes its partition for granted": _changed(
        Partitions, "start", "state.kernel_partitions.keeps(container_id, own)", "True"
    ),
    "CPUs that a partition still has are given to another": _patched(
        Occupancy, "_kept_by_partitions", lambda _: {}
    ),
    "a look moves a container onto CPUs that a partition still has": _patched(
        Occupancy, "bars_a_move", lambda _: False
    ),
    "a sidecar is widened onto CPUs that its sibling's partition still has": _patched(
        Desired, "are_siblings", lambda *_: False
    ),
    "a message moves a container onto CPUs that a partition still has": _changed(
        Messages, "_call", "await self._unbar_moves()", "pass"
    ),
    "a partition takes all CPUs that a container still has": _patched(
        Occupancy, "strands", lambda *_: False
    ),
    "a list is answered before the partitions of an earlier daemon are known": _changed(
        Partitions,
        "restart",
        "await self._settle_until(self._executor.clock.now() + MAX_BATCH)",
        "pass",
    ),
    "a container that the list lacks stays a partition": _changed(
        PolicyPlugin,
        "synchronize",
        "await self._components.end_partitions(placed - there)",
        "pass",
    ),
    "a container that is still a partition leaves the books": _changed(
        PluginComponents,
        "end_partitions",
        "self.decisions.decide(Stopped(container_id=each, keeps=True))",
        "pass",
    ),
    "what an earlier daemon has left in files of partitions stays": lambda: mock.patch.object(
        partition_files, "_find_keeping", return_value=()
    ),
    "a partition that shrinks keeps its CPUs": _patched(
        partition_files._Settlement, "_give_up", lambda *_: None
    ),
    "cgroups above keep no CPUs for partitions": _changed(
        partition_files._Settlement, "_due_above", "below[parent].append(own)", "pass"
    ),
    "a resize that seems refused cannot come into force late": _patched(
        DeliveryState, "_resize_doubted", _ignored
    ),
    "what a late resize has set counts as recorded": _changed(
        DeliveryState, "_resize_confirmed", "known = replace(known, recorded=None)", "pass"
    ),
    "the end of a resize that was overdue is not looked at": _changed(
        DeliveryState, "_resize_confirmed", "flight = flight or self._flight(lost=False)", "pass"
    ),
    "what a resize should have brought is not sent again": _patched(
        Resizes, "_send_again", _ignored
    ),
    "a resize that the list shows refused is not taken back": _patched(
        Resizes, "restart", _ignored
    ),
    "a container lacks CPUs after it has left another's": _changed(
        DeliveryState, "_note_enforced", "check.settled and check.cpus != due.cpus", "False"
    ),
    "what is created during a registration is not taken for lost": _changed(
        DeliveryState, "_begin_anew", "if unsure", "if False"
    ),
    "what the answer of a failed creation carried is not sent again": _changed(
        DeliveryState, "_gone", "if self.records[each].pending is None", "if False"
    ),
    "what was decided during a call is not sent again": _patched(
        DeliveryState, "_repeat_overtaken", _ignored
    ),
    "what a lost call said is not sent again": _changed(
        DeliveryState, "_call_lost", "self._note(event.changes)", "pass"
    ),
    "what failed in a call is not sent again": _changed(
        DeliveryState, "_retry_later", "if attempts < MAX_TRIES", "if False"
    ),
    "what is not in force in time is not sent again": _changed(
        DeliveryState, "_again", "if resent < MAX_TRIES", "if False"
    ),
    "a container grows onto CPUs that another occupies": _changed(
        DeliveryState, "_fits", "not (known.pending.cpus - known.observed.cpus) & blocked", "True"
    ),
    "a look has a container grow onto CPUs that another occupies": _patched(
        cpuset_checks, "gaining", _all_that_were_lost
    ),
    "what a batch may have given is not taken back": _changed(
        Occupancy, "occupies", "given = self.giving.get(container_id)", "given = None"
    ),
    "a cgroup that could not be written is tried at once again": _changed(
        DeliveryState,
        "is_by_file",
        "(known.failed_at is None or self.now - known.failed_at >= RETRY_WRITE)",
        "True",
    ),
    "a cgroup that could not be written is never tried again": _changed(
        DeliveryState, "is_by_file", "self.now - known.failed_at >= RETRY_WRITE", "False"
    ),
    "a change without a visible cgroup is never taken for in force": _changed(
        DeliveryState, "_conclude", "running and (late or flight.request < self.requests)", "False"
    ),
    "files are not written after an event": _patched(Executor, "settle", _nothing),
    "a new daemon does not look at what an earlier one wrote": _patched(
        DeliveryState, "_note_in_place", _ignored
    ),
    "a resize does not look for what systemd has undone": _patched(
        Executor, "look_before_resize", _nothing
    ),
    "what is found on CPUs of another's own stays there": _patched(
        Executor, "look_at_overlaps", _nothing
    ),
    "a registration sends nothing of what differs from the list": _changed(
        DeliveryState, "_registered", "if not self._can_wait(each, new)", "if False"
    ),
}
