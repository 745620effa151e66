"""The link to the runtime beside answers: calls of our own, and registering again."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from nri_policy.delivery.messages import NotSentError
from nri_policy.engine.grant import Changes
from nri_policy.nri.errors import CallRefused
from nri_policy.nri.session import Session
from nri_policy.plugin.convert import update_of
from nri_policy.proto.nri_pb2 import ContainerUpdate

MAX_MESSAGE = 1 << 20  # bytes of updates in one message; a runtime takes 4 MiB
_OVERHEAD = 8  # bytes of an update in its message, at most


def fit(changes: Changes, *, ignore_failures: bool) -> dict[str, ContainerUpdate]:
    """Return as many updates as go into one message, by container id."""
    updates, size = {}, 0
    for each, placement in changes.items():
        update = update_of(each, placement, ignore_failure=ignore_failures)
        size += update.ByteSize() + _OVERHEAD
        if size > MAX_MESSAGE:
            break
        updates[each] = update
    return updates


class RuntimeLink:
    """The session with one runtime; a `Link`."""

    def __init__(self, session: Session) -> None:
        self._session = session

    @property
    def calls_are_safe(self) -> bool | None:
        """Whether no call can hang the runtime; None: it is not known, or not connected."""
        runtime = self._session.runtime
        return None if runtime is None else runtime.unsolicited_updates_safe

    @property
    def synchronized(self) -> bool:
        """Whether the runtime has listed its containers."""
        return self._session.synchronized

    @property
    def idle(self) -> bool:
        """Whether the runtime waits for no answer of ours."""
        return self._session.idle

    @property
    def missing(self) -> asyncio.Event:
        """Set while no runtime listens on the socket."""
        return self._session.missing

    def fitting(self, changes: Changes) -> Changes:
        """Return as many of the changes as go into one message."""
        return {each: changes[each] for each in fit(changes, ignore_failures=False)}

    async def call(self, changes: Changes, *, ignore_failures: bool) -> Collection[str]:
        """Send changes; return the ids of failed updates. NotSentError, ConnectionError."""
        updates = [
            update_of(each, placement, ignore_failure=ignore_failures)
            for each, placement in changes.items()
        ]
        try:
            failed = await self._session.update_containers(updates)
        except (CallRefused, TimeoutError) as error:
            raise NotSentError(str(error)) from error
        return {each.container_id for each in failed}

    def register(self, *, needed: bool) -> bool:
        """Register again; return whether that is done: only if it is *needed*, or no harm."""
        possible = self._session.can_register if needed else self._session.may_register
        if possible:
            self._session.reconnect()
        return possible
