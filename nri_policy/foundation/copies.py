"""Copies of objects that differ in some attributes."""

from __future__ import annotations

from typing import Any, TypeVar

Of = TypeVar("Of")


def copy_with(original: Of, **changed: Any) -> Of:
    """Return a shallow copy of a plain object, with the *changed* attributes.

    Each attempt to place a group forks several: `copy.copy` takes five times as long.
    """
    made = object.__new__(type(original))
    vars(made).update(vars(original), **changed)
    return made
