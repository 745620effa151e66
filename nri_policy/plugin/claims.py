"""Claims of our own devices: holding them, and which containers use them; spec dra.md §2.3.

Owns the evidence. The runtime shows a container's CDI devices, or the variables that they set; a
pod's author can set both too, so they count only for a claim that is held, and that is reserved for
the container's pod. Claims are held and given back in the node's turn.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Protocol

from nri_policy.delivery.executor import Executor
from nri_policy.engine.event import Prepared, StoredGrant, Unprepared
from nri_policy.foundation.refusal import Refused
from nri_policy.kube.errors import APIError
from nri_policy.node import Node
from nri_policy.nri.errors import CallRefused
from nri_policy.plugin.decisions import Decisions
from nri_policy.proto import nri_pb2
from nri_policy.workload.claim import VARIABLE, ClaimPart, cdi_device, variable

log = logging.getLogger(__name__)

PATIENCE = 1.0  # seconds for the API server, while a container waits


class Allocations(Protocol):
    """Where it is looked up what a claim is allocated; `dra.driver.Driver`."""

    async def read(self, namespace: str, name: str, uid: str) -> tuple[ClaimPart, ...]:
        """Return what a claim is allocated here; raises Refused and APIError."""
        ...


class Claims:
    """The claims that one node holds; a `Holder` of `dra.driver`."""

    def __init__(
        self,
        node: Node,
        decisions: Decisions,
        executor: Executor,
        held: Callable[[], Mapping[str, StoredGrant]] = dict,
        recorded: Callable[[], Iterable[StoredGrant]] = tuple,
    ) -> None:
        """Take what an earlier daemon granted, until the runtime has listed its containers.

        *held* returns stored grants, *recorded* grants read from CDI files.
        """
        self.allocations: Allocations | None = None  # None: there is no driver
        self._node = node
        self._decisions = decisions
        self._executor = executor
        self._held = held
        self._recorded = recorded
        self._recovered: dict[str, StoredGrant] = {}  # by id: what only CDI files know

    def stored(self) -> Mapping[str, StoredGrant]:
        """Return what an earlier daemon granted, by the holder's id."""
        return {**self._held(), **self._recovered}

    def recover(
        self, pods: Iterable[nri_pb2.PodSandbox], listed: Iterable[nri_pb2.Container]
    ) -> None:
        """Take up the claims that only CDI files know, and that a *listed* container shows.

        The store was lost. Whether the kubelet still holds other claims is unknown.
        """
        self._recovered = {}
        uids = {pod.id: pod.uid for pod in pods}
        shown = [(uids[each.pod_sandbox_id], _names(each)) for each in listed]
        if not any(names for _, names in shown):
            return
        known = {part.claim for part in self._parts()}
        found = [
            (each.part, each)
            for each in self._recorded()
            if each.part is not None and each.part.claim not in known
        ]
        used = {
            part.claim
            for part, _ in found
            if any(uid in part.pods and _shows(names, part) for uid, names in shown)
        }
        self._recovered = {part.id: each for part, each in found if part.claim in used}
        if self._recovered:
            parts = (part for part, _ in found if part.claim in used)
            names = sorted({f"{part.namespace}/{part.name}" for part in parts})
            log.warning("claims-recovered", extra={"claims": ",".join(names)})

    def end_recovery(self) -> None:
        """Forget what was recovered: the engine holds it now."""
        self._recovered = {}

    async def prepare(self, event: Prepared) -> None:
        """Hold a claim; raises Refused. Updates of others follow with the pod's own requests."""
        await self._decide(event)

    async def unprepare(self, event: Unprepared) -> None:
        """Give a claim back."""
        await self._decide(event)

    async def _decide(self, event: Prepared | Unprepared) -> None:
        async with self._node.turn:
            self._decisions.take(event)
            await self._executor.narrow()

    def of(self, pod: nri_pb2.PodSandbox, container: nri_pb2.Container) -> tuple[str, ...]:
        """Return the ids of the parts of claims that a container uses, and may use."""
        if not (self._node.view.claims or self.stored()):
            return ()
        return tuple(part.id for part in self._shown(container) if pod.uid in part.pods)

    async def check(self, pod: nri_pb2.PodSandbox, container: nri_pb2.Container) -> None:
        """Refuse a container that shows a claim of another pod; raises CallRefused.

        A claim may have been handed on since it was prepared: the API server is asked once.
        """
        if not self._node.view.claims:
            return
        foreign = [part for part in self._shown(container) if pod.uid not in part.pods]
        for claim in dict.fromkeys((each.namespace, each.name, each.claim) for each in foreign):
            why = "it is reserved for another pod"
            try:
                if self.allocations is not None:
                    parts = await self._read(self.allocations, *claim)
                    self._decisions.take(Prepared(parts=parts))
            except (APIError, Refused, TimeoutError) as error:
                why = str(error) or type(error).__name__
            if not all(pod.uid in each.pods for each in self._shown(container)):
                raise CallRefused(f"claim {claim[0]}/{claim[1]}: {why}")

    async def _read(
        self, allocations: Allocations, namespace: str, name: str, uid: str
    ) -> tuple[ClaimPart, ...]:
        reading = asyncio.create_task(allocations.read(namespace, name, uid), name="claim")
        try:
            if not await self._executor.clock.done_within(PATIENCE, reading):
                raise TimeoutError
        finally:
            reading.cancel()
        return reading.result()

    def _shown(self, container: nri_pb2.Container) -> Iterator[ClaimPart]:
        """Yield the parts of held claims that a container shows."""
        if names := _names(container):
            yield from (part for part in self._parts() if _shows(names, part))

    def _parts(self) -> Iterator[ClaimPart]:
        """Yield the parts of claims that are held, or will be once the runtime has listed all."""
        claims = self._node.view.claims
        yield from (each.container.claim_part for each in claims.values())
        stored = (each.part for key, each in self.stored().items() if key not in claims)
        yield from (each for each in stored if each is not None)


def _names(container: nri_pb2.Container) -> set[str]:
    """Return the variables and the CDI devices by which a container can show claims."""
    names = {each.partition("=")[0] for each in container.env if each.startswith(VARIABLE)}
    return names | {each.name for each in container.CDI_devices}


def _shows(names: Collection[str], part: ClaimPart) -> bool:
    return variable(part) in names or cdi_device(part) in names
