"""Settings from the cluster: its TopologyAwarePolicy objects, watched while the daemon runs.

Owns retries, what happens while the cluster does not answer, and the status of the objects. Rule 1:
only the start and the end of the daemon wait for the cluster, and only briefly. Rule 2: an outage
changes nothing, even across a restart: the settings in force are saved in a file. Rule 3: until the
cluster answers for the first time nothing is pinned, because its settings may forbid that.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from msgspec.structs import replace

from nri_policy.foundation.backoff import backoff
from nri_policy.foundation.clock import SYSTEM_CLOCK, Clock
from nri_policy.foundation.wording import problem_of
from nri_policy.settings import KIND, Problem, ReloadResult, Settings, SettingsError, from_spec
from nri_policy.settings_sources.policy_objects import (
    PolicyObject,
    PolicyScope,
    PolicySelection,
    name_of,
)

log = logging.getLogger(__name__)

NOT_PINNED = "nothing is pinned until "  # the prefix of a notice
PATIENCE = 2.0  # seconds that the start and the end wait for the cluster
GROUP_PERIOD = 60.0  # seconds between two queries for the node's label
_BACKOFF = partial(backoff, least=1.0, most=60.0)  # before the next query


class ClusterError(Exception):
    """The cluster does not answer, or with something else; the text has the reason."""


class NoKindError(ClusterError):
    """The cluster lacks the kind of the objects, so it has no object."""


class API(Protocol):
    """Requests to the cluster, as in `kubernetes.Kubernetes`. Methods raise ClusterError."""

    async def group(self, node: str) -> str:
        """Return the group in a node's label, empty for none."""
        ...

    async def follow(self, name: str, record: Callable[[PolicyObject | None], None]) -> None:
        """Call *record* with the object of that name, now and after each change, until an error."""

    async def set_status(self, name: str, node: str, status: Mapping[str, Any] | None) -> None:
        """Write a node's status of an object; None removes it."""


class ClusterSettingsSource:
    """The settings of the cluster for one node, or those of the file if there are none."""

    def __init__(  # noqa: PLR0913 - keywords: where settings come from, and the clock
        self,
        api: API,
        node: str,
        *,
        kept: Path,
        otherwise: Callable[[], Settings],
        changed: Callable[[], None],
        clock: Clock = SYSTEM_CLOCK,
        delay: Callable[[int], float] = _BACKOFF,
    ) -> None:
        """Take the file to save the object in force, and a callback for its changes.

        *otherwise* returns the settings of a node for which the cluster has none.
        """
        self._api = api
        self._node = node
        self._kept = kept
        self._otherwise = otherwise
        self._changed = changed
        self._clock = clock
        self._delay = delay
        self._known = _read(kept)
        self._loaded: PolicyObject | None = None
        self._asked: set[PolicyScope] = set()  # queried, with or without an answer
        self._all_asked = asyncio.Event()
        self._reported: tuple[str, dict[str, Any]] | None = None  # an object, and its status by us
        self._statuses: dict[str, dict[str, Any] | None] = {}  # to be written, by object
        self._unwritten, self._all_written = asyncio.Event(), asyncio.Event()
        self._all_written.set()
        self._troubles: dict[PolicyScope, str] = {}  # of scopes that cannot be read now

    def load(self) -> Settings:
        """Return the settings in force now. Raises SettingsError."""
        self._loaded = self._known.counting
        if self._loaded is not None:
            return from_spec(self._loaded.spec, f"TopologyAwarePolicy {self._loaded.name}")
        try:
            settings = self._otherwise()
        except SettingsError as error:
            problem = Problem("", self._why_none_from_cluster())
            raise SettingsError(error.origin, (*error.problems, problem)) from error
        return settings if self._known.settled else _without_pinning(settings)

    def _why_none_from_cluster(self) -> str:
        if self._known.settled:
            return f"the cluster has no {KIND} object for node {self._node} either"
        trouble = next(iter(self._troubles.values()), f"no answer within {PATIENCE:g} s")
        return f"the cluster has not said which settings apply: {trouble}"

    def report(self, outcome: ReloadResult) -> None:
        """Write the result of the settings that were loaded last to their object's status."""
        if self._loaded is None:
            return
        self._reported = (
            self._loaded.name,
            {
                "status": "Success" if outcome.accepted else "Failure",
                "generation": self._loaded.generation,
                "errors": outcome.reason or None,
                "timestamp": datetime.fromtimestamp(outcome.time, UTC).strftime(
                    "%Y-%m-%dT%H:%M:%SZ"
                ),
            },
        )
        self._queue_status(*self._reported)

    async def wait_answered(self) -> None:
        """Wait until the cluster has answered for all scopes, or failed; at most PATIENCE."""
        await self._clock.set_within(PATIENCE, self._all_asked)

    async def wait_written(self) -> None:
        """Wait until all statuses are written; at most PATIENCE."""
        await self._clock.set_within(PATIENCE, self._all_written)

    async def run(self) -> None:
        """Watch the cluster until cancelled."""
        async with asyncio.TaskGroup() as group:
            for level, of in ((PolicyScope.NODE, self._node), (PolicyScope.DEFAULT, "")):
                group.create_task(self._follow(level, name_of(level, of)))
            group.create_task(self._follow_group(group))
            group.create_task(self._write())

    async def _follow(self, level: PolicyScope, name: str) -> None:
        failures = 0

        def record(policy: PolicyObject | None) -> None:
            nonlocal failures
            failures = 0
            self._record(level, policy)

        while True:
            try:
                await self._api.follow(name, record)
            except ClusterError as error:
                if isinstance(error, NoKindError) and not self._known.settled:
                    self._record(level, None)
                else:
                    self._failed(level, error)
                failures += 1
            await self._clock.sleep(self._delay(failures))

    async def _follow_group(self, tasks: asyncio.TaskGroup) -> None:
        """Watch the object of the group that the node is in, which may change."""
        current: str | None = None
        following: asyncio.Task[None] | None = None
        failures = 0
        while True:
            try:
                group = await self._api.group(self._node)
            except ClusterError as error:
                self._failed(PolicyScope.GROUP, error)
                failures += 1
                await self._clock.sleep(self._delay(failures))
                continue
            failures = 0
            if group != current:
                current = group
                if following is not None:
                    following.cancel()
                self._known.forget(PolicyScope.GROUP)
                if group:
                    name = name_of(PolicyScope.GROUP, group)
                    following = tasks.create_task(self._follow(PolicyScope.GROUP, name))
                else:
                    self._record(PolicyScope.GROUP, None)
            await self._clock.sleep(GROUP_PERIOD)

    def _record(self, level: PolicyScope, policy: PolicyObject | None) -> None:
        if self._troubles.pop(level, None):
            log.info("cluster-settings-read", extra={"scope": level.name.lower()})
        counts = self._known.record(level, policy)
        if counts:
            self._keep()
        self._attempted(level)
        for other in self._known.others():
            if self._node in other.nodes:  # our status there is no longer true
                self._queue_status(other.name, None)
        if counts:
            self._changed()
        elif self._reported is not None and policy is not None:
            name, status = self._reported
            if name == policy.name and self._node not in policy.nodes:  # the object is a new one
                self._queue_status(name, status)

    def _failed(self, level: PolicyScope, error: ClusterError) -> None:
        self._attempted(level)
        if self._troubles.get(level) != str(error):
            self._troubles[level] = str(error)
            log.warning(
                "cluster-settings-unknown",
                extra={"reason": str(error), "text": "the old settings stay in force"},
            )

    def _attempted(self, level: PolicyScope) -> None:
        self._asked.add(level)
        if self._asked == {*PolicyScope}:
            self._all_asked.set()

    def _queue_status(self, name: str, status: dict[str, Any] | None) -> None:
        self._statuses[name] = status
        self._unwritten.set()
        self._all_written.clear()

    async def _write(self) -> None:
        """Write pending statuses, only the latest of each object, until each succeeds."""
        failures = 0
        while True:
            await self._unwritten.wait()
            name, status = next(iter(self._statuses.items()))
            try:
                await self._api.set_status(name, self._node, status)
            except ClusterError as error:
                failures += 1
                if failures == 1:
                    log.warning("status-not-written", extra={"object": name, "reason": str(error)})
                await self._clock.sleep(self._delay(failures))
                self._statuses[name] = self._statuses.pop(name)  # try the others first
                continue
            failures = 0
            if self._statuses[name] is status:  # there is no newer one
                del self._statuses[name]
            if not self._statuses:
                self._unwritten.clear()
                self._all_written.set()

    def _keep(self) -> None:
        """Save the object in force, for a start without the cluster."""
        policy = self._known.counting
        new = self._kept.with_suffix(".new")
        try:
            form = policy and {
                "name": policy.name,
                "generation": policy.generation,
                "spec": policy.spec,
            }
            new.touch(0o600)
            new.write_text(json.dumps(form))
            new.replace(self._kept)
        except OSError as error:
            log.warning(
                "settings-not-saved", extra={"path": self._kept, "error": problem_of(error)}
            )


def _without_pinning(settings: Settings) -> Settings:
    """Return the file's settings while it is unknown whether the cluster has others."""
    note = (
        f"{NOT_PINNED}the cluster says which settings apply; with --config-namespace="
        " only the file counts"
    )
    return replace(
        settings,
        origin=f"{settings.origin}, without pinning until the cluster answers",
        notices=(*settings.notices, note),
        pin_cpu=False,
        pin_memory=False,
    )


def _read(kept: Path) -> PolicySelection:
    """Return what was saved; nothing if that is missing or malformed."""
    try:
        form = json.loads(kept.read_text())
        if form is None:
            return PolicySelection(settled=True)
        policy = PolicyObject(
            name=str(form["name"]), generation=int(form["generation"]), spec=form["spec"]
        )
        return PolicySelection(policy, settled=True)
    except FileNotFoundError:
        return PolicySelection()
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        log.warning("saved-settings-unreadable", extra={"path": kept, "error": problem_of(error)})
        return PolicySelection()
