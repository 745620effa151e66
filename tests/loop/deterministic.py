"""An event loop that plays several processes in one: virtual time, seeded order, kill and freeze.

Every callback belongs to a *party* (a life of the daemon, the runtime, a kubelet's worker), by a
context variable that tasks and callbacks inherit. Rule 1: the next callback is the oldest of a
party that the seed chooses, so the order within a party is kept, and all others are tried. Rule 2:
when no callback is ready, time jumps to the next timer; each callback costs some microseconds.
Rule 3: what runs in a thread runs at once, after a while that the seed chooses, also if whoever
waited for it has gone. Rule 4: callbacks of a killed party never run, so no `finally` of it does;
those of a frozen one wait.
"""

from __future__ import annotations

import asyncio
import heapq
import selectors
import socket
from asyncio import events
from collections import deque
from collections.abc import (
    Callable,
    Coroutine,
    Generator,
    Iterable,
    Iterator,
    MutableMapping,
)
from contextvars import Context, ContextVar, copy_context
from random import Random
from typing import Any, TypeVar

from nri_policy.foundation.clock import Clock

EPOCH = 1.7e9  # the date when virtual time is 0, in seconds since the epoch
STEP = (1e-6, 2e-5)  # seconds that a callback takes
LONGEST_THREAD = 0.02  # seconds, of nearly all reads and writes of files
SLOW_ONE = 0.1  # seconds, of one in ten

PARTY: ContextVar[str] = ContextVar("PARTY", default="stage")

_T = TypeVar("_T")


class StuckError(AssertionError):
    """Nothing is ready, and no timer will make anything ready."""


class _Ready:
    """Callbacks that are ready, by party; what asyncio takes for its deque."""

    def __init__(self) -> None:
        self.by_party: dict[str, deque[events.Handle]] = {}

    def append(self, handle: events.Handle) -> None:
        party = _party_of(handle)
        self.by_party.setdefault(party, deque()).append(handle)

    def clear(self) -> None:
        self.by_party.clear()

    def __len__(self) -> int:
        return sum(map(len, self.by_party.values()))

    def __iter__(self) -> Iterator[events.Handle]:
        for each in self.by_party.values():
            yield from each


class DeterministicLoop(asyncio.SelectorEventLoop):
    """The loop; the same seed leads to the same history."""

    # asyncio's own, which it does not declare
    _selector: selectors.BaseSelector
    _scheduled: list[asyncio.TimerHandle]
    _transports: MutableMapping[int, Any]
    _remove_reader: Callable[[int], bool]
    _remove_writer: Callable[[int], bool]
    _process_events: Callable[[Iterable[tuple[selectors.SelectorKey, int]]], None]

    def __init__(self, random: Random) -> None:
        self._time = 0.0  # virtual, in seconds
        self.clock_error = 0.0  # seconds that the date differs from the time that has passed
        self.clock = Clock(now=self.time, date=self._date)
        super().__init__(selectors.EpollSelector())
        self._random = random
        self._ready = _Ready()
        self._killed: set[str] = set()
        self._frozen: set[str] = set()
        self._sockets: dict[int, tuple[str, socket.socket]] = {}
        self._tasks: list[asyncio.Task[Any]] = []  # kept: a task that is collected would clean up
        self.steps = 0  # callbacks that have run
        self.longest_thread = LONGEST_THREAD  # seconds
        self.errors: list[str] = []  # what no task has caught
        self.set_task_factory(self._make_task)
        self.set_exception_handler(self._failed)

    def time(self) -> float:
        """Return virtual time in seconds."""
        return self._time

    def _date(self) -> float:
        return EPOCH + self._time + self.clock_error

    def spawn(self, party: str, work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        """Have *party* do some work."""
        context = copy_context()
        context.run(PARTY.set, party)
        return self.create_task(work, context=context)

    def kill(self, party: str) -> None:
        """End a party at once, as kill -9 does: its sockets are closed, nothing else is done."""
        self._killed.add(party)
        self._ready.by_party.pop(party, None)
        for fd, (owner, end) in [*self._sockets.items()]:
            if owner == party:
                self._remove_reader(fd)
                self._remove_writer(fd)
                end.close()
                del self._sockets[fd]
                self._transports.pop(fd, None)  # another file may get the number

    def freeze(self, party: str) -> None:
        """Stop a party until it is thawed, as SIGSTOP does."""
        self._frozen.add(party)

    def thaw(self, party: str) -> None:
        """Let a party go on."""
        self._frozen.discard(party)

    def is_frozen(self, party: str) -> bool:
        """Return whether a party is frozen."""
        return party in self._frozen

    # ---- asyncio's own

    def _make_task(
        self,
        loop: asyncio.AbstractEventLoop,
        work: Coroutine[Any, Any, _T] | Generator[Any, None, _T],
        **options: Any,
    ) -> asyncio.Task[_T]:
        task = asyncio.Task(work, loop=loop, **options)
        self._tasks.append(task)
        return task

    def _failed(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if PARTY.get() not in self._killed:
            error = context.get("exception")
            self.errors.append(f"{PARTY.get()}: {context['message']}: {error!r}")

    def _make_socket_transport(self, sock: socket.socket, *args: Any, **options: Any) -> Any:
        self._sockets[sock.fileno()] = PARTY.get(), sock
        return super()._make_socket_transport(sock, *args, **options)  # type: ignore[misc]

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Run *func* after a while, whether anybody still waits for it or not."""
        del executor
        done = self.create_future()

        def run() -> None:
            try:
                result = func(*args)
            except Exception as error:  # noqa: BLE001 - it is the waiting one's
                if not done.cancelled():
                    done.set_exception(error)
            else:
                if not done.cancelled():
                    done.set_result(result)

        slow = self._random.random() < 0.1
        longest = max(self.longest_thread, SLOW_ONE if slow else 0.0)
        self.call_later(self._random.uniform(0, longest), run)
        return done

    def _run_once(self) -> None:
        self._process_events(sorted(self._selector.select(0), key=lambda each: each[0].fd))
        while self._scheduled and self._scheduled[0].when() <= self._time:
            timer = heapq.heappop(self._scheduled)
            if not timer.cancelled():
                self._ready.append(timer)
        handle = self._next()
        if handle is None:
            self._jump()
            return
        self._time += self._random.uniform(*STEP)
        if not handle.cancelled():
            self.steps += 1
            handle._run()

    def _next(self) -> events.Handle | None:
        """Return the oldest callback of a party that the seed chooses."""
        able = [
            party
            for party, handles in self._ready.by_party.items()
            if handles and party not in self._frozen and party not in self._killed
        ]
        if not able:
            return None
        return self._ready.by_party[self._random.choice(able)].popleft()

    def _jump(self) -> None:
        """Let time pass until the next timer."""
        while self._scheduled:
            timer = self._scheduled[0]
            if not timer.cancelled() and _party_of(timer) not in self._killed:
                self._time = max(timer.when(), self._time)
                return
            heapq.heappop(self._scheduled)
        raise StuckError("nothing is left to do, and the play has not ended")


def _party_of(handle: events.Handle) -> str:
    context: Context = handle._context  # type: ignore[attr-defined]
    return context.get(PARTY, "stage")
