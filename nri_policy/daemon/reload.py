"""Reload: new settings while containers run, accepted or refused as a whole.

Owns that one reload runs at a time, and that settings and the machine as they see it take effect
together.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

from nri_policy.daemon.tuner_link import TunerLink, check_hardware
from nri_policy.engine.event import Reconfigured
from nri_policy.foundation.clock import Clock
from nri_policy.foundation.refusal import Refused
from nri_policy.hardware.discovery import discover
from nri_policy.hardware.machine import Machine
from nri_policy.hardware.sysfs import TopologyError
from nri_policy.node import Node, view_of
from nri_policy.observability.metrics import Metrics
from nri_policy.plugin.daemon_events import DaemonEvents
from nri_policy.settings import ReloadResult, Settings, SettingsError, find_settings

log = logging.getLogger(__name__)


class Reloads:
    """Reads the settings of one daemon again; `latest` is the latest result."""

    def __init__(  # noqa: PLR0913 - keywords: where settings come from, and who hears of them
        self,
        node: Node,
        events: DaemonEvents,
        tuner_link: TunerLink,
        metrics: Metrics,
        *,
        root: Path,
        read: Callable[[], Settings] | None,
        report: Callable[[ReloadResult], None],
        clock: Clock,
    ) -> None:
        """*read* reads the settings again, None: no reload; *root* holds the host's /sys."""
        self._node = node
        self._events = events
        self._tuner_link = tuner_link
        self._metrics = metrics
        self._root = root
        self.read = read or _read_nothing
        self._report = report
        self._clock = clock
        self.follow: Callable[[Settings], AbstractAsyncContextManager[None]] = _nobody
        self.latest: ReloadResult | None = None
        self.turn = asyncio.Lock()  # held by a reload

    async def reload(self) -> ReloadResult:
        """Take the settings that there are now, or keep the ones before; return the outcome."""
        async with self.turn:
            origin, reason = self._node.view.layout.settings.origin, ""
            try:
                settings = await asyncio.to_thread(self.read)
                origin = settings.origin
                async with self.follow(settings):
                    await self._put_in_force(settings)
            except (SettingsError, Refused, TopologyError, OSError) as error:
                reason = str(error)
                if isinstance(error, SettingsError):
                    origin = error.origin
                self._metrics.count_refused_reload()
                log.error("reload-refused", extra={"kept": "old", "reason": reason})  # noqa: TRY400 - its place says nothing
            else:
                self._metrics.count_taken_reload(self._clock.date())
                log.info("reloaded", extra={"origin": origin})
                log_notices(settings)
            self.latest = ReloadResult(
                accepted=not reason, origin=origin, reason=reason, time=self._clock.date()
            )
            self._report(self.latest)
            return self.latest

    async def proposed(self, text: str) -> Reconfigured:
        """Return what the settings in a document would change here; ValueError if they cannot."""
        settings = find_settings(text, "the settings").load()
        try:
            return Reconfigured(settings=settings, machine=await self._as_seen_by(settings))
        except (TopologyError, OSError) as error:
            raise ValueError(str(error)) from error

    async def _put_in_force(self, settings: Settings) -> None:
        """Change the settings, on the machine as it is then: it may change while it is read."""
        machine = self._node.view.layout.machine
        for note in await asyncio.to_thread(check_hardware, settings, self._root, machine):
            log.warning("settings", extra={"note": note})
        try:
            while True:
                known = self._node.view.layout.machine
                seen = await self._as_seen_by(settings)
                await self._try_tunables(Reconfigured(settings=settings, machine=seen))
                if await self._events.reconfigure(
                    settings=settings, machine=seen, instead_of=None if seen is None else known
                ):
                    return
        except Refused:
            await asyncio.to_thread(self._tuner_link.inform)  # it may have set values for them
            raise

    async def _try_tunables(self, event: Reconfigured) -> None:
        """Set what the containers would need of the kernel with new settings; CapacityError."""
        trial = self._node.fork()
        try:
            trial.handle(event)
        except Refused:  # the engine itself refuses them next, and records that
            return
        await asyncio.to_thread(self._tuner_link.try_settings, view_of(trial))

    async def _as_seen_by(self, settings: Settings) -> Machine | None:
        """Return the machine if *settings* want it seen in another way, else None."""
        kinds = settings.memory_kinds
        if kinds == self._node.view.layout.settings.memory_kinds:
            return None
        return await asyncio.to_thread(discover, self._root, memory_kinds=kinds)


def log_notices(settings: Settings) -> None:
    """Log the notices of settings in force."""
    for note in settings.notices:
        log.warning("settings", extra={"note": note})


def _read_nothing() -> Settings:
    """Refuse a reload, for a daemon that was given its settings, as on a simulated node."""
    raise Refused(
        "this node reads no settings again: `nri-policy what-if --settings FILE` tries others, or"
        " start it again with them"
    )


@asynccontextmanager
async def _nobody(_: Settings) -> AsyncIterator[None]:
    """Follow new settings where there is nothing that would have to."""
    yield
