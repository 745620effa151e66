"""Answers: what the answers to one runtime's requests carry of other containers.

An overdue answer carries no updates: the runtime ignores it, and the changes take another way.
"""

from __future__ import annotations

from nri_policy.delivery.executor import Executor
from nri_policy.delivery.inputs import Answered, Superseded
from nri_policy.engine.grant import Placement
from nri_policy.nri.plugin import Call
from nri_policy.plugin.runtime_link import fit
from nri_policy.proto.nri_pb2 import ContainerUpdate

# containers that are in force and recorded otherwise, in one answer: to a creation or resize, to a
# stop, and to the runtime's list (nri.md §3.7a 9)
WITH_CREATION, WITH_STOP, WITH_LIST = 1, 2, 10


class Answers:
    """The answers to the requests of one runtime."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self.request: Call | None = None  # the current request

    @property
    def is_overdue(self) -> bool:
        """Whether the current request was answered before its decision was ready."""
        return self.request is not None and self.request.answered

    def begin(self, call: Call) -> None:
        """Handle a request from now on."""
        self.request = call
        self._executor.note_request()

    def end(self) -> None:
        """End the current request."""
        self.request = None

    def supersede(self, container_id: str) -> None:
        """Forget what was pending for a container: an answer about it says something newer.

        If the runtime no longer waits for that answer, the pending change stays.
        """
        if not self.is_overdue:
            self._executor.apply(Superseded(container_id))

    def take(
        self, about: str = "", *, informing: int = 0, creating: bool = False
    ) -> list[ContainerUpdate]:
        """Return the updates of others for an answer about a container, which count as sent.

        Among them are at most *informing* updates that only inform the runtime. Updates in
        the answer to a creation (*creating*) are lost if the creation fails, as by another plugin's
        veto.
        """
        if self.is_overdue:
            return []
        executor = self._executor
        carried = executor.state.answer(about, informing, executor.clock.now())
        taken = fit(carried, ignore_failures=True) if carried else {}
        updates = {each: carried[each] for each in taken}
        executor.apply(Answered(about=about, updates=updates, creating=creating))
        return [*taken.values()]

    def note(self, container_id: str, own: Placement, *, creating: bool = False) -> None:
        """Take note that a container's own placement goes with the answer about it."""
        if not self.is_overdue:
            self._executor.apply(Answered(about=container_id, own=own, creating=creating))
