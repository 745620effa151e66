"""Priorities of pods that do not exist yet: what the API server makes of their PriorityClass.

Its plugin Priority gives a pod the value of the class that it names, else that of the class that is
the default of the cluster, else 0. A pod that exists has its number already.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from msgspec import Struct

from nri_policy.cluster.objects.document import DocumentError, convert, join
from nri_policy.cluster.objects.metadata import ObjectIdentity
from nri_policy.foundation.wording import quoted

PRIORITY_CLASS = "PriorityClass"  # a kind

_MAX = 2**31 - 1
_EVERYWHERE = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}


class _PriorityClass(Struct, rename="camel"):
    metadata: ObjectIdentity
    value: int
    global_default: bool = False


class _Spec(Struct, rename="camel"):
    priority: int | None = None
    priority_class_name: str | None = None


class PriorityClasses:
    """The PriorityClasses that are known."""

    def __init__(self) -> None:
        self._values = dict(_EVERYWHERE)
        self._default = 0

    def add(self, value: object, path: str) -> None:
        """Take in a PriorityClass object; raises DocumentError."""
        given = convert(value, _PriorityClass, path)
        if not -_MAX <= given.value <= _MAX:
            raise DocumentError(join(path, "value"), f"{quoted(given.value)} is no priority")
        self._values[given.metadata.name] = given.value
        if given.global_default:
            self._default = given.value

    def highest(self, objects: Iterable[tuple[object, str]]) -> tuple[int, str]:
        """Return the highest priority of pods, and of those that other objects make.

        Also return the first unknown class that they name; unknown classes count as 0. Each object
        comes with its path. Raises DocumentError.
        """
        found, unknown = [], ""
        for spec, path in (each for given in objects for each in _pod_specs(*given)):
            given = convert(spec, _Spec, path)
            name = given.priority_class_name
            if given.priority is None and name and name not in self._values:
                unknown = unknown or name
            of_class = self._values.get(name, 0) if name else self._default
            found.append(of_class if given.priority is None else given.priority)
        return max(found, default=0), unknown


def _pod_specs(value: Any, path: str) -> Iterator[tuple[object, str]]:
    """Yield the specs in an object, of a pod and of pod templates, and where each is."""
    if isinstance(value, dict):
        if "containers" in value:
            yield value, path
            return
        inner: Iterable[tuple[str | int, Any]] = value.items()
    else:
        inner = enumerate(value) if isinstance(value, list) else ()
    for key, each in inner:
        yield from _pod_specs(each, join(path, key))
