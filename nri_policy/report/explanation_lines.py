"""The lines that open an explanation: what a container has, in a fixed order, as label and text.

They are made from an explanation's document, for the terminal and for the pod's annotation.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import UNSET

from nri_policy.engine.explanation import DecisionKind
from nri_policy.foundation.units import count_cpus
from nri_policy.pools.tree import ROOT
from nri_policy.report.amount import format_cpus
from nri_policy.report.answer import AnswerReport
from nri_policy.report.explanation import ExplanationReport
from nri_policy.report.hint import HintReport
from nri_policy.report.recent_use import RecentUseReport
from nri_policy.workload.request import Sort

_HOW = {  # origin of a container's present place
    DecisionKind.PLACED: "placed on {pool}",
    DecisionKind.MADE_ROOM: "placed on {pool}; others moved away for it",
    DecisionKind.SPILLED: "placed on the reserved CPUs: no other is left",
    DecisionKind.RESERVED: "on the reserved CPUs",
    DecisionKind.PRESERVED: "left as it is",
    DecisionKind.KEPT: "kept its place on {pool}",
    DecisionKind.TENANT: "in its pod's room on {pool}",
    DecisionKind.CLAIMED: "where its claim is allocated, on {pool}",
    DecisionKind.RESIZED: "resized where it was, on {pool}",
}


def describe_outcome(explanation: ExplanationReport) -> str:
    """Return in a few words how a container came to its place; of a refused one, the reason."""
    if explanation.outcome is DecisionKind.REFUSED:
        return explanation.summary
    sort = None if explanation.request is None else explanation.request.sort
    # without enough reserved CPUs, shared CPUs are used
    placed = explanation.outcome in {DecisionKind.PLACED, DecisionKind.MADE_ROOM}
    pool = "the whole node" if explanation.pool == ROOT else explanation.pool
    pool = "the reserved CPUs" if sort is Sort.RESERVED and not placed else pool
    answer = explanation.answer
    unset = explanation.unset or (answer and not answer.cpus and sort is not Sort.PRESERVE)
    return f"{_HOW[explanation.outcome].format(pool=pool)}{' (decided, not set)' if unset else ''}"


def opening_lines(explanation: ExplanationReport) -> Iterator[tuple[str, str]]:
    """Yield the lines that open an explanation, in their fixed order."""
    answer, request = explanation.answer, explanation.request
    if answer is not None:
        yield from _holdings(explanation, answer)
    elif explanation.outcome is not DecisionKind.REFUSED and request is not None:
        milli = 1000 * request.exclusive + request.shared_milli
        got = f" → got {explanation.granted}" if explanation.granted else ""
        yield "asked", f"{count_cpus(milli) if milli else 'no CPU'}{got}"
    if explanation.why:
        yield "why here", explanation.why
    for each in () if answer is None else answer.better:
        yield "better", each


def _holdings(explanation: ExplanationReport, answer: AnswerReport) -> Iterator[tuple[str, str]]:
    """Yield the lines on the CPUs, memory and devices that the container has."""
    yield "CPUs", ", ".join(filter(None, (format_cpus(answer.cpus), answer.cpus_are)))
    if answer.partition is not UNSET:
        yield "", answer.partition
    if answer.alone is not UNSET:
        yield "", answer.alone
    nodes = f"{'node' if len(answer.mems) == 1 else 'nodes'} {answer.mems}, " if answer.mems else ""
    away = f"; {answer.away}" if answer.away else ""
    yield "memory", f"{nodes}{answer.memory_is}{away}"
    if answer.huge_pages:
        yield "huge pages", answer.huge_pages
    if explanation.devices:
        yield "devices", "; ".join(map(_near_device, explanation.devices))
    yield "asked", f"{answer.asked} → got {answer.got}"
    if answer.room:
        yield "pod", answer.room
    if answer.quota:
        yield "quota", answer.quota
    if answer.recent:
        yield from _recent_use(answer.recent)


def _recent_use(recent: RecentUseReport) -> Iterator[tuple[str, str]]:
    """Yield the lines on the CPU time that the container used lately."""
    parts = [f"{recent.cpus:.2f} CPUs"]
    if recent.periods:
        times = f"throttled in {recent.throttled} of {recent.periods} periods"
        parts.append(f"{times}, for {recent.throttled_seconds:.1f} s")
    if recent.waited_seconds is not None:
        parts.append(f"its threads waited {recent.waited_seconds:.1f} s for a CPU")
    yield "used", f"{'; '.join(parts)} (in the last {recent.seconds:.0f} s)"
    if recent.neighbours:
        named = (f"{each.container} {each.cpus:.2f} CPUs" for each in recent.neighbours)
        yield "beside it", ", ".join(named)


def _near_device(device: HintReport) -> str:
    source = device.source.rpartition("/")[2] if device.source.startswith("/") else device.source
    node = f"NUMA node {device.nodes}" if device.nodes else f"CPUs {device.cpus}"
    granted = f"{device.granted} of {device.granted_of} CPUs near it"
    return f"{device_name(device, source)}: {granted} ({node})"


def device_name(device: HintReport, source: str) -> str:
    """Return the name of a device or of several: how many of a source, or which one."""
    times = f"{device.count} x " if device.count > 1 else ""
    return f"{times}{source} {device.device}".rstrip()
