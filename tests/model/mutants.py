"""Faults that are put into the daemon, one at a time: the model must find each.

Each takes away one line of it, or one rule.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

from nri_policy.delivery import partition_files
from nri_policy.delivery.executor import Executor
from nri_policy.delivery.machine import DeliveryState
from nri_policy.delivery.occupancy import Occupancy
from nri_policy.delivery.overlaps import Overlaps
from nri_policy.delivery.partitions import Partitions
from nri_policy.delivery.table import RecordTable
from nri_policy.engine import engine
from nri_policy.engine.event import Reconfigured
from nri_policy.engine.restart.reconfiguration import Reconfiguration, reconfigure
from nri_policy.engine.state.state import State
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.plugin.answers import Answers

Fault = Callable[[], AbstractContextManager[object]]


async def _nothing(*_: object, **_options: object) -> None:
    """Do nothing."""


def _patched(owner: type, name: str, instead: Callable[..., Any]) -> Fault:
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
    "a start does not look for what systemd has undone": _patched(Overlaps, "undone", _nothing),
    "a resize does not look for what systemd has undone": _patched(
        Executor, "look_before_resize", _nothing
    ),
    "what a new daemon finds is taken for kept by systemd": _changed(
        DeliveryState, "_note_in_place", "each in event.new and placement.cpus", "False"
    ),
    "a resize is answered before others have left its CPUs": _patched(Executor, "narrow", _nothing),
    "what is sent while the runtime is busy is not taken for lost": _changed(
        DeliveryState, "_flight", "lost=lost", "lost=False"
    ),
    "systemd is not asked to keep what was written": _patched(Executor, "persist", _nothing),
    "a file is not written for what a message was to bring": _patched(
        DeliveryState, "put", RecordTable.put
    ),
    "no answer takes changes along": _patched(Answers, "take", lambda *_a, **_k: []),
    "new settings forget what a resize keeps": _forget_resizes,
    "a start takes its partition for granted": _changed(
        Partitions, "start", "state.kernel_partitions.is_in_force(container_id)", "True"
    ),
    "CPUs that a partition still has are given to another": _patched(
        Occupancy, "_kept_by_partitions", lambda _: {}
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
}
