"""The daemon as a DRA driver, if the settings want it: its sockets and its ResourceSlice.

Owns when each of them exists. The slice exists while the driver is enabled and registered with the
kubelet, CPUs are pinned, and the kubelet's own CPU manager is off. The sockets stay until the last
claim is unprepared, because pods whose claims are never unprepared stay Terminating for ever
(dra.md §5a).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NoReturn

from nri_policy.dra.cdi import FOLDER, CDIFiles
from nri_policy.dra.driver import Driver
from nri_policy.dra.registration import Registration
from nri_policy.dra.slice_publisher import SlicePublisher
from nri_policy.engine.event import Event, Reconfigured
from nri_policy.foundation.backoff import backoff
from nri_policy.foundation.clock import SYSTEM_CLOCK, Clock
from nri_policy.foundation.units import count_cpus
from nri_policy.foundation.wording import problem_of, some
from nri_policy.kube.client import Client
from nri_policy.kube.errors import APIError
from nri_policy.kube.events import ClusterEvent, Subject
from nri_policy.node import Node, NodeView, Outcome
from nri_policy.plugin.claims import Claims

log = logging.getLogger(__name__)

_BACKOFF = partial(backoff, least=1.0, most=60.0)


async def no_cpu_manager() -> bool:
    """Stand for a kubelet whose CPU manager is off."""
    return False


class ClaimDriver:
    """The driver of one daemon."""

    def __init__(  # noqa: PLR0913 - keywords: the parts that it asks
        self,
        node: Node,
        claims: Claims,
        client: Client | None,
        *,
        name: str,
        synchronized: asyncio.Event,
        kubelet: Path,
        manages_cpus: Callable[[], Awaitable[bool | None]] = no_cpu_manager,
        cdi: Path = FOLDER,
        observe: Callable[[str, str, float], None] = lambda _method, _result, _seconds: None,
        count: Callable[[str], None] = lambda _result: None,
        record: Callable[[ClusterEvent], None] = lambda _: None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Take the node's name in the cluster, and the folders of kubelet and CDI.

        *manages_cpus* returns whether the kubelet's CPU manager is on, None without an answer;
        *observe* is called for each claim, *count* for each write of the slice; *record* creates an
        event in the cluster.
        """
        self.registration = Registration()
        self.publisher: SlicePublisher | None = None  # None: no cluster is known
        self._node = node
        self._synchronized = synchronized
        self._kubelet = kubelet
        self._static = (
            "the kubelet's CPU manager is static, and sets the CPUs of containers too: drain the"
            f" node, set cpuManagerPolicy: none, remove {kubelet}/cpu_manager_state, restart the"
            " kubelet"
        )
        self._name = name
        self._manages_cpus = manages_cpus
        self._cpu_manager: bool | None = None  # whether it is on; None: unknown yet
        self._registered = asyncio.Event()  # set after a start of the kubelet, or of the daemon
        self._record = record
        self._clock = clock
        self._changed = asyncio.Event()
        self._error = ""
        if client is None:
            return
        self._driver = Driver(
            node,
            claims,
            client,
            name=name,
            files=CDIFiles(cdi),
            ready=synchronized,
            observe=observe,
            record=self._refused,
        )
        claims.allocations = self._driver
        self.publisher = SlicePublisher(
            node, client, name=name, wanted=lambda: self._publishes, count=count
        )
        self.registration.heard = self._heard

    @property
    def _enabled(self) -> bool:
        settings = self._node.view.layout.settings
        return settings.dra.enabled and settings.pin_cpu

    @property
    def _publishes(self) -> bool:
        ours = self._enabled and self._synchronized.is_set() and self.registration.registered
        return ours and self._cpu_manager is False

    def _heard(self) -> None:
        self._registered.set()
        self._look_again()

    def _look_again(self) -> None:
        """Have the publisher check whether the slice should exist, and its content."""
        if self.publisher is not None:
            self.publisher.ask()

    def observe(self, event: Event, outcome: Outcome, view: NodeView) -> None:
        """Check whether anything must start or end, as an observer of the node."""
        del outcome
        if self.publisher is None:
            return
        self._changed.set()
        self.publisher.ask()
        if isinstance(event, Reconfigured):
            self._driver.rewrite()
            self._report_losses(view)

    def _report_losses(self, view: NodeView) -> None:
        """Create events about the claims that have fewer CPUs than they were allocated."""
        for held in view.claims.values():
            part, has = held.container.claim_part, len(held.grant.exclusive)
            if has < held.request.exclusive:
                number = count_cpus(1000 * held.request.exclusive)
                text = (
                    f"{part.full_name} has {has} of {number} of {part.device}: others are offline"
                )
                about = Subject.claim(part.namespace, part.name, part.claim)
                self._record(ClusterEvent(about=about, reason="CPUsLost", text=text))

    def _refused(self, event: ClusterEvent) -> None:
        """Report a refused claim; if too much was published, correct that first."""
        if self.publisher is not None:
            self.publisher.hurry()
        self._record(event)

    def problems(self) -> Iterator[str]:
        """Yield the settings that are not in force, with the reasons."""
        view = self._node.view
        if not view.layout.settings.dra.enabled:
            if view.claims:
                names = {each.container.full_name for each in view.claims.values()}
                yield f"dra: claims that are still to be given back: {some(names)}"
            return
        if self.publisher is None:
            yield "dra: no cluster is known: neither in a pod nor --kubeconfig"
        elif not self._enabled:
            yield "dra: no CPUs are published: pinCPU is false"
        elif self._error or self.registration.error:
            yield f"dra: {self._error or self.registration.error}"
        elif not self.registration.registered:
            yield "dra: the kubelet has not registered the driver yet"
        elif self._cpu_manager is None:
            yield "dra: no CPUs are published: the kubelet does not say if its CPU manager is on"
        elif self._cpu_manager:
            yield f"dra: no CPUs are published: {self._static}"
        elif self.publisher.problem:
            yield f"dra: no ResourceSlice is published: {self.publisher.problem}"

    async def run(self) -> NoReturn:
        """Serve the kubelet as long as that is wanted, again and again."""
        failures = 0
        while True:
            self._changed.clear()
            if self.publisher is None or not (
                self._synchronized.is_set() and (self._enabled or self._node.view.claims)
            ):
                await self._changed.wait()
                continue
            try:
                await self._serve(self.publisher)
                failures = 0
            except OSError as error:
                failures += 1
                if (reason := problem_of(error)) != self._error:
                    log.warning("driver-not-served", extra={"reason": reason})
                self._error = reason
                await self._clock.sleep(_BACKOFF(failures))

    async def _serve(self, publisher: SlicePublisher) -> None:
        from nri_policy.dra.endpoint import serving  # noqa: PLC0415 - with gRPC

        await asyncio.to_thread(self._driver.restart)
        async with serving(self._driver, self.registration, self._kubelet):
            self._error = ""
            tasks = {
                asyncio.create_task(publisher.run(), name="slice"),
                asyncio.create_task(self._follow_cpu_manager(), name="CPU manager"),
            }
            try:
                while self._enabled or self._node.view.claims:
                    self._changed.clear()
                    await self._changed.wait()
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)
        if not self._enabled:
            try:
                await publisher.remove()
            except APIError as error:
                log.warning("slice-not-removed", extra={"reason": str(error)})

    async def _follow_cpu_manager(self) -> NoReturn:
        """Ask whether the kubelet's CPU manager is on, after each registration by the kubelet.

        Only a restart of the kubelet can change that. Until it answers, its last answer counts.
        """
        while True:
            await self._registered.wait()
            self._registered.clear()
            failures = 0
            while (manages := await self._manages_cpus()) is None:
                failures += 1
                await self._clock.sleep(_BACKOFF(failures))
            if manages and not self._cpu_manager:
                log.warning("cpus-not-published", extra={"reason": self._static})
                about = Subject.node(self._name)
                self._record(
                    ClusterEvent(about=about, reason="CPUsNotPublished", text=self._static)
                )
            self._cpu_manager = manages
            self._look_again()
