"""Topology: the node's NodeResourceTopology object and its copies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from nri_policy.nrt.publisher import PublicationPhase, Sink, TopologyPublisher, Trouble, publishing
from nri_policy.nrt.reading import Feed
from nri_policy.report import PublicationReport, ResourceTopology


class PublishedTopology:
    """One node's object."""

    def __init__(self, feed: Feed) -> None:
        self.feed = feed
        self._publishers: list[TopologyPublisher] = []

    async def document(self) -> ResourceTopology:
        """Return the present object."""
        reading = await self.feed.read()
        return await asyncio.to_thread(reading.document)

    @property
    def publications(self) -> list[PublicationReport]:
        """The report of each copy."""
        return [publisher.publication for publisher in self._publishers]

    def trouble(self) -> str:
        """Return why the object could not be published; callable from any thread.

        A cluster without the CRD, which most lack, is no trouble.
        """
        fine = ("", Trouble.NO_CRD)
        failing = [each for each in self.publications if each.trouble not in fine]
        return "; ".join(f"{each.to}: {each.error}" for each in failing)

    def pending(self) -> str:
        """Return which copies are not published yet, or failed; empty if all are published."""
        waiting = [each.to for each in self.publications if each.phase == PublicationPhase.WAITING]
        if waiting and not self.trouble():
            return f"not published yet to {', '.join(waiting)}"
        return self.trouble()

    @asynccontextmanager
    async def publishing(self, sinks: Iterable[Sink]) -> AsyncIterator[None]:
        """Keep the object up to date at *sinks*."""
        self._publishers = [TopologyPublisher(self.feed, sink) for sink in sinks]
        async with publishing(self._publishers, keep=self.feed.stays_after_exit):
            yield
