"""Events of the cluster: `kubectl describe` shows them for the object that they are about.

Rule 1: no caller waits: `record` puts an event into a queue, and `run` creates the queued events.
Rule 2: the number is limited: BURST at once, then one every INTERVAL seconds, and the same event
only once in SAME seconds. If the queue is full, its oldest event is dropped. Rule 3: if the API
server gives no answer, the event is sent again; an event that it refuses is dropped.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from http.client import CONFLICT, FORBIDDEN, INTERNAL_SERVER_ERROR, TOO_MANY_REQUESTS
from itertools import count
from typing import NoReturn

from msgspec import Struct

from nri_policy.foundation.backoff import backoff
from nri_policy.foundation.clock import SYSTEM_CLOCK, Clock
from nri_policy.kube.client import Client, Object, ObjectKind
from nri_policy.kube.errors import APIError

log = logging.getLogger(__name__)

EVENTS = ObjectKind(plural="events")
COMPONENT = "nri-policy"
BURST = 25  # events at once
INTERVAL = 10.0  # seconds between further events
SAME = 600.0  # seconds in which an equal event is not recorded again
MAX_WAITING = 100  # events in the queue
MAX_REMEMBERED = 1000  # events kept to recognize equal ones
MAX_TEXT = 1024  # characters of a message, by the API
LOG_AGAIN = 300.0  # seconds before a failure is logged again
_MAX_NAME = 200  # characters of the subject's name in the event's
_DELAY = partial(backoff, least=1.0, most=60.0)


class Subject(Struct, frozen=True, kw_only=True):
    """The object that an event is about."""

    kind: str
    name: str
    uid: str
    namespace: str = ""
    version: str = "v1"  # of its API

    @staticmethod
    def pod(namespace: str, name: str, uid: str) -> Subject:
        """Return a pod."""
        return Subject(kind="Pod", namespace=namespace, name=name, uid=uid)

    @staticmethod
    def claim(namespace: str, name: str, uid: str) -> Subject:
        """Return a ResourceClaim."""
        version = "resource.k8s.io/v1"
        return Subject(
            kind="ResourceClaim", namespace=namespace, name=name, uid=uid, version=version
        )

    @staticmethod
    def node(name: str) -> Subject:
        """Return a Node; its events have its name as the UID, like those of the kubelet."""
        return Subject(kind="Node", name=name, uid=name)


class ClusterEvent(Struct, frozen=True, kw_only=True):
    """A message about an object."""

    about: Subject
    reason: str  # in CamelCase, for machines
    text: str
    warning: bool = True


class EventRecorder:
    """Creates events in one cluster, as one node's daemon."""

    def __init__(
        self,
        client: Client,
        node: str,
        *,
        clock: Clock = SYSTEM_CLOCK,
        delay: Callable[[int], float] = _DELAY,
    ) -> None:
        """Take the name of the node, and the pause after n failures."""
        self._client = client
        self._node = node
        self._clock = clock
        self._delay = delay
        self._waiting: deque[Object] = deque(maxlen=MAX_WAITING)
        self._some = asyncio.Event()  # set while events are waiting
        self._recorded: dict[ClusterEvent, float] = {}  # with their times, the oldest first
        self._numbers = count()
        self._paid_until = clock.now()  # when the created events would be done at one per INTERVAL
        self._log_at = clock.now()  # when a failure may be logged again

    def record(self, event: ClusterEvent) -> None:
        """Queue an event, unless an equal one was recorded lately."""
        now = self._clock.now()
        for each, at in [*self._recorded.items()]:
            if now - at < SAME and len(self._recorded) <= MAX_REMEMBERED:
                break
            del self._recorded[each]
        if event not in self._recorded:
            self._recorded[event] = now
            self._waiting.append(self._object(event))
            self._some.set()

    async def run(self) -> NoReturn:
        """Create the queued events."""
        failures = 0
        while True:
            await self._some.wait()
            await self._clock.sleep(
                max(0.0, self._paid_until - (BURST - 1) * INTERVAL - self._clock.now())
            )
            new = self._waiting.popleft()
            try:
                await self._client.create(EVENTS, new, namespace=new["metadata"]["namespace"])
            except APIError as error:
                self._log(new, error)
                if _passes(error):
                    failures += 1
                    if len(self._waiting) < MAX_WAITING:
                        self._waiting.appendleft(new)
                    await self._clock.sleep(max(error.wait, self._delay(failures)))
                    continue
            failures = 0
            self._paid_until = max(self._paid_until, self._clock.now()) + INTERVAL
            if not self._waiting:
                self._some.clear()

    def _object(self, event: ClusterEvent) -> Object:
        """Return the object of an event; its name is unique, so a retry makes no second one."""
        date = self._clock.date()
        name = event.about.name[:_MAX_NAME].rstrip("-.")
        made = event_object(event, date, {"component": COMPONENT, "host": self._node})
        made["metadata"]["name"] = f"{name}.{int(date * 1000):x}.{next(self._numbers):x}"
        return made

    def _log(self, new: Object, error: APIError) -> None:
        """Log that an event was not created, at most once in LOG_AGAIN."""
        now = self._clock.now()
        if error.code != CONFLICT and now >= self._log_at:
            self._log_at = now + LOG_AGAIN
            remedy = "configs/kubernetes/rbac.yaml has what is needed"
            log.warning(
                "event-not-created",
                extra={
                    "about": f"{new['metadata']['namespace']}/{new['involvedObject']['name']}",
                    "reason": f"{error}; {remedy}" if error.code == FORBIDDEN else str(error),
                },
            )


def event_object(event: ClusterEvent, date: float, source: Object) -> Object:
    """Return the object of an event from *source* at a *date*; it has no name yet."""
    about = event.about
    stamp = datetime.fromtimestamp(date, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    namespace = about.namespace or "default"
    involved = {"kind": about.kind, "apiVersion": about.version, "name": about.name}
    optional = {"uid": about.uid, "namespace": about.namespace}
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"namespace": namespace},
        "involvedObject": involved | {name: text for name, text in optional.items() if text},
        "type": "Warning" if event.warning else "Normal",
        "reason": event.reason,
        "message": event.text[:MAX_TEXT],
        "source": source,
        "firstTimestamp": stamp,
        "lastTimestamp": stamp,
        "count": 1,
    }


def _passes(error: APIError) -> bool:
    """Return whether the same request may succeed later."""
    return error.code in {0, TOO_MANY_REQUESTS} or error.code >= INTERNAL_SERVER_ERROR
