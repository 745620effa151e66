"""CPU use: what each container used, and how long it waited, in the last minute.

Owns the samples that this is the difference to: the latest few, of all containers, read in a thread
at a slow beat. So a question costs one reading more, and its minute is a true one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import NoReturn

from msgspec import Struct

from nri_policy.foundation.clock import Clock
from nri_policy.report import RecentUseReport

PERIOD = 60.0  # seconds between samples: an idle daemon hardly works
WINDOW = 60.0  # seconds: the sample that is about as old is compared with
_LEAST = 5.0  # seconds: a shorter time says too little
_SAMPLES = 3  # the oldest is older than WINDOW by half a period at least


class CpuUse(Struct, frozen=True, kw_only=True):
    """What the kernel has counted for a container since it started."""

    seconds: float  # of CPU time
    periods: int = 0  # of its CFS quota
    throttled: int = 0  # of these periods
    throttled_seconds: float = 0.0
    waited: Mapping[int, float] = {}  # seconds for a CPU, by thread; some of many threads


_Uses = Mapping[str, CpuUse]  # by cgroup


class CpuUseSamples:
    """Samples of the containers of one node."""

    def __init__(
        self,
        read: Callable[[Iterable[str]], _Uses],
        cgroups: Callable[[], Iterable[str]],
        clock: Clock,
    ) -> None:
        """*read* reads counters from any thread; *cgroups* are those of the running containers."""
        self._read = read
        self._cgroups = cgroups
        self._clock = clock
        self._samples: deque[tuple[float, _Uses]] = deque(maxlen=_SAMPLES)

    async def run(self) -> NoReturn:
        """Take samples, as long as the daemon runs."""
        while True:
            await self.sample()
            await self._clock.tick(PERIOD)

    async def sample(self) -> None:
        """Take one sample."""
        cgroups = list(self._cgroups())
        uses = await asyncio.to_thread(self._read, cgroups)
        self._samples.append((self._clock.now(), uses))

    def recent(self, cgroups: Iterable[str]) -> Mapping[str, RecentUseReport]:
        """Return the use of those of *cgroups* that are in a sample, and are here now.

        Reads files: not for the event loop.
        """
        samples, uses, now = [*self._samples], self._read(cgroups), self._clock.now()
        # a younger container is compared with its oldest sample
        samples.sort(key=lambda sample: abs(now - sample[0] - WINDOW))
        found = {}
        for cgroup, use in uses.items():
            base = next(((at, old[cgroup]) for at, old in samples if cgroup in old), None)
            if base is not None and now - base[0] >= _LEAST:
                found[cgroup] = _difference(base[1], use, now - base[0])
        return found


def _difference(before: CpuUse, after: CpuUse, seconds: float) -> RecentUseReport:
    both = before.waited.keys() & after.waited.keys()
    return RecentUseReport(
        seconds=seconds,
        cpus=max(0.0, after.seconds - before.seconds) / seconds,
        periods=max(0, after.periods - before.periods),
        throttled=max(0, after.throttled - before.throttled),
        throttled_seconds=max(0.0, after.throttled_seconds - before.throttled_seconds),
        waited_seconds=sum(max(0.0, after.waited[each] - before.waited[each]) for each in both)
        if both
        else None,
    )
