"""The Plugin service, whatever carries it: from a request's bytes to its response's.

Owns the mapping of RPCs to a plugin's methods, the reassembly of a Synchronize in parts, deadlines,
and the status of a method that fails. Knows nothing of sockets, frames and stream ids.

Invariant: services that share a turn run one method of the plugin at a time, in the order of
arrival. The turn ends with the method: one that was answered early, at its deadline, still ends.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator
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

LATE = 0.8  # the part of a request's time after which the plugin's safe answer is sent
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
# called with the method, its result and its duration in seconds
Observe = Callable[[str, RequestResult, float], None]


def unobserved(method: str, result: RequestResult, seconds: float) -> None:
    """Take no note."""


def _ignore_synchronize(*, late: bool) -> None:
    """Take no note."""


class SynchronizeObserver(Protocol):
    """A function that is called after each Synchronize."""

    def __call__(self, *, late: bool) -> None:
        """Note that it was answered; *late*: so late that the runtime may have given up on us."""


class PluginService:
    """The service towards one connection.

    *observe* is called after each request, *observe_synchronize* after each Synchronize.
    """

    def __init__(
        self,
        plugin: Plugin,
        turn: Turn,
        clock: Clock,
        observe: Observe = unobserved,
        observe_synchronize: SynchronizeObserver = _ignore_synchronize,
    ) -> None:
        self._observe = observe
        self._observe_synchronize = observe_synchronize
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
        self._late_synchronize = False

    async def answer(self, method: str, payload: bytes, *, budget: float) -> bytes:
        """Return the response to a request that came just now with *budget* seconds.

        Raises CallRefused with the status to send instead.
        """
        answered: asyncio.Future[bytes | CallRefused] = asyncio.get_running_loop().create_future()
        received = self._clock.now()

        def respond(outcome: bytes | CallRefused) -> None:
            if not answered.cancelled():
                answered.set_result(outcome)

        serving = self.begin(
            method, payload, came=received, received=received, budget=budget, to=respond
        )
        try:
            answer = await answered
        except asyncio.CancelledError:
            if serving is not None:
                serving.cancel()
            raise
        if isinstance(answer, CallRefused):
            raise answer
        return answer

    def begin(  # noqa: PLR0913 - keywords: times and the reply
        self,
        method: str,
        payload: bytes,
        *,
        came: float,
        received: float,
        budget: float,
        to: Respond,
    ) -> asyncio.Task[None] | None:
        """Handle a request with *budget* seconds; return the task of one that has to wait.

        It was read at *received*, and may have been in the socket since it *came*. The response, or
        the status to send instead, goes *to* the caller: when the method ends, or shortly before
        the deadline if the plugin has a safe answer. A task that is cancelled sends nothing.

        Most methods wait for nothing: they end here, without a task, and cannot be late.
        """
        if method not in METHODS:
            text = f"this plugin has no method {method[:64]!r}"
            to(CallRefused(text, code=Code.UNIMPLEMENTED))
            return None
        call = Call(
            method=method,
            came=came,
            received=received,
            deadline=received + budget,
            clock=self._clock,
        )
        answer = partial(self._answer, call, to)
        try:
            request = _REQUESTS[method].FromString(payload)
        except DecodeError:
            text = f"{method} request is malformed"
            answer(CallRefused(text, code=Code.INVALID_ARGUMENT))
            return None
        if isinstance(request, StateChangeEvent):
            if request.event not in _STATE_CHANGES:  # an error could fail the pod
                answer(b"")
                return None
            call.method = _STATE_CHANGES[request.event]
        serving = self._serve(call, request, answer)
        try:
            awaited = self._plugin.step(partial(serving.send, None))
        except StopIteration:
            return None
        seconds = received + LATE * budget - self._clock.now()
        in_time = self._clock.call_later(seconds, partial(self._late, call, request, answer))
        task = asyncio.create_task(_continue(serving, awaited), name=f"nri {call.method}")

        def end(_: object) -> None:
            in_time()
            if inspect.getcoroutinestate(serving) == inspect.CORO_SUSPENDED:
                # The task was cancelled before its first step: the method may have the turn.
                serving.close()
                self._note_cancelled(call)

        task.add_done_callback(end)
        return task

    async def _serve(self, call: Call, request: Message, answer: Respond) -> None:
        """Run the method in its turn, and answer unless that was done meanwhile."""
        outcome: bytes | CallRefused
        try:
            async with self._turn:
                self._plugin.begin(call)
                try:
                    response = await self._run(call, request)
                finally:
                    self._plugin.end()
            outcome = b"" if response is None else response.SerializeToString()
        except CallRefused as refusal:
            outcome = refusal
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                self._note_cancelled(call)
                raise
            outcome = CallRefused(f"{call.method} was cancelled", code=Code.INTERNAL)
        except Exception as error:  # noqa: BLE001 - the boundary: a bug must not end the session
            outcome = _bug(call, error)
        if call.answered:
            reason = outcome.message if isinstance(outcome, CallRefused) else ""
            log.warning("overdue-finished", extra={"method": call.method, "refused": reason})
        else:
            answer(outcome)

    def _run(self, call: Call, request: Message) -> Awaitable[Message | None]:
        if isinstance(request, ConfigureRequest):
            return self._configure(request)
        if isinstance(request, SynchronizeRequest):
            return self._synchronize(request, call)
        return _EVENTS[call.method](self._plugin, request)

    def _answer(self, call: Call, to: Respond, outcome: bytes | CallRefused) -> None:
        call.answered = True
        to(outcome)
        result = RequestResult.OK
        if isinstance(outcome, CallRefused):
            failed = outcome.code == Code.INTERNAL
            result = RequestResult.FAILED if failed else RequestResult.REFUSED
        self._note(call, result)

    def _note_cancelled(self, call: Call) -> None:
        if not call.answered:
            self._note(call, RequestResult.FAILED)
        call.answered = True

    def _note(self, call: Call, result: RequestResult) -> None:
        self._observe(call.method, result, self._clock.now() - call.received)

    def _late(self, call: Call, request: Message, answer: Respond) -> None:
        """Answer without waiting for the method, if there is an answer that does no harm."""
        if call.answered:
            return
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
            self._note_late_synchronize("Synchronize was late: the runtime may not call us")
        answer(instead)

    def _note_late_synchronize(self, doubt: str) -> None:
        if not self._closes_unsynchronized():
            self.doubt = doubt
        if not self._late_synchronize:
            self._late_synchronize = True
            self._observe_synchronize(late=True)

    async def _configure(self, request: ConfigureRequest) -> ConfigureResponse:
        runtime = Runtime.from_request(request)
        events = await self._plugin.configure(request, runtime)
        self.runtime = runtime
        self._parts.Clear()
        return ConfigureResponse(events=events)

    async def _synchronize(self, part: SynchronizeRequest, call: Call) -> SynchronizeResponse:
        """Collect the parts (NRI >= 0.7); handle all of them with the last one."""
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
        """Report whether the runtime may have given up on us while it waited for the answer."""
        # One timeout of the runtime covers all parts; the last part's budget is the rest of it.
        allowed = call.came + (call.deadline - call.received) - self._synchronize_began
        used = self._clock.now() - self._synchronize_began
        if used > LATE * allowed:
            text = f"Synchronize took {used:.3f} of {allowed:.3f} seconds"
            self._note_late_synchronize(f"{text}: the runtime may not call us")
        elif not self._late_synchronize:
            self._observe_synchronize(late=False)

    def _closes_unsynchronized(self) -> bool:
        return self.runtime is not None and self.runtime.closes_unsynchronized


def _bug(call: Call, error: Exception) -> CallRefused:
    log.error("failed", extra={"method": call.method}, exc_info=error)
    text = f"internal error in {call.method}: {type(error).__name__}"
    return CallRefused(text, code=Code.INTERNAL)


async def _continue(work: Coroutine[Any, Any, None], awaited: object) -> None:
    """Go on with begun *work*, which waits for what is *awaited*."""
    await _rest(work, awaited)  # a task takes no generator


@types.coroutine
def _rest(work: Coroutine[Any, Any, None], awaited: object) -> Generator[Any, Any, None]:
    while True:
        try:
            step = partial(work.send, (yield awaited))
        except BaseException as error:  # noqa: BLE001 - a cancellation as well
            step = partial(work.throw, error)
        try:
            awaited = step()
        except StopIteration:
            return
