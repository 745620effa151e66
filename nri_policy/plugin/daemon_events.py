"""What happens to a node without the runtime: time passes, settings and hardware change.

Each change takes the node's turn.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence

from nri_policy.delivery.record import Phase
from nri_policy.engine.event import (
    Described,
    Drifted,
    Elapsed,
    Equipped,
    PodStopped,
    Reconfigured,
)
from nri_policy.hardware.machine import Machine
from nri_policy.plugin.components import PluginComponents
from nri_policy.settings import Settings
from nri_policy.workload.pod import Container, ContainerState, Pod
from nri_policy.workload.requirements import PodRequirements

log = logging.getLogger(__name__)


class DaemonEvents:
    """Has the components of one runtime take in what the daemon learns by itself."""

    def __init__(self, components: PluginComponents) -> None:
        self._components = components
        self._node = components.node
        self._decisions = components.decisions
        self._inventory = components.inventory
        self._executor = components.executor
        self._pods = components.pods
        self._quotas = components.quotas
        self._tasks: set[asyncio.Task[None]] = set()
        components.partitions.release = self._release_soon

    async def release(
        self, container_ids: Iterable[str], state: ContainerState
    ) -> Sequence[Container]:
        """Release containers whose end the runtime has not reported; return these.

        Only containers in *state*: a created container may have started meanwhile.
        """
        async with self._node.turn:
            placed = self._node.view.placed
            known = [placed[each].container for each in container_ids if each in placed]
            gone = [each for each in known if each.state is state]
            for each in gone:
                log.warning("ended-without-event", extra={"container": each.id})
                if not await self._components.end_partitions([each.id]):
                    self._components.release(each.id)
        return gone

    def _release_soon(self, container_ids: set[str]) -> None:
        """Release containers whose end was reported while they were still kernel partitions."""

        async def release() -> None:
            async with self._node.turn:
                for each in container_ids & self._node.view.placed.keys():
                    self._components.release(each)

        task = asyncio.create_task(release(), name="release")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def may_be_given_up(self, container_id: str) -> bool:
        """Return whether a creation may have failed without a word.

        CRI-O never says so; other runtimes always do, but some while we registered.
        """
        runtime = self._components.runtime
        if runtime is None or not runtime.hides_creations:
            return False
        phase = self._executor.state.phase(container_id)
        return runtime.forgets_creations or phase is Phase.CREATING

    async def clear_rooms(self, pod_ids: Iterable[str]) -> None:
        """Release the rooms of pods that have ended, though the runtime has not said so.

        Only those without tenants: a container may have come meanwhile.
        """
        async with self._node.turn:
            for each in pod_ids:
                view = self._node.view
                tenants = (view.placed[one].grant.tenant for one in self._node.of_pod(each))
                if each in view.rooms and not any(tenants):
                    log.warning("ended-without-event", extra={"pod": each})
                    self._quotas.forget(each)
                    self._decisions.decide(PodStopped(pod_id=each))

    async def elapse(self, *, anyway: bool = False) -> None:
        """End the cold starts that are due; *anyway* stores an event also if none is due."""
        async with self._node.turn:
            now, deadline = self._components.executor.clock.date(), self._node.view.next_deadline
            if anyway or (deadline is not None and deadline <= now):
                self._decisions.decide(Elapsed(now=now))

    async def reconfigure(
        self,
        *,
        settings: Settings | None = None,
        machine: Machine | None = None,
        instead_of: Machine | None = None,
    ) -> bool:
        """Take new settings or a new machine; return whether they are in force.

        With *instead_of*, nothing changes unless that machine is in force.
        Raises Refused, never for a machine alone; then nothing changes.
        """
        async with self._node.turn:
            if instead_of is not None and self._node.view.layout.machine is not instead_of:
                return False
            self._decisions.take(Reconfigured(settings=settings, machine=machine))
            self._quotas.expect_all()
            if machine is not None and self._pods.locator is not None:
                self._pods.locator.renew(machine)
        return True

    async def describe(self, pod: Pod, said: PodRequirements) -> None:
        """Apply a pod object's requests to containers that were placed before it was read.

        CPUs beyond these requests become free.
        """
        async with self._node.turn:
            self._decisions.decide(Described(pod_id=pod.id, said=said))
            self._quotas.expect([pod.id])
            await self._executor.narrow()

    async def equip(self) -> None:
        """Update the host's equipment, if it has changed."""
        async with self._node.turn:
            equipment = self._components.equipment()
            if equipment != self._node.view.equipment:
                self._decisions.decide(Equipped(equipment=equipment))

    async def resend(self, container_ids: Iterable[str]) -> None:
        """Put in force again where these containers run, whatever the runtime believes."""
        async with self._node.turn:
            await self._inventory.look_at(container_ids)
            self._decisions.decide(Drifted(container_ids=tuple(container_ids)))
