"""Watching the cluster: nodes, pods and zones, stripped to what is used.

Owns what is known to be complete, and since when it may be outdated: a kind that cannot be followed
is said to be so, and tried again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from functools import partial
from typing import Any

from nri_policy.backoff import backoff
from nri_policy.cluster.document import DocumentError
from nri_policy.cluster.node import read_node
from nri_policy.cluster.pod import read_pod
from nri_policy.cluster.promises import LiveZones
from nri_policy.cluster.zone import read_zones
from nri_policy.kube.client import NODES, Client, Kind, Listing
from nri_policy.kube.errors import APIError
from nri_policy.kube.follow import follow

log = logging.getLogger(__name__)

PODS = Kind(plural="pods")
ZONES = Kind(group="topology.node.k8s.io", version="v1alpha2", plural="noderesourcetopologies")
STALE_SECONDS = 30.0  # that a kind may not be followed before nothing is answered from it
_BACKOFF = partial(backoff, least=0.2, most=10.0)

Object = dict[str, Any]


class Watch:
    """Follows what `LiveZones` is made of."""

    def __init__(
        self,
        client: Client,
        zones: LiveZones,
        now: Callable[[], float],
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        delay: Callable[[int], float] = _BACKOFF,
    ) -> None:
        self.unreadable: Counter[str] = Counter()  # objects, by kind
        self._client = client
        self._zones = zones
        self._now = now
        self._sleep = sleep
        self._delay = delay
        self._listed: set[str] = set()
        self._lost: dict[str, tuple[float, str]] = {}  # kind -> since when it is not followed, why
        self._failures: Counter[str] = Counter()

    def problem(self) -> str:
        """Return what is missing or too old to be answered from; nothing if all is well."""
        kinds = (NODES.plural, PODS.plural, ZONES.plural)
        texts = [f"{kind} are not listed yet" for kind in kinds if kind not in self._listed]
        for kind, (since, why) in self._lost.items():
            if self._now() - since > STALE_SECONDS and kind in self._listed:
                texts.append(f"{kind} are not followed for {self._now() - since:.0f} s: {why}")
        return "; ".join(texts)

    def lost_seconds(self) -> dict[str, float]:
        """Return for how long each kind has not been followed."""
        return {kind: self._now() - since for kind, (since, _) in self._lost.items()}

    async def run(self) -> None:
        """Follow all kinds until cancelled."""
        async with asyncio.TaskGroup() as group:
            for kind in (NODES, PODS, ZONES):
                group.create_task(self._follow(kind))

    async def _follow(self, kind: Kind) -> None:
        name = kind.plural
        while True:
            try:
                async with aclosing(follow(self._client, kind, sleep=self._sleep)) as events:
                    async for event in events:
                        if isinstance(event, Listing):
                            self._take_all(name, event.items)
                        else:
                            self._take(name, *event)
                        self._failures[name] = 0
                        self._lost.pop(name, None)
            except APIError as error:
                self._lost.setdefault(name, (self._now(), str(error)))
                log.warning("event=not-followed kind=%s reason=%r", name, str(error))
            await self._sleep(self._delay(self._failures[name]))
            self._failures[name] += 1

    def _take_all(self, kind: str, items: list[Object]) -> None:
        for item in items:
            self._take(kind, "ADDED", item)
        metadata = [each.get("metadata") or {} for each in items]
        if kind == PODS.plural:
            self._zones.forget_pods(
                (each.get("namespace") or "default", each.get("name", "")) for each in metadata
            )
        else:
            self._zones.forget_all(kind, (each.get("name", "") for each in metadata))
        if kind not in self._listed:
            log.info("event=listed kind=%s objects=%d", kind, len(items))
        self._listed.add(kind)

    def _take(self, kind: str, change: str, item: Object) -> None:
        metadata = item.get("metadata") or {}
        name = metadata.get("name", "")
        try:
            if kind == PODS.plural:
                if change == "DELETED":
                    self._zones.remove_pod(metadata.get("namespace") or "default", name)
                else:
                    self._zones.set_pod(read_pod(item, ""))
            elif change == "DELETED":
                remove = (
                    self._zones.remove_node if kind == NODES.plural else self._zones.remove_zones
                )
                remove(name)
            elif kind == NODES.plural:
                self._zones.set_node(read_node(item, ""))
            else:
                self._zones.set_zones(read_zones(item, ""))
        except DocumentError as error:
            self.unreadable[kind] += 1
            log.warning("event=unreadable kind=%s name=%r reason=%r", kind, name, str(error))
            if kind == ZONES.plural and name:
                self._zones.remove_zones(name, stale=True)
