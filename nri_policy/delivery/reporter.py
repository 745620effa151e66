"""Reports of delivery, for the log and the metrics."""

from __future__ import annotations

import logging
from collections.abc import Callable

from msgspec import Struct

from nri_policy.delivery.inputs import Event, Report
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.node import Node
from nri_policy.workload.pod import Container

log = logging.getLogger(__name__)


class Overlap(Struct, frozen=True, kw_only=True):
    """A container that was found on CPUs of another's own."""

    container: Container
    cpus: CPUSet  # those
    owners: tuple[str, ...]  # namespace/pod/container
    error: str  # why it could not be moved off them at once; empty on success


class Observers(Struct, frozen=True, kw_only=True):
    """Callbacks for metrics and reports."""

    enforced: Callable[[], None] = lambda: None  # a cpuset was written after a look
    # how many cpusets a batch wrote, and its seconds
    wrote: Callable[[int, float], None] = lambda _number, _seconds: None
    overlapped: Callable[[Overlap], None] = lambda _: None


class Reporter:
    """Says what the delivery state reports of the containers of a node."""

    def __init__(self, node: Node, observers: Observers) -> None:
        self._node = node
        self._observers = observers

    def report(self, report: Report) -> None:
        """Log a fact about a container that is still there."""
        placed = self._node.view.placed.get(report.container_id)
        if placed is None:
            return
        name = placed.container.full_name
        match report.event:
            case Event.ENFORCED:
                self._observers.enforced()
                log.info("enforced", extra={"container": name, "cpus": report.cpus})
            case Event.NOT_WRITABLE:
                fields = {"container": name, "reason": report.error}
                log.warning("not-writable", extra=fields)
            case Event.SENT_AGAIN:
                log.info("sending-again", extra={"container": name, "cpus": report.cpus})
            case Event.NOT_IN_FORCE:
                log.error("not-in-force", extra={"container": name, "cpus": report.cpus})
            case Event.REFUSED:
                refused = {"container": name, "cpus": report.cpus, "mems": report.mems}
                log.error("update-refused", extra=refused)
            case Event.NO_PARTITION:
                lost = {"container": name, "cpus": report.cpus, "reason": report.error}
                log.warning("no-partition", extra=lost)
            case Event.OVERLAP:
                self._report_overlap(placed.container, report)

    def _report_overlap(self, container: Container, report: Report) -> None:
        placed = self._node.view.placed
        self._observers.overlapped(
            Overlap(
                container=container,
                cpus=report.cpus,
                owners=tuple(
                    each.container.full_name
                    for each in placed.values()
                    if each.grant.own & report.cpus
                ),
                error=report.error,
            )
        )
