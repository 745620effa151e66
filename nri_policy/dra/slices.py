"""Slices: the devices that drivers publish of this node, and their locations.

Owns following the ResourceSlices of one node, and which slice of a pool counts. While the API
server cannot be reached, the last known slices count: devices do not move.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import aclosing
from functools import partial
from http.client import FORBIDDEN, NOT_FOUND
from typing import NoReturn

from msgspec import Raw

from nri_policy.dra.objects import DeviceLocation, ObjectError, ResourceSlice, read_name, read_slice
from nri_policy.foundation.backoff import backoff
from nri_policy.foundation.clock import SYSTEM_CLOCK, Clock
from nri_policy.kube.client import Client, ObjectKind, Page
from nri_policy.kube.errors import APIError
from nri_policy.kube.list_watch import list_and_watch

log = logging.getLogger(__name__)

SLICES = ObjectKind(group="resource.k8s.io", version="v1", plural="resourceslices")
MAX_REFUSALS = 5  # in a row, before they count for good
UNAVAILABLE = 3600.0  # seconds between tries in a cluster without slices for us
UNWANTED = 10.0  # seconds between checks of the settings
_DELAY = partial(backoff, least=1.0, most=60.0)


class Slices:
    """The ResourceSlices of one node."""

    def __init__(
        self,
        client: Client,
        node: str,
        *,
        clock: Clock = SYSTEM_CLOCK,
        delay: Callable[[int], float] = _DELAY,
    ) -> None:
        """Take the node's name, and the pause after n failures."""
        self.settled = asyncio.Event()  # slices are listed, or cannot be
        self.available = False  # whether we may read slices; False: not known either
        self._client = client
        self._node = node
        self._clock = clock
        self._delay = delay
        self._slices: dict[str, ResourceSlice] = {}  # by name
        self._failures = 0  # in a row
        self._logged = ""  # why they could not be followed

    def where(self, driver: str, pool: str, device: str) -> DeviceLocation | None:
        """Return the published location of a device; None if the device is not published.

        The newest generation of a pool counts. While it is incomplete, older slices fill its gaps.
        """
        pools = [s for s in self._slices.values() if (s.driver, s.pool) == (driver, pool)]
        for generation in sorted({each.generation for each in pools}, reverse=True):
            slices = [each for each in pools if each.generation == generation]
            for each in slices:
                if device in each.devices:
                    return each.devices[device]
            if len(slices) >= slices[0].of:
                break
        return None

    async def run(self, wanted: Callable[[], bool]) -> NoReturn:
        """Follow them, once they are *wanted*."""
        while True:
            pause = UNWANTED
            if wanted():
                try:
                    await self._follow()
                except APIError as error:
                    pause = self._fail(error)
            await self._clock.sleep(pause)

    def _fail(self, error: APIError) -> float:
        """Record the failure of a watch; return the seconds until the next try.

        A starting API server refuses all clients for a moment, or lacks some kinds.
        """
        self._log(error)
        self._failures += 1
        if error.code in {FORBIDDEN, NOT_FOUND}:
            self.settled.set()
            if self._failures > MAX_REFUSALS:
                self._slices.clear()
                self.available = False
                return UNAVAILABLE
        return max(error.wait, self._delay(self._failures))

    async def _follow(self) -> None:
        listed: dict[str, ResourceSlice] = {}
        fields = f"spec.nodeName={self._node}"
        events = list_and_watch(self._client, SLICES, fields=fields, clock=self._clock)
        async with aclosing(events):
            async for event in events:
                match event:
                    case Page(items=items, revision=revision):
                        for item in items:
                            self._take(listed, item)
                        if revision:
                            self._slices, listed = listed, {}
                            self._logged, self._failures, self.available = "", 0, True
                            self.settled.set()
                    case ("DELETED", item):
                        self._drop(item)
                    case (_, item):
                        self._take(self._slices, item)

    def _take(self, slices: dict[str, ResourceSlice], item: Raw) -> None:
        try:
            read = read_slice(item)
        except ObjectError as error:
            self._drop(item)
            log.warning("slice-unreadable", extra={"reason": str(error)})
            return
        if read.node == self._node:
            slices[read.name] = read

    def _drop(self, item: Raw) -> None:
        try:
            self._slices.pop(read_name(item), None)
        except ObjectError as error:
            log.warning("slice-unreadable", extra={"reason": str(error)})

    def _log(self, error: APIError) -> None:
        """Log why slices cannot be followed, unless that was logged already."""
        reason = str(error)
        if error.code == NOT_FOUND:
            reason = "the cluster has no resource.k8s.io/v1: it is there from Kubernetes 1.34 on"
        elif error.code == FORBIDDEN:
            reason = f"{error}; configs/kubernetes/rbac.yaml has what is needed"
        if reason == self._logged:
            return
        self._logged = reason
        if error.code in {FORBIDDEN, NOT_FOUND}:
            level = logging.INFO if error.code == NOT_FOUND else logging.WARNING
            log.log(level, "no-hints-from-claims", extra={"reason": reason})
        else:
            log.warning("slices-not-followed", extra={"reason": reason})
