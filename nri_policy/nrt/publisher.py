"""Publisher: one task that writes a copy of the object to one place after changes.

Rule 1: no request waits for it. A decision only sets a flag. The publisher reads the state just
before each write, so the latest state is written and an older one never replaces a newer one.
Rule 2: the rate of writes is limited. The first write is immediate, later ones follow INTERVAL
apart, writes without a change are skipped, and failures delay the next attempt.
Rule 3: a PublicationReport always shows the result of the last attempt.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from enum import StrEnum
from functools import partial
from typing import NoReturn, Protocol

from msgspec import Struct
from msgspec.structs import replace

from nri_policy.foundation.backoff import backoff
from nri_policy.foundation.clock import SYSTEM_CLOCK, Clock
from nri_policy.nrt.reading import Feed, Object, Reading
from nri_policy.report import PublicationReport

log = logging.getLogger(__name__)

INTERVAL = 0.25  # seconds between two writes at least
REFRESH = 600.0  # seconds after which an unchanged object is written again
CHECK_INTERVAL = (
    60.0  # seconds between two looks whether it is still there: it goes when its Node does
)
LAST_WRITE_TIMEOUT = 2.0  # seconds for the last write
_BACKOFF = partial(backoff, least=0.5, most=30.0)
LOG_AGAIN = 300.0  # seconds before the same is logged again


class Trouble(StrEnum):
    """What keeps an object from being written."""

    UNREACHABLE = "unreachable"  # no connection, a broken connection, or a timeout
    UNAUTHORIZED = "unauthorized"
    FORBIDDEN = "forbidden"
    NO_NODE = "no-node"
    NO_CRD = "no-crd"
    CONFLICT = "conflict"
    THROTTLED = "throttled"
    SERVER_ERROR = "server-error"
    REFUSED = "refused"  # any other answer
    UNWRITABLE = "unwritable"  # a file
    FAULT = "fault"  # of our own


class PublishError(Exception):
    """An object was not written; the text has the reason and the remedy."""

    def __init__(self, trouble: Trouble, message: str, *, wait: float = 0.0) -> None:
        super().__init__(message)
        self.trouble = trouble
        self.wait = wait  # seconds that the server asks us to wait


class PublicationPhase(StrEnum):
    """Where a publication is."""

    WAITING = "waiting"  # nothing has been written yet
    PUBLISHED = "published"
    FAILING = "failing"  # the last attempt failed and will be repeated
    OFF = "off"  # the settings do not want it


class WriteResult(Struct, frozen=True, kw_only=True):
    """The result of a write."""

    version: str = ""
    rivals: tuple[str, ...] = ()


class Sink(Protocol):
    """Where an object is written to. Methods raise PublishError."""

    name: str

    async def put(self, new: Object, *, fresh: bool) -> WriteResult:
        """Write an object; *fresh*: look everything up again first."""
        ...

    async def is_gone(self) -> bool:
        """Return whether the object that was written no longer exists."""
        ...

    async def remove(self) -> None:
        """Remove the object if it exists."""


class Pace(Struct, frozen=True, kw_only=True):
    """The clock and the delays of a publisher."""

    clock: Clock = SYSTEM_CLOCK
    delay: Callable[[int], float] = _BACKOFF  # seconds after so many failures in a row
    last_write_timeout: float = LAST_WRITE_TIMEOUT


class TopologyPublisher:
    """Keeps one copy of the object up to date."""

    def __init__(self, feed: Feed, sink: Sink, pace: Pace | None = None) -> None:
        self.publication = PublicationReport(to=sink.name, phase=PublicationPhase.WAITING)
        self._feed = feed
        self._sink = sink
        self._pace = pace or Pace()
        self._changes = feed.follow()
        self._last_written: Reading | None = None
        self._may_exist = False  # whether there may be something of ours, be it by a write given up
        self._refresh_at = self._check_at = 0.0
        self._failures = 0
        self._logged_at: dict[
            tuple[str, str | None], float
        ] = {}  # warnings -> when they were logged
        self._log_success = True  # whether to log the next success

    async def run(self) -> NoReturn:
        """Write whenever there is something to write."""
        await self._feed.synchronized.wait()
        while True:
            self._changes.clear()
            await self._pace.clock.sleep(await self._attempt())
            if not self._failures:
                await self._change()

    async def end(self, *, keep: bool) -> None:
        """Mark the object as the last one of a stopped daemon, or remove it; in bounded time."""
        if not self._may_exist:
            return
        try:
            async with asyncio.timeout(self._pace.last_write_timeout):
                if keep and self._feed.wanted:
                    last = await self._feed.read()
                    # a write that was cancelled may have arrived, so look up the revision
                    await self._sink.put(last.object(stopped=True), fresh=True)
                else:
                    await self._sink.remove()
        except (PublishError, TimeoutError) as error:
            reason = str(error) or f"no answer within {self._pace.last_write_timeout:g} s"
            log.warning("nrt-stop-failed", extra={"to": self._sink.name, "reason": reason})
        except Exception:  # the daemon must still end, and write its other copies
            log.exception("nrt-fault", extra={"to": self._sink.name})

    async def _change(self) -> None:
        """Wait for a change, or until the next check or refresh is due."""
        due = min(self._refresh_at, self._check_at) - self._pace.clock.now()
        await self._pace.clock.set_within(max(0.0, due), self._changes)

    async def _attempt(self) -> float:
        """Write if necessary; return the seconds to wait afterwards."""
        try:
            await self._write()
        except PublishError as error:
            return self._record_failure(error)
        except Exception as error:
            log.exception("nrt-fault", extra={"to": self._sink.name})
            return self._record_failure(PublishError(Trouble.FAULT, f"internal error: {error!r}"))
        self._failures = 0
        return INTERVAL

    async def _write(self) -> None:
        now = self._pace.clock.now()
        if not self._feed.wanted:
            await self._withdraw()
            self._refresh_at = self._check_at = now + REFRESH
            return
        reading = await self._feed.read()
        check = now >= self._check_at
        fresh = now >= self._refresh_at or (check and await self._check_lost(now))
        if not fresh and not self._failures and reading.equals(self._last_written):
            self._update(unchanged=self.publication.unchanged + (not check))
            return
        new = await asyncio.to_thread(reading.object)
        self._may_exist = True
        written = await self._sink.put(new, fresh=fresh or bool(self._failures))
        self._last_written = reading
        self._check_at = now + CHECK_INTERVAL
        if fresh:
            self._refresh_at = now + REFRESH
        self._record_success(reading, written)

    async def _check_lost(self, now: float) -> bool:
        """Return whether the object that was written has disappeared."""
        self._check_at = now + CHECK_INTERVAL
        return self._may_exist and await self._sink.is_gone()

    async def _withdraw(self) -> None:
        if self._may_exist:
            await self._sink.remove()
            self._may_exist, self._last_written = False, None
        self._update(phase=PublicationPhase.OFF, trouble="", error="", rivals=())

    def _record_success(self, reading: Reading, written: WriteResult) -> None:
        before = self.publication
        if self._log_success:
            log.info("nrt-published", extra={"to": before.to})
            self._log_success = False
        if written.rivals:
            self._warn(
                "nrt-rivals",
                to=before.to,
                managers=", ".join(written.rivals),
                text="they write the zones of this object too: stop them, or"
                " agent.nodeResourceTopology here",
            )
        self._update(
            phase=PublicationPhase.PUBLISHED,
            version=written.version,
            generation=reading.generation,
            written_at=self._pace.clock.date(),
            written=before.written + 1,
            trouble="",
            error="",
            rivals=written.rivals,
        )

    def _record_failure(self, error: PublishError) -> float:
        """Report a failure; return the seconds to wait afterwards."""
        self._failures += 1
        self._update(
            phase=PublicationPhase.FAILING,
            failed=self.publication.failed + 1,
            trouble=error.trouble,
            error=str(error),
        )
        self._log_success |= self._warn(
            "nrt-not-published", to=self._sink.name, trouble=error.trouble, reason=str(error)
        )
        return max(error.wait, self._pace.delay(self._failures))

    def _warn(self, event: str, **fields: str) -> bool:
        """Log *event*, unless LOG_AGAIN has not passed since the last one; return if logged."""
        now, key = self._pace.clock.now(), (event, fields.get("trouble"))
        due = now >= self._logged_at.get(key, -LOG_AGAIN) + LOG_AGAIN
        if due:
            self._logged_at[key] = now
            log.warning(event, extra=fields)
        return due

    def _update(self, **changed: object) -> None:
        self.publication = replace(self.publication, **changed)


@asynccontextmanager
async def publishing(
    publishers: Collection[TopologyPublisher], *, keep: Callable[[], bool]
) -> AsyncIterator[None]:
    """Run *publishers*; at the end *keep* says whether their objects are marked or removed."""
    tasks = {asyncio.create_task(each.run(), name="nrt publisher") for each in publishers}
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(each.end(keep=keep()) for each in publishers))
