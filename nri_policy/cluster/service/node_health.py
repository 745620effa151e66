"""Nodes whose daemon stopped renewing its Lease: their marks keep new pods away.

A node that is down cannot taint itself; when it is back, pods would come before its daemon. A
daemon counts as dead if its Lease (`kube.readiness`) has not changed for SILENT seconds by our own
clock. Only daemons that want this have a Lease. They take back all that is written here themselves,
and nothing here evicts.

All Leases are read again and again, instead of being watched: each answer shows that the API server
was there, and that this replica ran. A missed renewal may be our own failure, so:

| what went wrong | what is done |
|---|---|
| a reading fails, or comes late: the API server or we were away | every daemon has SILENT seconds anew |
| we lead only now | the same |
| more than half of those that were alive, and more than one, fall silent | none is marked, and it is logged: it is rather the way to them that fails, or all were stopped |
| a Lease was renewed since it was read | that node is not marked |
"""  # noqa: E501 - a table

from __future__ import annotations

import logging
from collections.abc import Callable
from http.client import NOT_FOUND
from typing import NoReturn

from msgspec import Struct

from nri_policy.foundation.clock import Clock
from nri_policy.kube.client import LEASES, NODES, Client, Object
from nri_policy.kube.errors import APIError
from nri_policy.kube.readiness import (
    NAMESPACE,
    SILENT,
    TAINT,
    WHILE_AWAY,
    condition_of,
    set_condition,
    set_taint,
)

log = logging.getLogger(__name__)

PERIOD = 15.0  # seconds between two readings
_LATE = 2 * PERIOD  # seconds between two readings after which we were away ourselves


class _LeaseSeen(Struct, frozen=True):
    """The Lease of a daemon."""

    revision: str
    at: float  # when this revision was first read
    marked: bool = False  # whether the Node is marked for it


class NodeHealth:
    """Marks Nodes of silent daemons while this replica leads."""

    def __init__(self, client: Client, leads: Callable[[], bool], clock: Clock) -> None:
        self._client = client
        self._leads = leads
        self._clock = clock
        self._seen: dict[str, _LeaseSeen] = {}  # by node
        self._read_at = clock.now()
        self._problem = ""

    async def run(self) -> NoReturn:
        """Look every PERIOD seconds."""
        while True:
            await self.look()
            await self._clock.sleep(PERIOD)

    async def look(self) -> None:
        """Read all Leases, and mark the Nodes whose daemon has been silent for long."""
        if not self._leads():
            self._seen.clear()
            return
        try:
            listing = await self._client.list(LEASES, namespace=NAMESPACE)
        except APIError as error:
            self._seen.clear()
            self._report(f"the Leases in {NAMESPACE} cannot be read: {error}")
            return
        now = self._clock.now()
        if now - self._read_at > _LATE:
            self._seen.clear()
        self._read_at = now
        self._record({each["metadata"]["name"]: each for each in listing.items}, now)
        alive = [name for name, seen in self._seen.items() if not seen.marked]
        silent = [name for name in alive if now - self._seen[name].at >= SILENT]
        if len(silent) > max(1, len(alive) // 2):
            self._report(
                f"{len(silent)} of {len(alive)} daemons are silent at once: no Node is marked"
            )
            return
        self._report("")
        for name in silent:
            if not self._leads():
                return
            try:
                await self._mark(name)
            except APIError as error:
                log.warning("node-not-marked", extra={"node": name, "reason": str(error)})

    def _record(self, leases: dict[str, Object], now: float) -> None:
        """Store the revisions of the Leases."""
        for name in self._seen.keys() - leases.keys():
            del self._seen[name]
        for name, lease in leases.items():
            revision = lease["metadata"]["resourceVersion"]
            if name not in self._seen or self._seen[name].revision != revision:
                self._seen[name] = _LeaseSeen(revision, now)

    async def _mark(self, name: str) -> None:
        """Mark a Node's daemon as away, unless its Lease was renewed; raises APIError."""
        seen = self._seen[name]
        try:
            lease = await self._client.get(LEASES, name, namespace=NAMESPACE)
            if lease["metadata"]["resourceVersion"] != seen.revision:
                return
            wanted = (lease["metadata"].get("annotations") or {}).get(WHILE_AWAY, "").split(",")
            if "taint" in wanted and await set_taint(self._client, name, present=True):
                log.warning("node-tainted", extra={"node": name, "taint": TAINT})
            node = await self._client.get(NODES, name) if "condition" in wanted else {}
            if condition_of(node):
                await set_condition(
                    self._client,
                    node,
                    status="Unknown",
                    reason="DaemonSilent",
                    message=f"the daemon has not been heard of for {SILENT:g} s",
                    now=self._clock.date(),
                )
        except APIError as error:
            if error.code != NOT_FOUND:  # the node went, or wants it no more
                raise
        self._seen[name] = _LeaseSeen(seen.revision, seen.at, marked=True)

    def _report(self, problem: str) -> None:
        """Log once why no Node is marked."""
        if problem and problem != self._problem:
            log.warning("nodes-not-judged", extra={"reason": problem})
        self._problem = problem
