"""The survey: what a request about all containers reads of their cgroups, in limited time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sized
from functools import partial
from typing import Any, TypeVar

from nri_policy.delivery.delivery_state import DeliveryState
from nri_policy.delivery.host_cgroups import HostCgroups
from nri_policy.delivery.inputs import Decided, Input, Observed
from nri_policy.delivery.record import cpuset_of
from nri_policy.foundation.clock import Clock
from nri_policy.workload.pod import Resources

log = logging.getLogger(__name__)

MAX_SURVEY = 0.5  # seconds that the runtime's inventory waits for files

_T = TypeVar("_T")


class Survey:
    """Reads cgroups of containers and pods."""

    def __init__(
        self,
        state: DeliveryState,
        cgroups: HostCgroups | None,
        apply: Callable[[Input], None],
        clock: Clock,
        begin: Callable[[Coroutine[Any, Any, Any]], asyncio.Task[Any]],
    ) -> None:
        """*apply* passes an input to the machine, and reports its events.

        *begin* makes a task of work that goes on if nobody waits for it any longer.
        """
        self._state = state
        self._cgroups = cgroups
        self._apply = apply
        self._clock = clock
        self._begin = begin

    async def observe(
        self, paths: Mapping[str, str], *, living: bool = False
    ) -> Mapping[str, Resources] | None:
        """Return the resources in containers' cgroups, by id; *paths* are the runtime's names.

        Containers without a visible cgroup are left out; with *living*, also those without a
        process. None on timeout: a late result is stored for containers without newer data, and
        one in the wrong place is sent its change again.
        """
        cgroups = self._cgroups
        if cgroups is None or not paths:
            return {}

        def read() -> dict[str, Resources]:
            seen = (
                (each, cgroups.resources(path))
                for each, path in paths.items()
                if not living or cgroups.processes(path)
            )
            return {each: found for each, found in seen if found is not None}

        reading = await self._read(read, paths)
        if reading.done():
            return reading.result()
        reading.add_done_callback(partial(self._observed_late, paths))
        return None

    def _observed_late(
        self, container_ids: Iterable[str], reading: asyncio.Task[dict[str, Resources]]
    ) -> None:
        if reading.cancelled() or reading.exception() is not None:
            return
        found, state = reading.result(), self._state
        for each in container_ids:
            if each in state.in_flight or each in state.pending:
                continue
            known, due = state.records.get(each), state.desired.placement(each)
            if known is None or known.observed is not None:
                continue
            if each in found:
                self._apply(Observed(container_id=each, cpuset=cpuset_of(found[each])))
            has = state.records[each].observed
            if due is not None and (due.cpus or due.mems) and not (has and has.has(due)):
                self._apply(
                    Decided(changes={each: due})
                )  # the list, which was believed, may be wrong

    async def _read(self, read: Callable[[], _T], paths: Sized) -> asyncio.Task[_T]:
        """Read *paths* in a thread; return the task, which goes on if it takes too long."""
        reading: asyncio.Task[_T] = self._begin(asyncio.to_thread(read))
        if not await self._clock.done_within(MAX_SURVEY, reading):
            log.warning("cgroups-slow", extra={"containers": len(paths)})
        return reading

    async def living(self, paths: Mapping[str, str]) -> Collection[str]:
        """Return the ids of containers with a process, or none after a timeout.

        *paths* are the runtime's names of cgroups.
        """
        cgroups = self._cgroups
        if cgroups is None or not paths:
            return ()

        def read() -> list[str]:
            return [each for each, path in paths.items() if cgroups.processes(path)]

        reading = await self._read(read, paths)
        return reading.result() if reading.done() else ()
