"""Copies of objects that differ in some attributes."""

from __future__ import annotations

from copy import copy
from typing import Any, TypeVar

Of = TypeVar("Of")


def copy_with(original: Of, **changed: Any) -> Of:
    """Return a shallow copy of an object, with the *changed* attributes."""
    made = copy(original)
    vars(made).update(changed)
    return made
