"""Readiness: shows on the Node whether this daemon is ready, so that pods may start.

Owns what is written to our own Node, and when (`kube.readiness` has how). Rule 1: nothing of the
daemon waits for it, and without rights or a cluster all else works. Rule 2: the daemon only removes
the taint; the cluster's service adds it when the Lease is no longer renewed. Rule 3: while idle it
writes only the Lease, and only if the service checks it. Rule 4: while the settings do not want it,
it does nothing.

| action | when |
|---|---|
| remove the taint, set the condition True | ready: synchronized, and the topology is published |
| set the condition False | not ready at the start, or for GRACE seconds |
| renew the Lease | every RENEW seconds, while ready |
| check the Node | for SILENT seconds after a late renewal, because the service may have marked it just then; and every LOOK seconds |
"""  # noqa: E501 - a table

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from http.client import FORBIDDEN, NOT_FOUND
from typing import NoReturn

from nri_policy.engine.event import Event, Reconfigured
from nri_policy.foundation.backoff import backoff
from nri_policy.foundation.clock import SYSTEM_CLOCK, Clock
from nri_policy.foundation.wording import quoted
from nri_policy.kube.client import LEASES, NODES, Client, Object
from nri_policy.kube.errors import APIError
from nri_policy.kube.readiness import (
    CONDITION,
    NAMESPACE,
    RENEW,
    SILENT,
    TAINT,
    WHILE_AWAY,
    set_condition,
    set_taint,
)
from nri_policy.node import NodeView, Outcome
from nri_policy.settings import Readiness as Wanted

log = logging.getLogger(__name__)

TICK = 1.0  # seconds between two checks of the daemon
GRACE = 60.0  # seconds without readiness after which the Node shows it
LOOK = 600.0  # seconds between two checks of a Node that is in order
_NEVER = float("-inf")
_BACKOFF = partial(backoff, least=1.0, most=60.0)
_RIGHTS = "configs/kustomize/readiness has the rights"


class _Write:
    """One kind of write: its next time, and its error."""

    def __init__(self) -> None:
        self.due = _NEVER
        self.failures = 0
        self.error = ""


class NodeReadiness:
    """Keeps one Node informed."""

    def __init__(  # noqa: PLR0913 - keywords: what it asks, and time
        self,
        client: Client | None,
        node: str,
        *,
        wanted: Callable[[], Wanted],
        missing: Callable[[], str],
        clock: Clock = SYSTEM_CLOCK,
        delay: Callable[[int], float] = _BACKOFF,
    ) -> None:
        """Take the Node's name, the settings, and a function with the reason for being not ready.

        *date* is in seconds since the epoch, *delay* the seconds after so many failures in a row.
        """
        self._client = client
        self._name = node
        self._wanted = wanted
        self._missing = missing
        self._clock = clock
        self._delay = delay
        self._node, self._lease = _Write(), _Write()
        self._said: object = None  # what was written to the Node last
        self._ready_at = _NEVER  # when the daemon was last ready
        self._renewed_at = _NEVER
        self._watch_until = _NEVER  # until then each renewal also checks the Node
        self._leased: bool | None = None  # whether our Lease exists; None: unknown
        self._reconfigured = asyncio.Event()

    def problems(self) -> Iterator[str]:
        """Yield the settings that are not in force, with the reasons."""
        if not _asks(self._wanted()):
            return
        if missing := self._missing():
            yield f"readiness: the Node is not told that this daemon is ready: {missing}"
        for error in dict.fromkeys((self._node.error, self._lease.error)):
            if error:
                yield f"readiness: {error}"

    async def run(self) -> NoReturn:
        """Follow ourselves and the settings."""
        while True:
            self._reconfigured.clear()
            await self.step()
            if _asks(self._wanted()) or self._leased:
                await self._clock.sleep(TICK)
            else:
                await self._reconfigured.wait()

    def observe(self, event: Event, outcome: Outcome, view: NodeView) -> None:
        """Look at the settings again where they may be others; an observer of the node."""
        del outcome, view
        if isinstance(event, Reconfigured):
            self._reconfigured.set()

    async def step(self) -> None:
        """Write what is due; a failure is kept, and tried again later."""
        wanted, missing, now = self._wanted(), self._missing(), self._clock.now()
        if not missing:
            self._ready_at = now
        if self._client is None:
            if _asks(wanted):
                self._fail(self._node, "no cluster is known: neither in a pod nor --kubeconfig")
            return
        client = self._client
        if now >= self._lease.due:
            if wanted.while_away and _asks(wanted):
                if not missing:
                    await self._try(self._lease, self._renew(client, wanted))
            elif self._leased or (self._leased is None and _asks(wanted)):
                await self._try(self._lease, self._opt_out(client))
        settled = not missing or now - self._ready_at >= GRACE
        news = (wanted, missing) != self._said and not self._node.failures
        if _asks(wanted) and settled and (news or now >= self._node.due):
            await self._try(self._node, self._inform(client, wanted, missing))

    async def leave(self) -> None:
        """Delete the Lease, because the daemon is stopped for good."""
        if self._leased and self._client is not None:
            await self._try(self._lease, self._opt_out(self._client))

    async def _try(self, part: _Write, write: Awaitable[None]) -> None:
        try:
            await write
        except APIError as error:
            part.failures += 1
            part.due = self._clock.now() + max(error.wait, self._delay(part.failures))
            remedy = f"; {_RIGHTS}" if error.code == FORBIDDEN else ""
            self._fail(part, f"{error}{remedy}")
        else:
            part.failures, part.error = 0, ""

    def _fail(self, part: _Write, error: str) -> None:
        if error != part.error:
            log.warning("readiness-not-written", extra={"node": self._name, "reason": error})
        part.error = error

    async def _inform(self, client: Client, wanted: Wanted, missing: str) -> None:
        """Write the taint and condition that the Node should have."""
        if wanted.taint and not missing and await set_taint(client, self._name, present=False):
            log.info("taint-removed", extra={"node": self._name, "taint": TAINT})
        if wanted.condition:
            changed = await set_condition(
                client,
                await client.get(NODES, self._name),
                status="False" if missing else "True",
                reason="NotReady" if missing else "Ready",
                message=missing or "containers are placed, and the topology is published",
                now=self._clock.date(),
            )
            if changed:
                ready = "no" if missing else "yes"
                log.info("condition-written", extra={"condition": CONDITION, "ready": ready})
        self._said = (wanted, missing)
        self._node.due = self._clock.now() + LOOK

    async def _renew(self, client: Client, wanted: Wanted) -> None:
        """Renew the Lease, or create it; after a gap have the Node looked at."""
        now, lease = self._clock.now(), self._lease_object(wanted)
        try:
            await client.merge(LEASES, self._name, lease, namespace=NAMESPACE)
        except APIError as error:
            if error.code != NOT_FOUND:
                raise
            owner = await client.get(NODES, self._name)
            lease["metadata"] |= {"name": self._name, "ownerReferences": [_owner(owner)]}
            await client.create(LEASES, lease, namespace=NAMESPACE)
        self._leased = True
        if now - self._renewed_at > 2 * RENEW:
            self._watch_until = now + SILENT
        if now < self._watch_until:
            self._node.due = min(self._node.due, now)
        self._renewed_at, self._lease.due = now, now + RENEW

    def _lease_object(self, wanted: Wanted) -> Object:
        names = {"taint": wanted.taint, "condition": wanted.condition}
        stamp = datetime.fromtimestamp(self._clock.date(), UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {
                "annotations": {WHILE_AWAY: ",".join(name for name, on in names.items() if on)}
            },
            "spec": {
                "holderIdentity": self._name,
                "leaseDurationSeconds": int(SILENT),
                "renewTime": stamp,
            },
        }

    async def _opt_out(self, client: Client) -> None:
        """Delete the Lease, so that the service does not mark the Node."""
        try:
            await client.delete(LEASES, self._name, namespace=NAMESPACE)
        except APIError as error:
            if error.code != NOT_FOUND:
                raise
        self._leased = False


def _asks(wanted: Wanted) -> bool:
    return wanted.taint or wanted.condition


def _owner(node: Object) -> Object:
    """Return the reference that has a Lease go with its Node."""
    try:
        name, uid = node["metadata"]["name"], node["metadata"]["uid"]
    except (KeyError, TypeError) as error:
        raise APIError(f"the answer is malformed: {quoted(node)} is no Node") from error
    return {"apiVersion": "v1", "kind": "Node", "name": name, "uid": uid}
