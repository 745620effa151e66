"""CRI-O's annotations for quiet CPUs, so that pods from OpenShift need no others.

They are for a whole pod, and count for its containers with exclusive CPUs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec import Struct

from nri_policy.settings import class_name
from nri_policy.workload.annotation_values import InterruptChoice
from nri_policy.workload.annotations import (
    CRIO_CSTATES,
    CRIO_GOVERNOR,
    CRIO_INTERRUPTS,
    AnnotationError,
    Scope,
)

_MASKED = {"disable": True, "true": True, "enable": False}  # "true" is an old word for disable
_LATENCIES = {"disable": "n/a", "enable": "0"}
_LATENCY = re.compile(r"max_latency:([1-9][0-9]{0,8})", re.ASCII)


class CRIOChoice(Struct, frozen=True, kw_only=True):
    """What CRI-O's annotations ask for; None: nothing."""

    interrupts: InterruptChoice | None = None
    governor: str | None = None
    latency: str | None = None  # µs until a CPU works again; 0: any, n/a: none


def read_crio(annotations: Mapping[str, str]) -> CRIOChoice:
    """Read what a pod asks for; raises AnnotationError."""
    return CRIOChoice(
        interrupts=_read_interrupts(annotations.get(CRIO_INTERRUPTS)),
        governor=_read_governor(annotations.get(CRIO_GOVERNOR)),
        latency=_read_latency(annotations.get(CRIO_CSTATES)),
    )


def _read_interrupts(text: str | None) -> InterruptChoice | None:
    if text is None:
        return None
    if text == "housekeeping":
        allowed = "served here: the mask of irq-affinity.resource-policy.nri.io is for all its CPUs"
        raise AnnotationError(CRIO_INTERRUPTS, text, allowed)
    if text not in _MASKED:
        raise AnnotationError(CRIO_INTERRUPTS, text, "disable or enable")
    if not _MASKED[text]:
        return None
    return InterruptChoice(key=CRIO_INTERRUPTS, scope=Scope.POD, mask=("*",))


def _read_governor(text: str | None) -> str | None:
    try:
        return None if text is None else class_name(text)
    except ValueError:
        raise AnnotationError(CRIO_GOVERNOR, text, "the name of a governor") from None


def _read_latency(text: str | None) -> str | None:
    if text is None or text in _LATENCIES:
        return None if text is None else _LATENCIES[text]
    if found := _LATENCY.fullmatch(text):
        return found[1]
    allowed = "disable, enable or max_latency:MICROSECONDS, 1 to 999999999"
    raise AnnotationError(CRIO_CSTATES, text, allowed)
