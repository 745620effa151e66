"""The publisher of the node's ResourceSlice: one task, and the latest state wins; spec dra.md §2.6.

Owns when a slice is written, read back and put back. Rule 1: a lower value is written at once,
because the scheduler must not promise lost CPUs; a higher one waits a little. Rule 2: claims cause
no write, and an idle node writes nothing. Rule 3: if the API server has dropped a field of a slice,
the slice is removed again: with its gates off one claim would own a NUMA node.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import aclosing, suppress
from functools import partial
from http.client import FORBIDDEN, NOT_FOUND
from typing import NoReturn

import msgspec
from msgspec import Raw

from nri_policy.dra.cpu_devices import Published, published
from nri_policy.dra.resource_slice import dropped, faults, slice_name, slice_of, values_in
from nri_policy.dra.slices import MAX_REFUSALS, SLICES
from nri_policy.foundation.backoff import backoff
from nri_policy.foundation.clock import SYSTEM_CLOCK, Clock
from nri_policy.foundation.mismatch import JSON_ERRORS
from nri_policy.kube.client import NODES, Client, Object, Page
from nri_policy.kube.errors import APIError
from nri_policy.kube.list_watch import list_and_watch
from nri_policy.manifests.api_object import APIObject, Identity
from nri_policy.node import Node
from nri_policy.workload.claim import DRIVER

log = logging.getLogger(__name__)

MANAGER = "nri-policy"
INTERVAL = 0.25  # seconds between two writes at least
SETTLE = 2.0  # seconds: a higher value must last so long to be written; also the cost of a write
BURST = 8  # writes that may follow one another faster than one every SETTLE
CHECK = 600.0  # seconds after which an unchanged slice is applied again
UNAVAILABLE = 3600.0  # seconds between tries in a cluster that takes no slices
_BACKOFF = partial(backoff, least=0.5, most=30.0)


class DroppedFieldsError(Exception):
    """The API server drops fields that a shared device needs."""


class SlicePublisher:
    """Keeps one node's slice."""

    def __init__(  # noqa: PLR0913 - keywords: its collaborators
        self,
        node: Node,
        client: Client,
        *,
        name: str,
        wanted: Callable[[], bool],
        clock: Clock = SYSTEM_CLOCK,
        delay: Callable[[int], float] = _BACKOFF,
        count: Callable[[str], None] = lambda _result: None,
    ) -> None:
        """*name* is the node's in the cluster; *wanted* returns whether to publish a slice now.

        *delay* maps a number of failures in a row to seconds; *count* is called for each write.
        """
        self.problem = ""  # why there is no slice, or an old one
        self.values: dict[str, int] = {}  # published, by device
        self._node = node
        self._client = client
        self._name = name
        self._wanted = wanted
        self._clock = clock
        self._delay = delay
        self._count = count
        self._changed = asyncio.Event()
        self._writing = asyncio.Lock()
        self._owner: Object | None = None
        self._sent: Object | None = None  # the slice in the cluster; None: unknown, or none
        self._there = False  # whether there may be a slice of ours
        self._kept = asyncio.Event()  # there is one, and the API server keeps it whole
        self._ours: deque[str] = deque(maxlen=16)  # revisions that we have made
        self._written_at = self._higher_at = float("-inf")
        self._credit, self._credit_at = float(BURST), 0.0
        self._failures = 0
        self._not_before = float("-inf")

    def ask(self) -> None:
        """Check whether the values have changed, or the slice is no longer wanted."""
        self._changed.set()

    def hurry(self) -> None:
        """Write lower values at once, even if the limit of writes is reached."""
        self._credit = max(1.0, self._credit)
        self._changed.set()

    async def run(self) -> NoReturn:
        """Write after each change, and restore the slice if it is deleted."""
        following = asyncio.create_task(self._follow(), name="own slices")
        try:
            while True:
                self._changed.clear()
                await self._wait(await self._attempt())
        finally:
            following.cancel()
            await asyncio.wait({following})

    async def _wait(self, seconds: float) -> None:
        """Wait for a change: at least INTERVAL, at most *seconds*."""
        await self._clock.sleep(min(seconds, INTERVAL))
        if seconds > INTERVAL:
            await self._clock.set_within(seconds - INTERVAL, self._changed)

    async def remove(self) -> None:
        """Delete the slice; raises APIError."""
        self._sent, self.values = None, {}
        self._kept.clear()
        try:
            await self._client.delete(SLICES, slice_name(self._name))
        except APIError as error:
            if error.code != NOT_FOUND:
                raise
        self._there = False

    async def _attempt(self) -> float:
        """Write if a write is due; return the seconds until the next one."""
        now = self._clock.now()
        try:
            async with self._writing:
                if not self._wanted():
                    if self._there:
                        await self.remove()
                    self._not_before = now
                    return UNAVAILABLE
                values = published(self._node.view, self.values)
                due = max(self._not_before, self._due(values, now))
                if due <= now:
                    await self._write(values)
                return max(0.0, due - now)
        except DroppedFieldsError as error:
            return self._fail("dropped", str(error), UNAVAILABLE)
        except APIError as error:
            self._failures += 1
            hopeless = error.code in {FORBIDDEN, NOT_FOUND} and self._failures > MAX_REFUSALS
            pause = UNAVAILABLE if hopeless else max(error.wait, self._delay(self._failures))
            return self._fail("failed", _words(error), pause)
        except Exception:
            self._failures += 1
            log.exception("failed", extra={"part": "slice"})
            return self._delay(self._failures)

    def _due(self, values: tuple[Published, ...], now: float) -> float:
        """Return the time at which to write *values*."""
        new = {each.device.name: each.cpus for each in values if each.cpus}
        if self._sent is None:
            return self._written_at + INTERVAL
        if new == self.values:
            self._higher_at = float("-inf")
            return self._written_at + CHECK
        paid = now if self._gain(now) >= 1 else now + SETTLE * (1 - self._credit)
        if any(new.get(name, 0) < value for name, value in self.values.items()):
            return max(self._written_at + INTERVAL, paid)
        if self._higher_at == float("-inf"):
            self._higher_at = now
        return max(self._higher_at + SETTLE, paid)

    def _gain(self, now: float) -> float:
        """Return how many writes are allowed now; one more every SETTLE seconds."""
        gained = (now - self._credit_at) / SETTLE
        self._credit, self._credit_at = min(float(BURST), self._credit + gained), now
        return self._credit

    async def _write(self, values: tuple[Published, ...]) -> None:
        layout = self._node.view.layout
        if self._owner is None:
            self._owner = await self._find_owner()
        new = slice_of(layout, values, self._name, self._owner)
        if wrong := [*faults(new)]:
            raise APIError(f"this slice makes no sense: {'; '.join(wrong)}")
        self._there = True
        stored = await self._client.apply(SLICES, new, manager=MANAGER, force=True)
        now = self._clock.now()
        self._ours.append(str(stored.get("metadata", {}).get("resourceVersion", "")))
        self._written_at, self._higher_at = now, float("-inf")
        self._credit = self._gain(now) - 1
        if lost := dropped(new, stored):
            await self.remove()
            raise DroppedFieldsError(
                f"the API server drops {', '.join(lost)}: the gate DRAConsumableCapacity is off"
                " (it is on by default from Kubernetes 1.36 on)"
            )
        if self._sent != new:
            self._count("written")
        self._sent, self.values, self._failures = new, values_in(new), 0
        self._kept.set()
        if self.problem:
            log.info("slice-published", extra={"devices": len(self.values)})
        self.problem = ""

    async def _find_owner(self) -> Object:
        found = await self._client.get(NODES, self._name)
        metadata = found.get("metadata", {})
        return {
            "apiVersion": "v1",
            "kind": "Node",
            "name": self._name,
            "uid": str(metadata.get("uid", "")),
        }

    def _fail(self, result: str, reason: str, pause: float) -> float:
        """Record why nothing was written; return the seconds until the next attempt."""
        self._count(result)
        if reason != self.problem:
            log.warning("slice-not-published", extra={"reason": reason})
        self.problem = reason
        self._not_before = self._clock.now() + pause
        return pause

    async def _follow(self) -> None:
        """Watch our slice for its deletion, and for changes by other clients."""
        fields = f"spec.nodeName={self._name},spec.driver={DRIVER}"
        failures = 0
        while True:
            await self._kept.wait()
            try:
                events = list_and_watch(self._client, SLICES, fields=fields, clock=self._clock)
                async with aclosing(events):
                    async for event in events:
                        failures = 0
                        await self._hear(event)
            except APIError:
                failures += 1
            await self._clock.sleep(self._delay(failures))

    async def _hear(self, event: Page | tuple[str, Raw]) -> None:
        async with self._writing:  # our own writes are known by then
            if isinstance(event, Page):
                found = [each for item in event.items for each in _seen(item)]
                lost = not event.revision or self._is_other(found, gone=not found)
            else:
                change, item = event
                lost = self._is_other([*_seen(item)], gone=change == "DELETED")
            if lost and self._sent is not None:
                self._sent = None
                self._changed.set()

    def _is_other(self, found: list[Identity], *, gone: bool) -> bool:
        own = [each for each in found if each.name == slice_name(self._name)]
        return gone or any(each.resource_version not in self._ours for each in own)


def _seen(item: Raw) -> Iterator[Identity]:
    with suppress(*JSON_ERRORS):
        yield msgspec.json.decode(item, type=APIObject).metadata


def _words(error: APIError) -> str:
    if error.code == NOT_FOUND:
        return f"{error}: slices need Kubernetes 1.34 or newer, and this Node in the cluster"
    if error.code == FORBIDDEN:
        return f"{error}; configs/kustomize/dra has what is needed"
    return str(error)
