"""Components: what takes part in the requests of one runtime, put together once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from msgspec.structs import replace

from nri_policy.classes import Equipment
from nri_policy.delivery.executor import Executor
from nri_policy.delivery.inputs import Gone
from nri_policy.delivery.partitions import Partitions
from nri_policy.delivery.pod_quotas import PodQuotas
from nri_policy.engine.event import PodStopped, Stopped
from nri_policy.node import Node
from nri_policy.nri.versions import Events, Runtime
from nri_policy.plugin.answers import Answers
from nri_policy.plugin.claims import Claims
from nri_policy.plugin.cpuset_requests import CpusetRequests
from nri_policy.plugin.creations import Creations
from nri_policy.plugin.decisions import Decisions
from nri_policy.plugin.exposed_resources import ExposedResources
from nri_policy.plugin.exposure import Exposure
from nri_policy.plugin.inventory import Inventory
from nri_policy.plugin.pods import Pods
from nri_policy.plugin.resizes import Resizes
from nri_policy.plugin.sources import Sources


class PluginComponents:
    """The components of one runtime's plugin, and the state shared among them."""

    def __init__(
        self,
        node: Node,
        exposure: Exposure,
        executor: Executor,
        *,
        sources: Sources,
        pods_changed: Callable[[], None] = lambda: None,
    ) -> None:
        """*pods_changed* is called when there are others of the pods that schedulers count."""
        self._host_equipment = sources.equipment
        self.tuned = sources.tuned
        self.runtime: Runtime | None = None  # None: not known yet
        self.node = node
        self.executor = executor
        self.answers = Answers(executor)
        self.resources = ExposedResources(node, exposure)
        self.decisions = Decisions(node, executor, self.answers, self.resources)
        self.resizes = Resizes(node, self.decisions, executor, self.answers, self.resources)
        self.claims = Claims(node, self.decisions, executor, sources.held, sources.recorded)
        self.pods = Pods(
            node,
            sources.locator,
            sources.assignments,
            sources.claims,
            pods_changed,
            objects=sources.objects,
            claimed=self.claims.of,
        )
        self.quotas = PodQuotas(node, executor, sources.cgroups)
        self.partitions = Partitions(node, executor, sources.cgroups)
        self.inventory = Inventory(node, self.pods, executor, self.claims.stored)
        # containers that ended before their start event
        self.ended_early: set[str] = set()
        self.creations = Creations(executor.clock)
        self.cpuset_requests = CpusetRequests(executor.clock)
        self.pids: dict[str, int] = {}  # of the containers' first processes, as the runtime says

    def subscribe(self, runtime: Runtime) -> Events:
        """Return the events that a runtime is to send: the end of a start only if it is needed."""
        state = self.executor.state
        state.hears_starts = not self.executor.makes_up_for_starts()
        return runtime.events(hears_starts=state.hears_starts)

    async def end_partitions(
        self, container_ids: Iterable[str], *, until: float | None = None
    ) -> Collection[str]:
        """End the partitions of containers that have ended, before an event says so.

        Return those that may still be partitions: whatever the event is, these keep their CPUs
        until `Partitions.release` is called.
        """
        left = await self.partitions.end(*container_ids, until=until)
        for each in left:
            self.decisions.decide(Stopped(container_id=each, keeps=True))
        return left

    def release(self, container_id: str) -> None:
        """Release a container in the books that has ended, and is no partition any more."""
        pod_id = self.node.view.placed[container_id].container.pod.id
        self.decisions.decide(Stopped(container_id=container_id))
        view = self.node.view
        if pod_id in view.rooms.keys() - view.pods.keys() and not self.node.of_pod(pod_id):
            self.decisions.decide(PodStopped(pod_id=pod_id))  # its room was kept until now
        self.forget(container_id)
        self.quotas.expect([pod_id])

    def forget(self, container_id: str) -> None:
        """Forget a container that has ended."""
        self.executor.apply(Gone(container_id))
        self.creations.ended(container_id)
        self.pids.pop(container_id, None)

    def equipment(self) -> Equipment:
        """Return what the host and the runtime can do."""
        host, runtime = self._host_equipment(), self.runtime
        if runtime is None:
            return host
        return replace(
            host,
            no_scheduler=runtime.no_scheduler or host.no_scheduler,
            no_io_priority=runtime.no_io_priority or host.no_io_priority,
            no_io_updates=runtime.no_unified_updates or host.no_io_updates,
            crio=runtime.serves_crio_annotations,
        )
