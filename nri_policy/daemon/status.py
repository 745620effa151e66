"""Status: how the daemon is, in the words of probes, of `status` and of the service manager."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator

from msgspec import Struct

from nri_policy.audit.auditor import Auditor
from nri_policy.control.decision_log import DecisionLog
from nri_policy.daemon.reload import log_notices
from nri_policy.node import Node
from nri_policy.nri.service import PluginService
from nri_policy.nri.session import Session
from nri_policy.plugin.components import PluginComponents
from nri_policy.plugin.findings import Findings
from nri_policy.settings import ExclusivePartitions

log = logging.getLogger(__name__)

FAILED = 3  # pods in a row without a container that was created


class ProcessUsage(Struct, frozen=True):
    """What a process uses of its node."""

    cpu_seconds: float  # since its start
    memory_bytes: int  # that are in memory now


def own_usage() -> ProcessUsage:
    """Return what this process uses."""
    import psutil  # noqa: PLC0415 - only who is asked for its status needs it

    process = psutil.Process()
    times = process.cpu_times()
    return ProcessUsage(round(times.user + times.system, 2), process.memory_info().rss)


class Status:
    """How one daemon is."""

    def __init__(  # noqa: PLR0913, PLR0917 - the parts that it asks
        self,
        node: Node,
        components: PluginComponents,
        session: Session,
        called: PluginService,
        auditor: Auditor,
        findings: Findings,
        decision_log: DecisionLog,
        *,
        synchronized: asyncio.Event,
        notes: Iterable[str],
        more: Callable[[], Iterable[str]] = tuple,
        rival: Callable[[], str] = str,
    ) -> None:
        """Take the components of the daemon; *called* serves a runtime over gRPC.

        *notes* are permanent, *more* returns the problems of other parts, *rival* the other daemon
        that the runtime has.
        """
        self._node = node
        self._components = components
        self._session = session
        self._called = called
        self._auditor = auditor
        self._findings = findings
        self._notes = notes
        self._more = more
        self.rival = rival
        self.synchronized = synchronized
        self._decision_log = decision_log

    @property
    def runtime(self) -> str:
        """The runtime that is connected now, empty if none is."""
        return str(self._session.runtime or self._called.runtime or "")

    def missing(self) -> str:
        """Return what keeps the daemon from placing containers; for any thread."""
        synchronized = self._called.synchronized or self._session.synchronized
        if synchronized:
            return ""
        rival = self.rival()
        return f"it has another daemon: {rival}" if rival else "none is connected and synchronized"

    def line(self) -> str:
        """Return in one line how the daemon is."""
        if not self.synchronized.is_set():
            rival = self.rival()
            return (
                f"another daemon has the runtime: {rival}" if rival else "waiting for the runtime"
            )
        self._node.catch_up()
        view, latest = self._node.view, self._decision_log.latest
        shown = f"{len(view.layout.tree.pools)} pools, {len(view.placed)} containers"
        if latest is not None:
            shown += f"; last decision: {latest.container} {latest.kind.value}"
        return shown

    def doubts(self) -> Iterator[str]:
        """Yield the node's problems, and decisions that are not in force."""
        yield from self._notes
        executor = self._components.executor
        state = executor.state
        if count := state.overdue(executor.clock.now()):
            yield f"containers whose last change is not confirmed yet: {count} (see audit)"
        if state.trouble:
            yield (
                f"no cgroup can be written, so changes wait for the runtime: {state.trouble};"
                " doctor says what to do"
            )
        elif count := len(state.unwritable):
            yield f"containers whose cgroups cannot be written (docs/runtime.md): {count}"
        if trouble := self._components.quotas.trouble:
            yield (
                "quotas of pods with exclusive CPUs cannot be written, so the kernel may throttle"
                f" them: {trouble}"
            )
        if executor.scope_trouble:
            yield (
                "systemd may undo cpusets that were written, until the daemon can tell it of them:"
                f" {executor.scope_trouble}"
            )
        yield from self._partition_doubts()
        failed = self._components.creations.failed
        if (count := len(failed)) >= FAILED:
            some = ", ".join(sorted(failed)[:FAILED])
            yield (
                f"the runtime created no container of the last {count} pods ({some}): does another"
                " plugin set the same? Its log says why"
            )
        for cgroup in sorted(self._auditor.orphans.unknown):
            yield (
                f"{cgroup} has processes, but belongs to no known container: it may run on others'"
                " exclusive CPUs; if it stays, end it, or restart the runtime"
            )
        yield from self._findings.recent()
        yield from self._more()

    def _partition_doubts(self) -> Iterator[str]:
        """Yield the reasons why containers lack their kernel partitions."""
        view, state = self._node.view, self._components.executor.state
        kind, reason = view.layout.settings.exclusive_partitions, view.equipment.no_partition
        if kind is not ExclusivePartitions.OFF and reason:
            yield f"exclusivePartitions: {kind} has no effect: {reason}"
        failed = [each for each in state.partitions if state.kernel_partitions.has_failed(each)]
        if failed:
            error = state.records[failed[0]].partition.error
            yield f"containers that the kernel does not make a partition: {len(failed)} ({error})"

    def announce(self) -> None:
        """Log what the daemon starts with, and what is odd about it."""
        layout = self._node.view.layout
        log_notices(layout.settings)
        for note in layout.notes:
            log.info("hardware", extra={"note": note})
        log.info(
            "started",
            extra={
                "cpus": layout.machine.online,
                "reserved": layout.capacity.reserved,
                "isolated": layout.capacity.isolated or "none",
                "pools": len(layout.tree.pools),
            },
        )
