"""Kueue's objects: which are followed, and writing what the check `numa-fit` answers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from http.client import CONFLICT, NOT_FOUND
from typing import NoReturn

from msgspec import Raw

from nri_policy.cluster.groups.controller import Controller
from nri_policy.cluster.groups.record import NO_FAILURE, BackOff
from nri_policy.cluster.numa.admission import NumaAdmission, WriteActive, WriteCheck
from nri_policy.cluster.objects.metadata import Key
from nri_policy.cluster.service.watch import WatchedKind
from nri_policy.cluster.workloads.kueue import API, group_of, read_check, read_flavor, read_workload
from nri_policy.foundation.clock import Clock
from nri_policy.kube.client import Client, ObjectKind
from nri_policy.kube.errors import APIError

log = logging.getLogger(__name__)

WORKLOADS, CHECKS, FLAVORS = (
    ObjectKind(group=API[0], version=API[1], plural=plural)
    for plural in ("workloads", "admissionchecks", "resourceflavors")
)
OF_KUEUE = (WORKLOADS, CHECKS, FLAVORS)
IDLE = 1.0  # seconds after which it looks again without news: whether we lead


def list_kueue_sources(
    admission: NumaAdmission, controller: Controller | None
) -> list[WatchedKind]:
    """Return what is followed of Kueue; its topology assignments count as groups, if there are any.

    Where Kueue is not installed, there is nothing.
    """

    def take_workload(item: Raw) -> None:
        workload = read_workload(item, "")
        admission.set_workload(workload)
        if controller is not None:
            controller.set_assigned(group_of(workload))

    def remove_workload(key: Key) -> None:
        admission.remove_workload(key)
        if controller is not None:
            controller.remove_assigned(key)

    return [
        WatchedKind(
            kind=WORKLOADS,
            take=take_workload,
            remove=remove_workload,
            known=admission.workloads.keys,
            optional=True,
        ),
        WatchedKind(
            kind=CHECKS,
            take=lambda item: admission.set_check(read_check(item, "")),
            remove=lambda key: admission.remove_check(key[1]),
            known=lambda: [("", name) for name in admission.checks],
            optional=True,
        ),
        WatchedKind(
            kind=FLAVORS,
            take=lambda item: admission.set_flavor(read_flavor(item, "")),
            remove=lambda key: admission.remove_flavor(key[1]),
            known=lambda: [("", name) for name in admission.flavors],
            optional=True,
        ),
    ]


class AdmissionWriter:
    """Writes what an admission check answers, while we lead and know what there is.

    A refused answer is decided anew after a pause, without delaying other answers.
    """

    def __init__(
        self,
        client: Client,
        admission: NumaAdmission,
        may_write: Callable[[], bool],
        clock: Clock,
    ) -> None:
        self.answers: dict[str, int] = {"Ready": 0, "Retry": 0, "Rejected": 0}
        self._client = client
        self._admission = admission
        self._may_write = may_write
        self._woken = asyncio.Event()
        self._leads = False
        self._clock = clock
        self._back_offs: dict[Key, BackOff] = {}  # those whose latest writes failed
        self._refused: dict[Key, WriteCheck | WriteActive] = {}  # that wait for their pause's end

    def wake(self) -> None:
        """Have it look: something has changed."""
        self._woken.set()

    async def run(self) -> NoReturn:
        """Write until cancelled."""
        while True:
            if not self._may_write():
                self._leads = False
            else:
                if not self._leads:
                    self._admission.begin()
                    self._leads = True
                now = self._clock.now()
                for key in [*self._refused]:
                    if self._back_offs.get(key, NO_FAILURE).until > now:
                        continue
                    if not self._admission.note_failure(self._refused.pop(key)):
                        self._back_offs.pop(key, None)
                for write in self._admission.step():
                    await self._write(write)
            with suppress(TimeoutError):
                async with asyncio.timeout(IDLE):
                    await self._woken.wait()
            self._woken.clear()

    async def _write(self, write: WriteCheck | WriteActive) -> None:
        """Send one answer, and record the outcome."""
        try:
            await self._ask(write)
        except APIError as error:
            if error.code in (CONFLICT, NOT_FOUND):  # a newer revision: its news follow
                self._admission.note_failure(write)
                return
            back_off = self._back_offs.get(write.key, NO_FAILURE)
            self._back_offs[write.key] = back_off.after_failure(self._clock.now(), wait=error.wait)
            self._refused[write.key] = write
            log.warning("admission-not-written", extra={"reason": str(error)})
        else:
            self._back_offs.pop(write.key, None)

    async def _ask(self, write: WriteCheck | WriteActive) -> None:
        patch = write.patch()
        if isinstance(write, WriteActive):
            await self._client.merge(CHECKS, write.name, patch, part="status")
        else:
            namespace, name = write.key
            await self._client.merge(WORKLOADS, name, patch, namespace=namespace, part="status")
            if write.answer:
                self.answers[write.answer] += 1
