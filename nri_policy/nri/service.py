"""The Plugin service, whatever carries it: from a request's bytes to its response's.

Owns the mapping of RPCs to a plugin's methods, the reassembly of a Synchronize in parts, deadlines,
and what becomes of a method's failure. Knows nothing of sockets, frames and stream ids.

Invariant: of all services that share a turn, one runs one method of the plugin at a time, in the
order in which they came. The turn ends with the method itself, even where its answer was given
without it: what is answered late still happens.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from enum import StrEnum
from functools import partial
from typing import Any, Protocol

from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from nri_policy.foundation.clock import Clock
from nri_policy.nri.errors import CallRefused, Code
from nri_policy.nri.plugin import Call, Plugin
from nri_policy.nri.versions import Runtime
from nri_policy.proto import nri_pb2
from nri_policy.proto.nri_pb2 import (
    ConfigureRequest,
    ConfigureResponse,
    StateChangeEvent,
    SynchronizeRequest,
    SynchronizeResponse,
)

log = logging.getLogger(__name__)

LATE = 0.8  # the part of a request's time after which we rather answer something
MAX_SYNCHRONIZE = 256 << 20  # bytes of all parts together

# Requests are Any: each lambda gets the message that its RPC is declared with.
_EVENTS: dict[str, Callable[[Plugin, Any], Awaitable[Message | None]]] = {
    "RunPodSandbox": lambda plugin, request: plugin.run_pod_sandbox(request.pod),
    "UpdatePodSandbox": lambda plugin, request: plugin.update_pod_sandbox(request),
    "StopPodSandbox": lambda plugin, request: plugin.stop_pod_sandbox(request.pod),
    "RemovePodSandbox": lambda plugin, request: plugin.remove_pod_sandbox(request.pod),
    "CreateContainer": lambda plugin, request: plugin.create_container(
        request.pod, request.container
    ),
    "PostCreateContainer": lambda plugin, request: plugin.post_create_container(
        request.pod, request.container
    ),
    "StartContainer": lambda plugin, request: plugin.start_container(
        request.pod, request.container
    ),
    "PostStartContainer": lambda plugin, request: plugin.post_start_container(
        request.pod, request.container
    ),
    "UpdateContainer": lambda plugin, request: plugin.update_container(
        request.pod, request.container, request.linux_resources
    ),
    "PostUpdateContainer": lambda plugin, request: plugin.post_update_container(
        request.pod, request.container
    ),
    "StopContainer": lambda plugin, request: plugin.stop_container(request.pod, request.container),
    "RemoveContainer": lambda plugin, request: plugin.remove_container(
        request.pod, request.container
    ),
}

METHODS = ("Configure", "Synchronize", "StateChange", *_EVENTS)

_DECLARED = nri_pb2.DESCRIPTOR.services_by_name["Plugin"].methods_by_name
_REQUESTS = {method: GetMessageClass(_DECLARED[method].input_type) for method in METHODS}

# NRI before 0.12 sends these as StateChange, newer ones fall back to it.
_STATE_CHANGES = {
    nri_pb2.RUN_POD_SANDBOX: "RunPodSandbox",
    nri_pb2.STOP_POD_SANDBOX: "StopPodSandbox",
    nri_pb2.REMOVE_POD_SANDBOX: "RemovePodSandbox",
    nri_pb2.POST_CREATE_CONTAINER: "PostCreateContainer",
    nri_pb2.START_CONTAINER: "StartContainer",
    nri_pb2.POST_START_CONTAINER: "PostStartContainer",
    nri_pb2.POST_UPDATE_CONTAINER: "PostUpdateContainer",
    nri_pb2.REMOVE_CONTAINER: "RemoveContainer",
}


class RequestResult(StrEnum):
    """What a request came to."""

    OK = "ok"
    REFUSED = "refused"  # the answer is an error that is meant
    FAILED = "failed"  # the answer is an internal error, or there is none


Turn = AbstractAsyncContextManager[None]  # what to enter for a method to run; again and again
Respond = Callable[[bytes | CallRefused], None]  # sends the response, or a status instead
# a method, what came of it, and after what seconds
Observe = Callable[[str, RequestResult, float], None]


def unobserved(method: str, result: RequestResult, seconds: float) -> None:
    """Take no note."""


def _ignore_list(*, late: bool) -> None:
    """Take no note."""


class ListObserver(Protocol):
    """What is told of each Synchronize."""

    def __call__(self, *, late: bool) -> None:
        """Take note that it was answered, and whether too late to be sure of the connection."""


class PluginService:
    """The service towards one connection.

    *observe* is told of each request, *listed* of the Synchronize.
    """

    def __init__(
        self,
        plugin: Plugin,
        turn: Turn,
        clock: Clock,
        observe: Observe = unobserved,
        listed: ListObserver = _ignore_list,
    ) -> None:
        self._observe = observe
        self._listed = listed
        self._plugin = plugin
        self._turn = turn
        self._clock = clock
        self._parts = SynchronizeRequest()
        self._synchronize_began = 0.0
        self.runtime: Runtime | None = None  # until it has configured us
        self.synchronized = False
        self.trouble: str | None = None  # why this connection should be given up
        # why the runtime may not call us, though the connection is open (nri.md §3.3)
        self.doubt: str | None = None
        self._late_list = False

    async def answer(self, method: str, payload: bytes, *, budget: float) -> bytes:
        """Return the response to a request that came just now with *budget* seconds.

        Raises Refused with the status to send instead.
        """
        answered: asyncio.Future[bytes | CallRefused] = asyncio.get_running_loop().create_future()
        received = self._clock.now()

        def respond(outcome: bytes | CallRefused) -> None:
            if not answered.cancelled():
                answered.set_result(outcome)

        serving = asyncio.create_task(
            self.serve(
                method, payload, came=received, received=received, budget=budget, to=respond
            ),
            name=f"nri {method}",
        )
        try:
            answer = await answered
        except asyncio.CancelledError:
            serving.cancel()
            raise
        if isinstance(answer, CallRefused):
            raise answer
        return answer

    async def serve(  # noqa: PLR0913 - keywords: times and the reply
        self,
        method: str,
        payload: bytes,
        *,
        came: float,
        received: float,
        budget: float,
        to: Respond,
    ) -> None:
        """Handle a request with *budget* seconds.

        It was read at *received*, and may have been here since it *came*.
        The response, or the status to send instead, goes *to* the caller: when the method ends, or
        by the deadline without it, if that can be helped. A task that is cancelled sends nothing.
        """
        if method not in METHODS:
            text = f"this plugin has no method {method[:64]!r}"
            to(CallRefused(text, code=Code.UNIMPLEMENTED))
            return
        clock = self._clock
        call = Call(
            method=method, came=came, received=received, deadline=received + budget, clock=clock
        )

        def answer(outcome: bytes | CallRefused) -> None:
            call.answered = True
            to(outcome)
            result = RequestResult.OK
            if isinstance(outcome, CallRefused):
                result = (
                    RequestResult.FAILED if outcome.code == Code.INTERNAL else RequestResult.REFUSED
                )
            self._observe(call.method, result, clock.now() - received)

        try:
            outcome = await self._outcome(call, payload, answer)
        except asyncio.CancelledError:
            if not call.answered:
                self._observe(call.method, RequestResult.FAILED, clock.now() - received)
            call.answered = True
            raise
        if call.answered:
            reason = outcome.message if isinstance(outcome, CallRefused) else ""
            log.warning("overdue-finished", extra={"method": call.method, "refused": reason})
        else:
            answer(outcome)

    async def _outcome(self, call: Call, payload: bytes, answer: Respond) -> bytes | CallRefused:
        """Return what a request comes to; *answer* what can be answered before, if it is late."""
        try:
            request = _decode(call.method, payload)
            if isinstance(request, StateChangeEvent):
                if request.event not in _STATE_CHANGES:  # an error could fail the pod
                    return b""
                call.method, request = _as_call(request)
            seconds = call.received + LATE * (call.deadline - call.received) - call.clock.now()
            late = partial(self._late, call, request, answer)
            in_time = self._clock.call_later(seconds, late)
            try:
                response = await self._run(call, request)
            finally:
                in_time()
            return b"" if response is None else response.SerializeToString()
        except CallRefused as refusal:
            return refusal
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return CallRefused(f"{call.method} was cancelled", code=Code.INTERNAL)
        except Exception as error:  # noqa: BLE001 - the boundary: a bug must not end the session
            return _bug(call, error)

    def _late(self, call: Call, request: Message, answer: Respond) -> None:
        """Answer without waiting for the method, if there is an answer that does no harm."""
        instead: bytes | CallRefused | None = None
        try:
            response = self._plugin.late(call.method, request)
            if response is not None:
                instead = response.SerializeToString()
        except Exception as error:  # noqa: BLE001 - as above
            instead = _bug(call, error)
        log.warning(
            "late",
            extra={
                "method": call.method,
                "budget": f"{call.deadline - call.received:.3f}s",
                "answered": instead is not None,
            },
        )
        if instead is None:
            return
        if call.method == "Synchronize":
            self._note_late_list("Synchronize was late: the runtime may not call us")
        answer(instead)

    def _note_late_list(self, doubt: str) -> None:
        if not self._closes_unsynchronized():
            self.doubt = doubt
        if not self._late_list:
            self._late_list = True
            self._listed(late=True)

    async def _run(self, call: Call, request: Message) -> Message | None:
        async with self._turn:
            self._plugin.begin(call)
            try:
                if isinstance(request, ConfigureRequest):
                    return await self._configure(request)
                if isinstance(request, SynchronizeRequest):
                    return await self._synchronize(request, call)
                return await _EVENTS[call.method](self._plugin, request)
            finally:
                self._plugin.end()

    async def _configure(self, request: ConfigureRequest) -> ConfigureResponse:
        runtime = Runtime.from_request(request)
        await self._plugin.configure(request, runtime)
        self.runtime = runtime
        self._parts.Clear()
        return ConfigureResponse(events=runtime.events)

    async def _synchronize(self, part: SynchronizeRequest, call: Call) -> SynchronizeResponse:
        """Collect the parts (NRI >= 0.7); the last one is answered for all of them."""
        if not self._parts.ByteSize():
            self._synchronize_began = call.came
        if self._parts.ByteSize() + part.ByteSize() > MAX_SYNCHRONIZE:
            self._parts.Clear()
            self.trouble = "synchronization failed"
            raise CallRefused(
                f"Synchronize of more than {MAX_SYNCHRONIZE} bytes", code=Code.RESOURCE_EXHAUSTED
            )
        self._parts.MergeFrom(part)
        if part.more:
            return SynchronizeResponse(more=True)
        whole, self._parts = self._parts, SynchronizeRequest()
        try:
            updates = await self._plugin.synchronize(whole.pods, whole.containers)
        except BaseException:
            self.trouble = "synchronization failed"
            raise
        if not call.answered:
            self._check_time(call)
        self.synchronized = True
        return SynchronizeResponse(update=updates)

    def _check_time(self, call: Call) -> None:
        """Tell whether the runtime may have given up on us while it waited for the answer."""
        # Its one timeout covers all parts; the last part's budget is only what was left of it.
        allowed = call.came + (call.deadline - call.received) - self._synchronize_began
        used = self._clock.now() - self._synchronize_began
        if used > LATE * allowed:
            text = f"Synchronize took {used:.3f} of {allowed:.3f} seconds"
            self._note_late_list(f"{text}: the runtime may not call us")
        elif not self._late_list:
            self._listed(late=False)

    def _closes_unsynchronized(self) -> bool:
        return self.runtime is not None and self.runtime.closes_unsynchronized


def _decode(method: str, payload: bytes) -> Message:
    try:
        return _REQUESTS[method].FromString(payload)
    except DecodeError as error:
        raise CallRefused(f"{method} request is malformed", code=Code.INVALID_ARGUMENT) from error


def _as_call(event: StateChangeEvent) -> tuple[str, Message]:
    """Return the method that *event* stands for, and its request."""
    method = _STATE_CHANGES[event.event]
    parts: dict[str, Message] = {"pod": event.pod}
    if method.endswith("Container"):
        parts["container"] = event.container
    return method, _REQUESTS[method](**parts)


def _bug(call: Call, error: Exception) -> CallRefused:
    log.error("failed", extra={"method": call.method}, exc_info=error)
    text = f"internal error in {call.method}: {type(error).__name__}"
    return CallRefused(text, code=Code.INTERNAL)
