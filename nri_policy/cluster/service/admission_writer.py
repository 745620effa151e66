"""Writing to Kueue's objects what the admission check `numa-fit` answers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from http.client import CONFLICT, NOT_FOUND
from typing import NoReturn

from nri_policy.cluster.groups.record import NO_FAILURE, BackOff
from nri_policy.cluster.numa.admission import NumaAdmission, WriteActive, WriteCheck
from nri_policy.cluster.objects.metadata import Key
from nri_policy.cluster.service.kinds import CHECKS, WORKLOADS
from nri_policy.foundation.clock import Clock
from nri_policy.kube.client import Client
from nri_policy.kube.errors import APIError

log = logging.getLogger(__name__)

IDLE = 1.0  # seconds after which it looks again without news: whether we lead


class AdmissionWriter:
    """Writes what an admission check answers, while we lead and know what there is.

    A refused answer is decided anew after a pause, without delaying other answers.
    """

    def __init__(
        self, client: Client, admission: NumaAdmission, may_write: Callable[[], bool], clock: Clock
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
