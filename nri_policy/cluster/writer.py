"""Carrying out what the controller decides: only while we lead, so many writes at a time.

A write that is refused is handed back: the controller decides anew from what is there by then. One
that the API server never answered is asked again. One that rests on what is no longer so waits for
the news of that. Whoever begins to lead writes nothing before it knows what others have promised.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from http.client import CONFLICT, INTERNAL_SERVER_ERROR, NOT_FOUND
from typing import Any

from nri_policy.backoff import backoff
from nri_policy.cluster.controller import Controller
from nri_policy.cluster.document import DocumentError
from nri_policy.cluster.group import API_VERSION, KIND, read_group
from nri_policy.cluster.sources import GROUPS
from nri_policy.cluster.watch import PODS
from nri_policy.cluster.writes import (
    CreateGroup,
    DeletePod,
    FailPod,
    Notice,
    OpenGate,
    Write,
    WriteStatus,
)
from nri_policy.kube.client import Client, Kind
from nri_policy.kube.errors import APIError

log = logging.getLogger(__name__)

EVENTS = Kind(plural="events")
AT_ONCE = 32  # writes
IDLE = 1.0  # seconds after which it looks again without news: whether we lead, who has waited long
_NORMAL = ("Placed", "Replaced", "Healthy", "Incomplete")  # reasons of Events
_BACKOFF = partial(backoff, least=0.5, most=30.0)

Object = dict[str, Any]


class Writer:
    """Does what a controller wants while *leading*."""

    def __init__(
        self,
        client: Client,
        controller: Controller,
        leading: Callable[[], bool],
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.written: Counter[tuple[str, str]] = Counter()  # kind of write, and what came of it
        self._client = client
        self.controller = controller
        self._leading = leading
        self._sleep = sleep
        self._woken = asyncio.Event()
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._current = False  # all groups are known as they were when we began to lead
        self._failures = 0  # times in a row that the API server did not do as it should

    def wake(self) -> None:
        """Have it look: something has changed."""
        self._woken.set()

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            if not self._leading():
                self._current = False
            else:
                self._current = done = self._current or await self._is_current()
                if self._current:
                    done = all(await asyncio.gather(*map(self._write, self.controller.step())))
                self._failures = 0 if done else self._failures + 1
            if self._failures:
                await self._sleep(_BACKOFF(self._failures))
                continue
            try:
                async with asyncio.timeout(IDLE):
                    await self._woken.wait()
            except TimeoutError:
                pass
            self._woken.clear()

    async def _is_current(self) -> bool:
        """Whether the controller knows all groups as they are now, whoever has written them."""
        try:
            listing = await self._client.list(GROUPS)
        except APIError as error:
            log.warning("not-listed", extra={"kind": GROUPS.plural, "reason": str(error)})
            return False
        items = {
            (each["metadata"]["namespace"], each["metadata"]["name"]): each
            for each in listing.items
        }
        revisions = {key: each["metadata"]["resourceVersion"] for key, each in items.items()}
        if any(_is_readable(items[key]) for key in self.controller.groups.lacks(revisions)):
            return False
        self.controller.settle()
        return True

    async def _write(self, write: Write) -> bool:
        """Carry out one write; return whether the API server did as it should."""
        kind = type(write).__name__
        async with self._slots:
            if not self._leading():
                self.controller.unanswered(write)  # it may be asked for the second time
                self.written[kind, "not leading"] += 1
                return True
            try:
                await self._ask(write)
            except APIError as error:
                if error.code == CONFLICT:  # it was about what is no longer so: we shall see
                    self.written[kind, "outdated"] += 1
                    return True
                if error.code == 0 or error.code >= INTERNAL_SERVER_ERROR:
                    self.controller.unanswered(write)
                else:
                    self.controller.failed(write)
                if error.code == NOT_FOUND:
                    self.written[kind, "outdated"] += 1
                    return True
                self.written[kind, "failed"] += 1
                log.warning("not-written", extra={"kind": kind, "reason": str(error)})
                return False
            self.written[kind, "done"] += 1
            return True

    async def _ask(self, write: Write) -> None:
        match write:
            case CreateGroup():
                namespace = write.group.namespace
                await self._client.create(GROUPS, write.object(), namespace=namespace)
            case WriteStatus():
                namespace, name = write.key
                await self._client.merge(
                    GROUPS, name, write.patch(), namespace=namespace, part="status"
                )
            case OpenGate():
                pod = write.opening.pod
                await self._client.merge(PODS, pod.name, write.patch(), namespace=pod.namespace)
            case FailPod():
                await self._client.merge(
                    PODS,
                    write.pod.name,
                    write.patch(),
                    namespace=write.pod.namespace,
                    part="status",
                )
            case DeletePod():
                pod = write.pod
                await self._client.delete(
                    PODS, pod.name, namespace=pod.namespace, uid=pod.uid, revision=pod.revision
                )
            case Notice():
                event = _event(write)
                await self._client.create(EVENTS, event, namespace=write.about[0])


def _is_readable(item: Object) -> bool:
    try:
        read_group(item)
    except DocumentError:
        return False
    return True


def _event(notice: Notice) -> Object:
    namespace, name = notice.about
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"namespace": namespace, "generateName": f"{name}."},
        "involvedObject": {
            "apiVersion": "v1" if notice.pod else API_VERSION,
            "kind": "Pod" if notice.pod else KIND,
            "namespace": namespace,
            "name": name,
        },
        "type": "Normal" if notice.reason in _NORMAL else "Warning",
        "reason": notice.reason,
        "message": notice.message,
        "source": {"component": "nri-policy-cluster"},
    }
