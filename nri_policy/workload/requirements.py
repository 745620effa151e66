"""Requirements: the exact resource requirements of a container, where its pod is annotated so.

The runtime only sees estimates of them; a webhook writes the exact ones into an annotation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec import Struct

from nri_policy.foundation.mismatch import json_problem
from nri_policy.foundation.units import parse_bytes, parse_cpu
from nri_policy.workload.annotations import RESOURCES, AnnotationError

_ALLOWED = (
    "JSON such as"
    ' {"containers": {"NAME": {"requests": {"cpu": "2", "memory": "1Gi"}, "limits": …}}}'
)
_MAX_SIZE = 1 << 20  # characters


class Requirements(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Requests and limits; None where there is none."""

    cpu_request: int | None = None  # milli-CPU
    cpu_limit: int | None = None
    memory_request: int | None = None  # bytes
    memory_limit: int | None = None


class PodRequirements(Struct, frozen=True, kw_only=True):
    """The requirements of a pod's containers in its object."""

    containers: Mapping[str, Requirements]  # by name
    pod_level: bool  # whether the pod has resources as a whole (KEP-2837)


class _Entry(msgspec.Struct):
    requests: dict[str, Any] | None = None
    limits: dict[str, Any] | None = None


class _Document(msgspec.Struct, rename="camel"):
    """Entries stay raw: a malformed one affects no other container."""

    init_containers: dict[str, msgspec.Raw] | None = None
    containers: dict[str, msgspec.Raw] | None = None


_DOCUMENT = msgspec.json.Decoder(_Document)
_ENTRY = msgspec.json.Decoder(_Entry)


def requirements(annotations: Mapping[str, str], container: str) -> Requirements | None:
    """Return the requirements in the annotation for *container*; None without one.

    Raises AnnotationError.
    """
    text = annotations.get(RESOURCES)
    if text is None:
        return None
    if len(text) > _MAX_SIZE:
        raise AnnotationError(RESOURCES, text, f"{_ALLOWED} of at most {_MAX_SIZE} characters")
    try:
        document = _DOCUMENT.decode(text)
        raw = (document.containers or {}).get(container)
        if raw is None:
            raw = (document.init_containers or {}).get(container)
        entry = None if raw is None else _ENTRY.decode(raw)
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        raise AnnotationError(RESOURCES, text, f"{_ALLOWED} ({json_problem(error)})") from None
    if entry is None:
        return None
    return Requirements(
        cpu_request=_amount(entry.requests, "requests", "cpu", parse_cpu),
        cpu_limit=_amount(entry.limits, "limits", "cpu", parse_cpu),
        memory_request=_amount(entry.requests, "requests", "memory", parse_bytes),
        memory_limit=_amount(entry.limits, "limits", "memory", parse_bytes),
    )


def _amount(
    amounts: Mapping[str, Any] | None, kind: str, resource: str, parse: Callable[[Any], int]
) -> int | None:
    """Return the amount of *resource*, None if there is none."""
    value = None if amounts is None else amounts.get(resource)
    if value is None:
        return None
    try:
        return parse(value)
    except ValueError as error:
        raise AnnotationError(
            RESOURCES, value, f"accepted as {kind}.{resource} ({error})"
        ) from None
