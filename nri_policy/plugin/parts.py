"""Parts: what takes part in the requests of one runtime, put together once."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from nri_policy.classes import Equipment
from nri_policy.node import Node
from nri_policy.nri.versions import Runtime
from nri_policy.plugin.claims import Claims
from nri_policy.plugin.creations import Creations
from nri_policy.plugin.decisions import Decisions
from nri_policy.plugin.enforcement import Enforcement, Overlap
from nri_policy.plugin.exposed_resources import ExposedResources
from nri_policy.plugin.exposure import Exposure
from nri_policy.plugin.inventory import Inventory
from nri_policy.plugin.lasting import Lasting
from nri_policy.plugin.pod_quotas import PodQuotas
from nri_policy.plugin.pods import Pods
from nri_policy.plugin.resizes import Resizes
from nri_policy.plugin.sources import Sources
from nri_policy.plugin.telling import Telling
from nri_policy.plugin.update_queue import UpdateQueue
from nri_policy.plugin.writing import Writing


class Parts:
    """All that takes part in one runtime's requests, and what is known of this runtime."""

    def __init__(  # noqa: PLR0913 - keywords: whom they tell
        self,
        node: Node,
        exposure: Exposure,
        update_queue: UpdateQueue,
        *,
        sources: Sources,
        pods_changed: Callable[[], None] = lambda: None,
        enforced: Callable[[], None] = lambda: None,
        wrote: Callable[[int, float], None] = lambda _number, _seconds: None,
        overlapped: Callable[[Overlap], None] = lambda _: None,
    ) -> None:
        """Take the node, and whom to tell.

        *pods_changed* is called when there are others of the pods that schedulers count, *enforced*
        for each cpuset that was written because it could not wait for the runtime, *wrote* with how
        many cpusets a batch wrote before the runtime heard of them, and its seconds, *overlapped*
        with who was found on CPUs of somebody else's own.
        """
        self.now = sources.now
        self._host_equipment = sources.equipment
        self.runtime: Runtime | None = None  # None: not heard of yet
        self.node = node
        self.update_queue = update_queue
        self.confirmations = update_queue.confirmations
        self.resources = ExposedResources(node, exposure)
        self.writing = Writing(node, update_queue, sources.cgroups, wrote=wrote)
        self.decisions = Decisions(node, update_queue, self.writing, self.resources)
        self.resizes = Resizes(node, self.decisions, update_queue, self.resources)
        self.enforcement = Enforcement(
            node,
            update_queue,
            sources.cgroups,
            writing=self.writing,
            resize_overdue=self.resizes.overdue,
            wrote=enforced,
            overlapped=overlapped,
        )
        self.lasting = Lasting(
            node,
            update_queue,
            cgroups=sources.cgroups,
            scopes=sources.scopes,
            turn=self.writing.lock,
        )
        self.telling = Telling(node, update_queue)
        self.claims = Claims(node, self.decisions, self.writing, sources.held, sources.recorded)
        self.pods = Pods(
            node,
            sources.locator,
            sources.assignments,
            sources.claims,
            pods_changed,
            objects=sources.objects,
            claimed=self.claims.of,
        )
        self.quotas = PodQuotas(node, update_queue, sources.cgroups)
        self.inventory = Inventory(
            node, self.pods, update_queue, self.enforcement, self.claims.stored
        )
        # containers that have ended before the runtime said that they had started
        self.ended_early: set[str] = set()
        self.creations = Creations(update_queue.clock)
        self.pids: dict[str, int] = {}  # of the containers' first processes, as the runtime says

    def forget(self, container_id: str) -> None:
        """Forget a container that has ended."""
        self.confirmations.forget(container_id)
        self.creations.ended(container_id)
        self.pids.pop(container_id, None)
        self.resizes.forget(container_id)
        self.writing.forget(container_id)
        self.update_queue.ledger.forget(container_id)

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
        )
