"""The daemon's tables as a value: taken from its objects, and put back.

Looks at every attribute of every object of the rooms below, so no table can be forgotten. What has
no value, a task or a lock that is held, must not be there then.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable
from enum import Enum
from typing import Any

from msgspec import Struct
from msgspec.structs import astuple

from nri_policy.delivery.inputs import Action
from nri_policy.engine.grant import Placement
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.node import Sandbox

ROOMS = ("nri_policy.plugin", "nri_policy.delivery")
LONG_AGO = 60.0  # seconds
# Seconds that pass at a time: a runtime needs less for what it was sent, all is tried again later.
PASS, LONG_PASS = 3.0, 61.0
_PLAIN = (type(None), bool, int, float, str, tuple, frozenset, CPUSet)
# These two follow from the others' identity, the third from a clock that the loop sets anew.
_DERIVED = ("_handlers", "_concerned", "_rest_until")
# What the model does whenever there is a reason: when it is due is no part of a state.
_UNTIMED = (Action.OVERLAPS, Action.QUOTAS)


class Tables(Struct, frozen=True):
    """The tables at one moment."""

    values: dict[int, Any]  # by number of the place: those that are not as at the beginning
    key: tuple[Any, ...]  # the same for all moments that differ in nothing but the time
    now: float


class Objects:
    """The objects of one daemon."""

    def __init__(self, *roots: object, ignored: tuple[type, ...]) -> None:
        """Take the objects that lead to all others; *ignored* kinds are not part of the model."""
        self._ignored = ignored
        self._places: list[tuple[dict[str, Any], str]] = []
        self._events: list[asyncio.Event] = []
        seen: set[int] = set()
        for root in roots:
            self._find(root, seen)
        self._first = [_copy(fields[name]) for fields, name in self._places]
        numbered = [
            (n, fields, name, fields[name]) for n, (fields, name) in enumerate(self._places)
        ]
        self._tables = [each for each in numbered if isinstance(each[3], dict | set | list)]
        self._scalars = [each for each in numbered if not isinstance(each[3], dict | set | list)]

    def _find(self, found: object, seen: set[int]) -> None:
        if id(found) in seen:
            return
        seen.add(id(found))
        for name, value in vars(found).items():
            if name in _DERIVED:
                continue
            if isinstance(value, asyncio.Event):
                self._events.append(value)
            elif isinstance(value, (*_PLAIN, dict, set, list, Struct)):
                if isinstance(value, dict | set | list):
                    assert id(value) not in seen, f"{name} is a table of two objects"
                    seen.add(id(value))
                self._places.append((vars(found), name))
            elif _is_ours(value) and not isinstance(value, self._ignored):
                self._find(value, seen)

    def take(self, now: float) -> Tables:
        """Return the tables as they are *now*."""
        values, key = {}, []
        for number, (fields, name) in enumerate(self._places):
            value = fields[name]
            if value != self._first[number]:
                values[number] = _copy(value)
                form = _due if name == "due" else _key
                key.append((number, form(value, now)))
        return Tables(values, tuple(key), now)

    def put(self, tables: Tables) -> None:
        """Restore the contents of the tables; each table stays the same object."""
        values = tables.values
        for number, fields, name, table in self._tables:
            table.clear()
            saved = values[number] if number in values else self._first[number]
            if saved:
                if isinstance(table, list):
                    table.extend(saved)
                else:
                    table.update(saved)
            fields[name] = table
        for number, fields, name, first in self._scalars:
            fields[name] = values.get(number, first)
        for event in self._events:  # the model asks itself what there is to do
            event.clear()
            event._waiters.clear()  # they were given up


def _is_ours(value: object) -> bool:
    return type(value).__module__.startswith(ROOMS) and hasattr(value, "__dict__")


def _copy(value: Any) -> Any:
    return value.copy() if isinstance(value, dict | set | list) else value


def _key(value: Any, now: float) -> Any:
    form = _FORMS.get(type(value))
    if form is None:
        if isinstance(value, Enum):
            return value
        assert isinstance(value, Struct), f"what tells two of {type(value)} apart?"
        return tuple([_key(each, now) for each in astuple(value)])
    return form(value, now)


def _as_is(value: Any, _: float) -> Any:
    return value


def _time(value: float, now: float) -> float:
    """Tell apart what was or will be soon, what was before, and what was long ago or will be."""
    age = now - value
    if age >= LONG_AGO or age <= -PASS:
        return math.copysign(LONG_AGO, age)
    return PASS if age >= PASS else 0.0


def _dict(value: dict[Any, Any], now: float) -> Any:
    return tuple([(each, _key(entry, now)) for each, entry in value.items()])


def _due(value: dict[Action, float], now: float) -> Any:
    """Return a key that tells apart only actions due soon, due later, and not due."""
    return tuple(
        [
            0 if at <= now + PASS else 2 if at == math.inf else 1
            for each, at in value.items()
            if each not in _UNTIMED
        ]
    )


def _list(value: Any, now: float) -> Any:
    return tuple([_key(each, now) for each in value])


_FORMS: dict[type, Callable[[Any, float], Any]] = {
    **dict.fromkeys((type(None), bool, int, str, frozenset, CPUSet), _as_is),
    float: _time,
    dict: _dict,
    Counter: _dict,
    list: _list,
    tuple: _list,
    set: lambda value, _: frozenset(value),
    Placement: lambda value, _: (value.cpus, value.mems, value.shares, value.quota),
    Sandbox: lambda value, _: (value.name, value.counted, value.asked),
}
