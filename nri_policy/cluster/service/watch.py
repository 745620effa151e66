"""Watching the cluster: objects by kind, passed on to the parts of the service that use them.

Owns which kinds are complete, and since when a kind may be outdated: a kind whose watch fails is
reported, and watched again. An object that cannot be handled delays no other.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import aclosing
from functools import partial
from http.client import FORBIDDEN, NOT_FOUND

from msgspec import Raw, Struct

from nri_policy.cluster.objects.document import DocumentError, convert
from nri_policy.cluster.objects.metadata import Key
from nri_policy.foundation.backoff import backoff
from nri_policy.foundation.clock import Clock
from nri_policy.kube.client import Client, ObjectKind, Page
from nri_policy.kube.errors import APIError
from nri_policy.kube.list_watch import list_and_watch

log = logging.getLogger(__name__)

STALE_SECONDS = 30.0  # that a kind may not be followed before nothing is answered from it
OPTIONAL_SECONDS = 60.0  # until a kind that the cluster did not have is asked for again
_BACKOFF = partial(backoff, least=0.2, most=10.0)


class WatchedKind(Struct, frozen=True):
    """A kind of objects, and the functions that take and remove one."""

    kind: ObjectKind
    take: Callable[[Raw], None]  # one came or changed; DocumentError if it makes no sense
    remove: Callable[[Key], None]  # one went
    known: Callable[[], Collection[Key]]  # those that were taken
    spoiled: Callable[[Key], None] | None = None  # one makes no sense
    optional: bool = False  # the API server may not serve the kind: then there are none
    # Told why we may not read the kind, nothing once we may. Without it, nothing goes on meanwhile.
    unreadable: Callable[[str], None] | None = None


class Watch:
    """Follows the objects of all sources."""

    def __init__(
        self,
        client: Client,
        sources: Sequence[WatchedKind],
        clock: Clock,
    ) -> None:
        self.unreadable: Counter[str] = Counter()  # objects, by kind
        self.errors = 0  # of ours, each about one object
        self._client = client
        self._sources = sources
        self._clock = clock
        self._listed: set[str] = set()
        self._lost: dict[str, tuple[float, str]] = {}  # kind -> since when it is not followed, why
        self._forbidden: dict[str, float] = {}  # kind -> since when only its own objects wait
        self._failures: Counter[str] = Counter()

    def problem(self, *kinds: ObjectKind) -> str:
        """Return what of *kinds* is missing or too old to be used; nothing if all is well."""
        names = [kind.plural for kind in kinds]
        texts = [f"{name} are not listed yet" for name in names if name not in self._listed]
        for name, (since, why) in self._lost.items():
            if self._clock.now() - since > STALE_SECONDS and name in self._listed and name in names:
                texts.append(
                    f"{name} are not followed for {self._clock.now() - since:.0f} s: {why}"
                )
        return "; ".join(texts)

    def lost_seconds(self) -> dict[str, float]:
        """Return for how long each kind has not been followed."""
        now = self._clock.now()
        lost = {kind: since for kind, (since, _) in self._lost.items()}
        return {kind: now - since for kind, since in (lost | self._forbidden).items()}

    async def run(self) -> None:
        """Follow all kinds until cancelled."""
        async with asyncio.TaskGroup() as group:
            for source in self._sources:
                group.create_task(self._follow(source))

    async def _follow(self, source: WatchedKind) -> None:
        name = source.kind.plural
        listed: set[Key] = set()  # by the pages so far
        while True:
            try:
                async with aclosing(
                    list_and_watch(self._client, source.kind, clock=self._clock)
                ) as events:
                    async for event in events:
                        if isinstance(event, Page):
                            listed |= self._take_page(source, event.items)
                            if event.revision:
                                self._end_list(source, listed)
                                listed = set()
                        elif event[0] == "DELETED":
                            self._remove(source, _key(event[1]))
                        else:
                            self._take(source, event[1])
                        self._failures[name] = 0
                        self._lost.pop(name, None)
            except APIError as error:
                if source.optional and error.code == NOT_FOUND:
                    self._end_list(source, set())
                    self._failures[name] = 0
                    self._lost.pop(name, None)
                    await self._clock.sleep(OPTIONAL_SECONDS)
                    continue
                if source.unreadable is not None and error.code == FORBIDDEN:
                    self._forbidden.setdefault(name, self._clock.now())
                    self._listed.add(name)
                    self._lost.pop(name, None)
                    source.unreadable(str(error))
                else:
                    self._lost.setdefault(name, (self._clock.now(), str(error)))
                log.warning("not-followed", extra={"kind": name, "reason": str(error)})
            listed = set()
            await self._clock.sleep(_BACKOFF(self._failures[name]))
            self._failures[name] += 1

    def _take_page(self, source: WatchedKind, items: Sequence[Raw]) -> set[Key]:
        """Take objects; return which they are."""
        for item in items:
            self._take(source, item)
        return {*map(_key, items)}

    def _end_list(self, source: WatchedKind, listed: Collection[Key]) -> None:
        """Remove known objects that were not *listed*."""
        for gone in {*source.known()}.difference(listed):
            self._remove(source, gone)
        name = source.kind.plural
        if self._forbidden.pop(name, None) is not None and source.unreadable is not None:
            source.unreadable("")
        if name not in self._listed:
            log.info("listed", extra={"kind": name, "objects": len(listed)})
        self._listed.add(name)

    def _take(self, source: WatchedKind, item: Raw) -> None:
        name = source.kind.plural
        try:
            source.take(item)
        except DocumentError as error:
            self.unreadable[name] += 1
            key = _key(item)
            log.warning("unreadable", extra={"kind": name, "object": key[1], "reason": str(error)})
            if source.spoiled is not None and key[1]:
                source.spoiled(key)
        except Exception:
            self.errors += 1
            log.exception("object-failed", extra={"kind": name, "object": _key(item)[1]})

    def _remove(self, source: WatchedKind, key: Key) -> None:
        try:
            source.remove(key)
        except Exception:
            self.errors += 1
            log.exception("object-failed", extra={"kind": source.kind.plural, "object": key[1]})


class _Name(Struct):  # no other metadata: an object with other wrong fields still has a name
    name: str = ""
    namespace: str | None = None


class _Named(Struct):
    metadata: _Name | None = None


def _key(item: Raw) -> Key:
    try:
        metadata = convert(item, _Named, "").metadata or _Name()
    except DocumentError:
        metadata = _Name()
    return metadata.namespace or "", metadata.name
