"""A loop without time and threads of its own: whoever steps it says what happens next.

Callbacks run in their order, at once, until nothing is ready. Then there are only *jobs*, what a
thread was asked to do, and *timers*: the explorer chooses which of them comes next.
"""

from __future__ import annotations

import asyncio
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, copy_context
from itertools import count
from typing import Any


class Callback:
    """Something to be called, unless it is cancelled; what asyncio takes for its handle."""

    __slots__ = ("_args", "_callback", "_context", "_number", "_when", "cancelled_")

    def __init__(
        self, callback: Callable[..., object], args: tuple[Any, ...], context: Context | None
    ) -> None:
        self._callback = callback
        self._args = args
        self._context = context or copy_context()
        self._when = 0.0
        self._number = 0
        self.cancelled_ = False

    def cancel(self) -> None:
        """Do not call it any more."""
        self.cancelled_ = True

    def cancelled(self) -> bool:
        """Return whether it is cancelled."""
        return self.cancelled_

    def when(self) -> float:
        """Return when a timer is due."""
        return self._when

    def run(self) -> None:
        """Call it."""
        self._context.run(self._callback, *self._args)


class Job:
    """A call in a thread: *work* is done at one moment, the loop gets the result at a later one."""

    __slots__ = ("call", "done", "error", "heard", "kind", "result", "work")

    def __init__(
        self,
        work: Callable[[], Any],
        heard: asyncio.Future[Any],
        kind: str = "files",
        call: tuple[Any, ...] = (),
    ) -> None:
        self.work = work
        self.heard = heard
        self.kind = kind
        self.call = call  # what is said, of a call
        self.done = False
        self.result: Any = None
        self.error: BaseException | None = None

    def do(self) -> None:
        """Do the work."""
        try:
            self.result = self.work()
        except Exception as error:  # noqa: BLE001 - it is the waiting one's
            self.error = error
        self.done = True

    def tell(self) -> None:
        """Let whoever waits go on."""
        if self.heard.done():  # nobody waits any longer
            return
        if self.error is None:
            self.heard.set_result(self.result)
        else:
            self.heard.set_exception(self.error)


class SteppedLoop(asyncio.AbstractEventLoop):
    """The loop; not all of a loop: what the plugin uses."""

    def __init__(self) -> None:
        self.now = 0.0
        self.jobs: list[Job] = []
        self.tasks: list[asyncio.Task[Any]] = []
        self.errors: list[str] = []  # what no task has caught
        self._ready: deque[Callback] = deque()
        self._timers: list[Callback] = []
        self._numbers = count()

    def reset(self, now: float) -> None:
        """Give up all that is under way, as if it had never begun; it is *now*."""
        if self.tasks:
            for each in self.tasks:
                each.cancel()
            self.run()
        self.now = now
        self.jobs.clear()
        self.tasks.clear()
        self.errors.clear()
        self._ready.clear()
        self._timers.clear()

    def run(self) -> None:
        """Run until nothing is ready."""
        if not self._ready:
            return
        events._set_running_loop(self)
        ready = self._ready
        try:
            while ready:
                callback = ready.popleft()
                if not callback.cancelled_:
                    callback.run()
        finally:
            events._set_running_loop(None)
        if self.tasks:
            self.tasks = [each for each in self.tasks if not each.done()]

    @property
    def timer(self) -> float | None:
        """When the next timer is due."""
        self._timers = [each for each in self._timers if not each.cancelled_]
        return min((each.when() for each in self._timers), default=None)

    def fire(self) -> None:
        """Let time pass until the next timer is due."""
        timer = min(self._timers, key=lambda each: (each._when, each._number))
        self._timers.remove(timer)
        self.now = max(self.now, timer._when)
        timer.run()
        self.run()

    # ---- asyncio's own

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Any:
        """Queue a callback, as asyncio does."""
        called = Callback(callback, args, context)
        self._ready.append(called)
        return called

    def call_later(  # type: ignore[override]
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> Any:
        """Call something after *delay* seconds."""
        return self.call_at(self.now + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> Any:
        """Call something when it is time."""
        timer = Callback(callback, args, context)
        timer._when, timer._number = when, next(self._numbers)
        self._timers.append(timer)
        return timer

    def time(self) -> float:
        """Return seconds."""
        return self.now

    def create_future(self) -> asyncio.Future[Any]:
        """Return a future."""
        return asyncio.Future(loop=self)

    def create_task(self, work: Coroutine[Any, Any, Any], **options: Any) -> asyncio.Task[Any]:  # type: ignore[override]
        """Begin some work."""
        task = asyncio.Task(work, loop=self, **options)
        self.tasks.append(task)
        return task

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:  # type: ignore[override]
        """Have a job done."""
        del executor
        heard = self.create_future()
        self.jobs.append(Job(lambda: func(*args), heard))
        return heard

    def get_debug(self) -> bool:
        """Return that there is no debugging."""
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Note what no task has caught."""
        error = context.get("exception")
        if error is not None:
            self.errors.append(f"{context['message']}: {error!r}")
