"""Exporter: makes the text of a scrape.

A scrape runs on a thread of the endpoint. The loop only copies the few values that no other thread
may read; the thread makes the text, so no answer to the runtime waits for a scrape. If the loop
hangs, the scrape fails instead of waiting. The text of each format is made at most once in `AGE`,
one at a time: other scrapes get a copy.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING

from msgspec import Struct

from nri_policy.foundation.clock import Clock
from nri_policy.node import Node
from nri_policy.observability.gauges import InventorySnapshot, make_gauges, take_snapshot
from nri_policy.observability.metrics import Metrics

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric

PATIENCE = 2.0  # seconds that a scrape waits for the loop, or for another scrape
AGE = 1.0  # seconds for which a text is reused
_OPENMETRICS = "application/openmetrics-text"


class ScrapeError(Exception):
    """The daemon's loop did not answer in time."""


class _Taken(Struct, frozen=True, kw_only=True):
    """A picture with its time."""

    snapshot: InventorySnapshot
    at: float


class _Copy(Struct, frozen=True, kw_only=True):
    """The text of a scrape with its time."""

    body: bytes
    content_type: str
    at: float


class Exporter:
    """Makes the text of a scrape; must be constructed on the loop's thread.

    The node is read at most once in the setting `instrumentation.reportPeriod`; the counters are at
    most `AGE` old.
    """

    def __init__(self, metrics: Metrics, node: Node, clock: Clock) -> None:
        self._metrics = metrics
        self._node = node
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._taken: _Taken | None = None
        self._copies: dict[bool, _Copy] = {}  # by whether it is OpenMetrics
        self._making = threading.Lock()

    def text(self, accepted: str) -> tuple[bytes, str]:
        """Return a scrape and its content type, for an Accept header; raises ScrapeError.

        For any thread except the loop's.
        """
        # not prometheus_client's `choose_encoder`: it has many names for one format
        openmetrics = _OPENMETRICS in accepted
        if not self._making.acquire(timeout=PATIENCE):
            raise ScrapeError(f"the daemon is busy for more than {PATIENCE:g} seconds")
        try:
            copy = self._copies.get(openmetrics)
            if copy is None or self._clock.now() - copy.at >= AGE:
                copy = self._copies[openmetrics] = self._make(openmetrics=openmetrics)
        finally:
            self._making.release()
        return copy.body, copy.content_type

    def _make(self, *, openmetrics: bool) -> _Copy:
        # see `families`
        from prometheus_client import exposition as plain  # noqa: PLC0415
        from prometheus_client.openmetrics import exposition as modern  # noqa: PLC0415

        if openmetrics:
            body = modern.generate_latest(self._registry)  # type: ignore[no-untyped-call]
            content_type = modern.CONTENT_TYPE_LATEST
        else:
            body = plain.generate_latest(self._registry)
            content_type = plain.CONTENT_TYPE_PLAIN_0_0_4
        return _Copy(body=body, content_type=content_type, at=self._clock.now())

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics for prometheus_client's registry; raises ScrapeError."""
        reading = asyncio.run_coroutine_threadsafe(self._read(), self._loop)
        try:
            counted, snapshot = reading.result(PATIENCE)
        except TimeoutError:
            reading.cancel()
            raise ScrapeError(f"the daemon is busy for more than {PATIENCE:g} seconds") from None
        yield from (make() for make in counted)
        yield from make_gauges(snapshot)

    @cached_property
    def _registry(self) -> CollectorRegistry:
        from prometheus_client import CollectorRegistry, ProcessCollector  # noqa: PLC0415 - as above

        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        ProcessCollector(registry=registry)
        return registry

    async def _read(self) -> tuple[tuple[Callable[[], Metric], ...], InventorySnapshot]:
        """Return the counters, and a picture of the state that is not too old."""
        self._node.catch_up()
        layout = self._node.view.layout
        period = layout.settings.instrumentation.report_period
        taken = self._taken
        fresh = (
            taken is not None
            and taken.snapshot.layout is layout  # else it would show pools that no longer exist
            and self._clock.now() - taken.at < period
        )
        if taken is None or not fresh:
            snapshot = take_snapshot(self._node.view)
            taken = self._taken = _Taken(snapshot=snapshot, at=self._clock.now())
        return self._metrics.collect(), taken.snapshot
