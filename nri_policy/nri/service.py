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
from enum import StrEnum
from typing import Any

from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from nri_policy.nri.clock import Clock
from nri_policy.nri.errors import Code, Refused
from nri_policy.nri.plugin import CALL, Call, Plugin
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

_METHODS = nri_pb2.DESCRIPTOR.services_by_name["Plugin"].methods_by_name

# Requests are Any: each lambda gets the message that its RPC is declared with.
_EVENTS: dict[str, Callable[[Plugin, Any], Awaitable[Message | None]]] = {
    "RunPodSandbox": lambda plugin, request: plugin.run_pod_sandbox(request.pod),
    "UpdatePodSandbox": lambda plugin, request: plugin.update_pod_sandbox(request),
    "StopPodSandbox": lambda plugin, request: plugin.stop_pod_sandbox(request.pod),
    "RemovePodSandbox": lambda plugin, request: plugin.remove_pod_sandbox(request.pod),
    "CreateContainer": lambda plugin, request: plugin.create_container(
        request.pod, request.container
    ),
    "StartContainer": lambda plugin, request: plugin.start_container(
        request.pod, request.container
    ),
    "UpdateContainer": lambda plugin, request: plugin.update_container(
        request.pod, request.container, request.linux_resources
    ),
    "StopContainer": lambda plugin, request: plugin.stop_container(request.pod, request.container),
    "RemoveContainer": lambda plugin, request: plugin.remove_container(
        request.pod, request.container
    ),
}

METHODS = ("Configure", "Synchronize", "StateChange", *_EVENTS)

# NRI before 0.12 sends these as StateChange, newer ones fall back to it.
_STATE_CHANGES = {
    nri_pb2.RUN_POD_SANDBOX: "RunPodSandbox",
    nri_pb2.STOP_POD_SANDBOX: "StopPodSandbox",
    nri_pb2.REMOVE_POD_SANDBOX: "RemovePodSandbox",
    nri_pb2.START_CONTAINER: "StartContainer",
    nri_pb2.REMOVE_CONTAINER: "RemoveContainer",
}


class Result(StrEnum):
    """What a request came to."""

    OK = "ok"
    REFUSED = "refused"  # the answer is an error that is meant
    FAILED = "failed"  # the answer is an internal error, or there is none


Observe = Callable[[str, Result, float], None]  # a method, what came of it, and after what seconds


def unobserved(method: str, result: Result, seconds: float) -> None:
    """Take no note."""


class Service:
    """The service towards one connection; *observe* is told of each request."""

    def __init__(
        self,
        plugin: Plugin,
        turn: asyncio.Lock,
        clock: Clock,
        observe: Observe = unobserved,
    ) -> None:
        self._observe = observe
        self._plugin = plugin
        self._turn = turn
        self._clock = clock
        self._parts = SynchronizeRequest()
        self._synchronize_began = 0.0
        self.runtime: Runtime | None = None  # until it has configured us
        self.synchronized = False
        self.trouble: str | None = None  # why this connection should be given up

    async def answer(self, method: str, payload: bytes, *, received: float, budget: float) -> bytes:
        """Return the response to a request that came at *received* with *budget* seconds.

        Raises Refused with the status to send instead.
        """
        if method not in METHODS:
            raise Refused(f"this plugin has no method {method[:64]!r}", code=Code.UNIMPLEMENTED)
        event, result = method, Result.FAILED
        try:
            request = _decode(method, payload)
            if isinstance(request, StateChangeEvent):
                event = _STATE_CHANGES.get(request.event, method)
                await self._state_change(request, received, budget)
                payload = b""
            else:
                response = await self._handle(method, request, received, budget)
                payload = response.SerializeToString()
            result = Result.OK
        except Refused as refusal:
            result = Result.FAILED if refusal.code == Code.INTERNAL else Result.REFUSED
            raise
        except Exception as error:
            # The boundary: one request that trips over a bug must not end the session.
            log.exception("event=failed method=%s", method)
            text = f"internal error in {method}: {type(error).__name__}"
            raise Refused(text, code=Code.INTERNAL) from error
        finally:
            self._observe(event, result, self._clock.now() - received)
        return payload

    async def _state_change(self, event: StateChangeEvent, received: float, budget: float) -> None:
        method = _STATE_CHANGES.get(event.event)
        if method is None:  # none that we subscribed to; an error could fail the pod
            return
        parts: dict[str, Message] = {"pod": event.pod}
        if method.endswith("Container"):
            parts["container"] = event.container
        request = GetMessageClass(_METHODS[method].input_type)(**parts)
        await self._handle(method, request, received, budget)

    async def _handle(
        self, method: str, request: Message, received: float, budget: float
    ) -> Message:
        """Run the method when it is its turn, but answer by the deadline if it can be helped."""
        now = self._clock.now
        call = Call(method=method, received=received, deadline=received + budget, clock=now)
        running = asyncio.create_task(self._run(call, request), name=f"nri {method}")
        try:
            if not await self._clock.done_within(received + LATE * budget - now(), running):
                late = self._plugin.late(method, request)
                sent = late is not None
                log.warning("event=late method=%s budget=%.3fs answered=%s", method, budget, sent)
                if late is not None:
                    running.add_done_callback(_log_overdue)
                    if method == "Synchronize" and not self._closes_unsynchronized():
                        self.trouble = "Synchronize was late: the runtime may not call us"
                    return late
                await asyncio.wait({running})
        except BaseException:
            if not running.cancel() and not running.cancelled():
                running.exception()  # asyncio complains of one that nobody has seen
            raise
        finally:
            call.answered = True
        if running.cancelled():
            raise Refused(f"{method} was cancelled", code=Code.INTERNAL)
        return running.result()

    async def _run(self, call: Call, request: Message) -> Message:
        CALL.set(call)
        response: Message | None
        async with self._turn:
            if isinstance(request, ConfigureRequest):
                response = await self._configure(request)
            elif isinstance(request, SynchronizeRequest):
                response = await self._synchronize(request, call)
            else:
                response = await _EVENTS[call.method](self._plugin, request)
        if response is None:
            return GetMessageClass(_METHODS[call.method].output_type)()
        return response

    async def _configure(self, request: ConfigureRequest) -> ConfigureResponse:
        runtime = Runtime.from_request(request)
        await self._plugin.configure(request, runtime)
        self.runtime = runtime
        self._parts.Clear()
        return ConfigureResponse(events=runtime.events)

    async def _synchronize(self, part: SynchronizeRequest, call: Call) -> SynchronizeResponse:
        """Collect the parts (NRI >= 0.7); the last one is answered for all of them."""
        if not self._parts.ByteSize():
            self._synchronize_began = call.received
        if self._parts.ByteSize() + part.ByteSize() > MAX_SYNCHRONIZE:
            self._parts.Clear()
            self.trouble = "synchronization failed"
            raise Refused(
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
            self.trouble = self._deaf(call)
        self.synchronized = True
        return SynchronizeResponse(update=updates)

    def _deaf(self, call: Call) -> str | None:
        """Tell whether the runtime may have given up on us without closing the connection."""
        if self._closes_unsynchronized():
            return None
        # Its one timeout covers all parts; the last part's budget is only what was left of it.
        allowed = call.deadline - self._synchronize_began
        used = self._clock.now() - self._synchronize_began
        if used <= LATE * allowed:
            return None
        return f"Synchronize took {used:.3f} of {allowed:.3f} seconds: the runtime may not call us"

    def _closes_unsynchronized(self) -> bool:
        return self.runtime is not None and self.runtime.closes_unsynchronized


def _decode(method: str, payload: bytes) -> Message:
    try:
        return GetMessageClass(_METHODS[method].input_type).FromString(payload)
    except DecodeError as error:
        raise Refused(f"{method} request is garbled", code=Code.INVALID_ARGUMENT) from error


def _log_overdue(method: asyncio.Task[Message]) -> None:
    if method.cancelled():
        return
    error = method.exception()
    if error is None or isinstance(error, Refused):
        log.warning("event=overdue-finished task=%r refused=%r", method.get_name(), error)
    else:
        log.warning("event=overdue-failed task=%r", method.get_name(), exc_info=error)
