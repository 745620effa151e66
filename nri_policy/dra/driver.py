"""The driver: prepares and releases claims for the kubelet by the engine; spec dra.md §2.3, §4.

Owns the way from a claim's name to a decision, and to the kubelet's answer. Rule 1: the store has
the claim, with its CPUs, before the kubelet gets its answer. Rule 2: a held claim is answered
from the engine's state, without the API server, and always in the same way. A claim that the
kubelet has released, but containers still use, is read again. Rule 3: claims of one request wait
for the API server together, and one failure does not stop the others.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from http.client import NOT_FOUND
from typing import Protocol

from nri_policy.dra.allocation import AllocationError, read_allocation
from nri_policy.dra.cdi import CDIFiles
from nri_policy.engine.event import Prepared, Unprepared
from nri_policy.foundation.clock import SYSTEM_CLOCK, Clock
from nri_policy.foundation.refusal import Refused
from nri_policy.foundation.wording import problem_of
from nri_policy.kube.client import Client, ObjectKind
from nri_policy.kube.errors import APIError
from nri_policy.kube.events import ClusterEvent, Subject
from nri_policy.node import Node, Placed
from nri_policy.proto.dra_pb2 import (
    Claim,
    Device,
    NodePrepareResourceResponse,
    NodePrepareResourcesRequest,
    NodePrepareResourcesResponse,
    NodeUnprepareResourceResponse,
    NodeUnprepareResourcesRequest,
    NodeUnprepareResourcesResponse,
)
from nri_policy.workload.claim import ClaimPart, cdi_device

log = logging.getLogger(__name__)

CLAIMS = ObjectKind(group="resource.k8s.io", version="v1", plural="resourceclaims")
TRIES = 3  # of the API server for one claim
PATIENCE = 30.0  # seconds for these: the kubelet waits for 45
PAUSE = 2.0  # seconds between two


class Holder(Protocol):
    """Holds and releases claims; `plugin.claims.Claims`."""

    async def prepare(self, event: Prepared) -> None:
        """Hold a claim; raises Refused."""

    async def unprepare(self, event: Unprepared) -> None:
        """Release a claim."""


class Driver:
    """Prepares the claims of one node."""

    def __init__(  # noqa: PLR0913 - keywords: its collaborators
        self,
        node: Node,
        holder: Holder,
        client: Client,
        *,
        name: str,
        files: CDIFiles,
        ready: asyncio.Event,
        observe: Callable[[str, str, float], None] = lambda _method, _result, _seconds: None,
        record: Callable[[ClusterEvent], None] = lambda _: None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Take the node's name in the cluster; *ready* is set once its containers are known.

        *observe* is called for each claim: the method, `done` or `refused`, and the seconds.
        *record* creates an event for each refused claim.
        """
        self._node = node
        self._holder = holder
        self._client = client
        self._name = name
        self._files = files
        self._ready = ready
        self._observe = observe
        self._record = record
        self._clock = clock

    async def prepare(self, request: NodePrepareResourcesRequest) -> NodePrepareResourcesResponse:
        """Hold claims; the answer has a result for each requested claim."""
        prepared = await asyncio.gather(*map(self._prepare, request.claims))
        answers = zip(request.claims, prepared, strict=True)
        return NodePrepareResourcesResponse(claims={claim.uid: each for claim, each in answers})

    async def unprepare(
        self, request: NodeUnprepareResourcesRequest
    ) -> NodeUnprepareResourcesResponse:
        """Release claims; an unknown claim counts as released."""
        answer = NodeUnprepareResourcesResponse()
        for claim in request.claims:
            answer.claims[claim.uid].CopyFrom(await self._unprepare(claim))
        return answer

    def restart(self) -> None:
        """Write the CDI files of the held claims, and remove all others."""
        self._files.restart(self._wanted())

    def rewrite(self) -> None:
        """Write the CDI files of the held claims again: their CPUs may have changed."""
        self._files.rewrite(self._wanted())

    def _wanted(self) -> dict[str, list[Placed]]:
        """Return the parts of each claim, by uid, that new containers may use."""
        held: dict[str, list[Placed]] = {}
        for placed in self._node.view.claims.values():
            if not placed.grant.ending:
                held.setdefault(placed.container.claim_part.claim, []).append(placed)
        return held

    async def read(self, namespace: str, name: str, uid: str) -> tuple[ClaimPart, ...]:
        """Read a claim's allocation on this node; raises AllocationError, APIError."""
        found = await self._client.get(CLAIMS, name, namespace=namespace)
        return read_allocation(found, uid, self._name, self._node.view.layout)

    async def _prepare(self, claim: Claim) -> NodePrepareResourceResponse:
        began = time.perf_counter()
        try:
            self._require_ready()
            held = self._held(claim.uid)
            if not held or any(each.grant.ending for each in held):
                parts = await self._read(claim)
                await self._holder.prepare(Prepared(parts=parts))
                held = self._held(claim.uid)
            self._files.write(held)
        except (APIError, Refused, OSError) as error:
            self._observe("prepare", "refused", time.perf_counter() - began)
            text = problem_of(error) or type(error).__name__
            extra = {"claim": f"{claim.namespace}/{claim.name}", "reason": text}
            log.warning("claim-not-prepared", extra=extra)
            about = Subject.claim(claim.namespace, claim.name, claim.uid)
            self._record(ClusterEvent(about=about, reason="NotPrepared", text=text))
            return NodePrepareResourceResponse(error=text)
        self._observe("prepare", "done", time.perf_counter() - began)
        log.info(
            "claim-prepared",
            extra={
                "claim": f"{claim.namespace}/{claim.name}",
                "cpus": ",".join(str(each.grant.exclusive) for each in held),
            },
        )
        return NodePrepareResourceResponse(devices=_devices(held, self._name))

    async def _unprepare(self, claim: Claim) -> NodeUnprepareResourceResponse:
        began = time.perf_counter()
        try:
            self._require_ready()
            if self._held(claim.uid):
                await self._holder.unprepare(Unprepared(claim=claim.uid))
            self._files.remove(claim.uid)
        except (Refused, OSError) as error:
            self._observe("unprepare", "refused", time.perf_counter() - began)
            return NodeUnprepareResourceResponse(error=str(error))
        self._observe("unprepare", "done", time.perf_counter() - began)
        return NodeUnprepareResourceResponse()

    async def _read(self, claim: Claim) -> tuple[ClaimPart, ...]:
        """Read a claim's allocation; retries if the API server fails."""
        try:
            async with asyncio.timeout(PATIENCE):
                for attempt in range(1, TRIES + 1):
                    try:
                        return await self.read(claim.namespace, claim.name, claim.uid)
                    except APIError as error:
                        if error.code == NOT_FOUND or attempt == TRIES:
                            raise
                    await self._clock.sleep(PAUSE)
        except TimeoutError as error:
            raise APIError(f"no answer within {PATIENCE:g} s") from error
        raise AssertionError("it has returned or raised")

    def _require_ready(self) -> None:
        if not self._ready.is_set():
            raise AllocationError("the daemon does not know the containers of this node yet")

    def _held(self, uid: str) -> list[Placed]:
        """Return the parts of a claim that are held."""
        claims = self._node.view.claims.values()
        return [each for each in claims if each.container.claim_part.claim == uid]


def _devices(held: Iterable[Placed], pool: str) -> Iterator[Device]:
    """Yield the kubelet's devices for the parts of a claim, always in the same order."""
    parts = (each.container.claim_part for each in held)
    for part in sorted(parts, key=lambda each: (each.request, each.device)):
        device = Device(
            request_names=[part.request.partition("/")[0]],
            pool_name=pool,
            device_name=part.device,
            cdi_device_ids=[cdi_device(part)],
        )
        if part.share:
            device.share_id = part.share
        yield device
