"""Sending the writes of the controller: only from the leader, so many writes at a time.

A refused write is handed back: after a pause the controller decides anew from the current objects.
A write without an answer from the API server is repeated. A write based on an outdated revision
waits for news of its object. No write waits for another object's. A new leader writes nothing
before the controller has all promises of the leader before.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from http.client import CONFLICT, INTERNAL_SERVER_ERROR, NOT_FOUND, TOO_MANY_REQUESTS

from nri_policy.cluster.groups.controller import Controller
from nri_policy.cluster.groups.writes import (
    CreateGroup,
    DeletePod,
    FailPod,
    Notice,
    OpenGate,
    Write,
    WriteSpec,
    WriteStatus,
)
from nri_policy.cluster.objects.document import Object
from nri_policy.cluster.requests.group import API_VERSION, KIND
from nri_policy.cluster.service.kinds import GROUPS
from nri_policy.foundation.backoff import backoff
from nri_policy.foundation.clock import SYSTEM_CLOCK, Clock
from nri_policy.kube.client import PODS, Client
from nri_policy.kube.errors import APIError
from nri_policy.kube.events import EVENTS, ClusterEvent, Subject, event_object

log = logging.getLogger(__name__)

AT_ONCE = 32  # writes
IDLE = 1.0  # seconds between looks without events: at the Lease, and at groups that wait
_SOURCE = {"component": "nri-policy-cluster"}  # of Events; restriction.yaml checks it
_NORMAL = ("Placed", "Replaced", "Healthy", "Incomplete")  # reasons of Events
_BACKOFF = partial(backoff, least=0.5, most=30.0)


class Writer:
    """Does what a controller wants while *leading*."""

    def __init__(
        self,
        client: Client,
        controller: Controller,
        leading: Callable[[], bool],
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.written: Counter[tuple[str, str]] = Counter()  # by kind of write and outcome
        self._client = client
        self.controller = controller
        self._leading = leading
        self._clock = clock
        self._woken = asyncio.Event()
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._current = False  # the controller has every group as of the start of leading
        self._writes: set[asyncio.Task[None]] = set()  # under way

    def wake(self) -> None:
        """Have it look: something has changed."""
        self._woken.set()

    async def run(self) -> None:
        """Write until cancelled."""
        failures = 0  # in a row, to know what there is when it begins to lead
        async with asyncio.TaskGroup() as group:
            while True:
                if not self._leading():
                    self._current = False
                elif await self._begin():
                    failures = 0
                    for write in self._step():
                        task = group.create_task(self._write(write))
                        self._writes.add(task)
                        task.add_done_callback(self._writes.discard)
                else:
                    failures += 1
                    await self._clock.sleep(_BACKOFF(failures))
                    continue
                if self._current and self.controller.busy:
                    await asyncio.sleep(0)  # others have their turn: probes, requests, news
                    continue
                with suppress(TimeoutError):
                    async with asyncio.timeout(IDLE):
                        await self._woken.wait()
                self._woken.clear()

    async def _begin(self) -> bool:
        """Whether it may write: it knows what others, and it itself, wrote before."""
        if not self._current:
            if self._writes:
                await asyncio.wait(self._writes)
            self._current = await self._is_current()
        return self._current

    def _step(self) -> Sequence[Write]:
        """Return what is to be written now; after an error of ours it begins anew."""
        try:
            return self.controller.step()
        except Exception:
            log.exception("step-failed")
            self.controller.errors += 1
            self._current = False
            return ()

    async def _is_current(self) -> bool:
        """Whether the controller has the current revision of every group."""
        try:
            listing = await self._client.list(GROUPS)
        except APIError as error:
            log.warning("not-listed", extra={"kind": GROUPS.plural, "reason": str(error)})
            return False
        revisions = {
            (each["metadata"]["namespace"], each["metadata"]["name"]): each["metadata"][
                "resourceVersion"
            ]
            for each in listing.items
        }
        if self.controller.groups.lacks(revisions):
            return False
        self.controller.settle()
        return True

    async def _write(self, write: Write) -> None:
        """Send one write, and count its outcome."""
        kind = type(write).__name__
        async with self._slots:
            if not self._leading():
                self.controller.note_no_answer(write)  # it may be asked for the second time
                self.written[kind, "not leading"] += 1
                return
            try:
                await self._ask(write)
            except APIError as error:
                self.written[kind, self._fail(write, error)] += 1
            except Exception as error:  # of ours: it is this write's alone
                self.controller.errors += 1
                self.controller.note_failure(write, f"internal error: {error!r}")
                self.written[kind, "failed"] += 1
                log.exception("not-written", extra={"kind": kind})
            else:
                self.written[kind, "done"] += 1

    def _fail(self, write: Write, error: APIError) -> str:
        """Take in that a write failed; return the outcome."""
        # An outdated revision, or the object is there: news of it follow. But there are none of a
        # new object if its ResourceQuota changes in the same moment, which is a conflict, too.
        news = error.reason == "AlreadyExists" or not isinstance(write, CreateGroup)
        if error.code == CONFLICT and news:
            return "outdated"
        if error.code == NOT_FOUND:
            self.controller.note_failure(write)
            return "outdated"
        if error.code in (0, TOO_MANY_REQUESTS) or error.code >= INTERNAL_SERVER_ERROR:
            self.controller.note_no_answer(write, error.wait)
        else:
            self.controller.note_failure(write, str(error))
        log.warning("not-written", extra={"kind": type(write).__name__, "reason": str(error)})
        return "failed"

    async def _ask(self, write: Write) -> None:
        match write:
            case CreateGroup():
                namespace = write.group.namespace
                await self._client.create(GROUPS, write.object(), namespace=namespace)
            case WriteSpec():
                name, namespace = write.group.name, write.group.namespace
                await self._client.merge(GROUPS, name, write.patch(), namespace=namespace)
            case WriteStatus():
                namespace, name = write.key
                await self._client.merge(
                    GROUPS, name, write.patch(), namespace=namespace, part="status"
                )
            case OpenGate():
                pod = write.opening.pod
                await self._client.merge(PODS, pod.name, write.patch(), namespace=pod.namespace)
            case FailPod():
                await self._write_pod_status(write)
            case DeletePod():
                pod = write.pod
                seen = await self._write_pod_status(write)
                revision = seen["metadata"]["resourceVersion"]
                await self._client.delete(
                    PODS, pod.name, namespace=pod.namespace, uid=pod.uid, revision=revision
                )
            case Notice():
                uid = self.controller.uid_of(write)
                event = event_object(_event(write, uid), self._clock.date(), _SOURCE)
                event["metadata"]["generateName"] = f"{write.about[1]}."
                await self._client.create(EVENTS, event, namespace=write.about[0])

    async def _write_pod_status(self, write: FailPod | DeletePod) -> Object:
        """Merge conditions into the status of a pod; return the pod after the write."""
        pod, patch = write.pod, write.patch()
        return await self._client.merge(
            PODS, pod.name, patch, namespace=pod.namespace, part="status", by_key=True
        )


def _event(notice: Notice, uid: str) -> ClusterEvent:
    namespace, name = notice.about
    kind, version = ("Pod", "v1") if notice.pod else (KIND, API_VERSION)
    return ClusterEvent(
        about=Subject(kind=kind, namespace=namespace, name=name, uid=uid, version=version),
        reason=notice.reason,
        text=notice.message,
        warning=notice.reason not in _NORMAL,
    )
