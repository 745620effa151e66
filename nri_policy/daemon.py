"""The daemon: wires the adapters to the engine; the only place that knows them all.

Everything runs on one asyncio loop. Requests reach the engine one at a time, whichever way they
come: over NRI or over the daemon's own socket.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import (
    AsyncIterator,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Protocol

from nri_policy.audit.auditor import Auditor, Reader
from nri_policy.audit.cgroup import Cgroups
from nri_policy.audit.comparison import Decided
from nri_policy.audit.decisions import books, decisions, unpinned
from nri_policy.audit.presence import Books
from nri_policy.audit.report import document
from nri_policy.clock import Clock
from nri_policy.control.administration import Administration
from nri_policy.control.decision_log import Chronicle
from nri_policy.control.endpoint import listening
from nri_policy.control.health import SERVICE as HEALTH
from nri_policy.control.health import Health
from nri_policy.control.reflection import Reflection
from nri_policy.control.service import SERVICE, Control
from nri_policy.engine.engine import Engine
from nri_policy.engine.event import Event, Reconfigured
from nri_policy.engine.explanation import Explanation
from nri_policy.engine.placement import RefusalError
from nri_policy.hardware.discovery import discover
from nri_policy.hardware.machine import Machine
from nri_policy.hardware.sysfs import TopologyError
from nri_policy.kube.events import Event as ClusterEvent
from nri_policy.kubelet.hypothetical import Making, wanted_pods
from nri_policy.kubelet.resources import Kubelet
from nri_policy.kubelet.stock import Left
from nri_policy.node import Cpuset, Node, NodeView, Outcome, Wanted
from nri_policy.nri.grpc_service import PATHS, plugin_handler
from nri_policy.nri.plugin import Identity
from nri_policy.nri.service import Service
from nri_policy.nri.session import Session, registration_delay
from nri_policy.nrt.publisher import Publication, Publisher, Sink, Trouble, publishing
from nri_policy.nrt.reading import Feed, Object
from nri_policy.observability.decision_events import DecisionEvents
from nri_policy.observability.endpoint import Endpoint, Probes
from nri_policy.observability.exporter import Exporter
from nri_policy.observability.loop_lag import Beat
from nri_policy.observability.metrics import Metrics
from nri_policy.observability.watchdog import Heart
from nri_policy.plugin.enforcement import Cgroups as Writer
from nri_policy.plugin.exposure import Exposure
from nri_policy.plugin.findings import Findings
from nri_policy.plugin.overlaps import Cpusets, Overlaps
from nri_policy.plugin.policy import Policy, Sources
from nri_policy.plugin.updates import Telling
from nri_policy.pools.capacity import CapacityError
from nri_policy.report import AuditReport
from nri_policy.settings import Audit, OnExit, Reload, Settings, SettingsError, load
from nri_policy.store.errors import StoreError
from nri_policy.store.history import History
from nri_policy.store.store import Store

log = logging.getLogger(__name__)

IDENTITY = Identity(name="nri-policy", index="90")
LEAVING = 10.0  # seconds, at most, for the runtime to hear that we leave


class ContainerCgroups(Reader, Writer, Cpusets, Protocol):
    """The cgroups of a host's containers."""

    def cpu_seconds(self, cgroups: Iterable[str]) -> Mapping[str, float]:
        """Return the CPU time that those of *cgroups* have used that are here; for any thread."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """What an engine's session has around it."""

    state_dir: Path
    containers_dir: Path | None = None  # what containers are shown; None: below the state folder
    root: Path = Path("/")  # holds the host's /sys and /proc
    cgroups: ContainerCgroups | None = None  # of the containers, if not those below `root`
    load: Callable[[], Settings] | None = None  # reads the settings again; None: they stay
    report: Callable[[Reload], None] | None = None  # hears what became of them
    record: Callable[[ClusterEvent], None] = lambda _: None  # has an event created in the cluster
    identity: Identity = IDENTITY
    notes: tuple[str, ...] = ()  # what `status` says of the node, whatever happens
    node_name: str = "localhost"  # in the cluster
    devices: Callable[[], Left] = dict  # those of each NUMA node
    unused: Callable[[], Mapping[str, int] | None] = lambda: None  # devices, by resource
    sources: Sources = field(default_factory=Sources)
    delay: Callable[[int], float] = registration_delay  # seconds before the session registers again


class Daemon:
    """An engine and its session with the runtime."""

    def __init__(self, machine: Machine, settings: Settings, host: Host) -> None:
        """CapacityError where *settings* ask the impossible; OSError for the state folder.

        UnsafeStoreError where others could have written what is stored there.
        """
        self._now = host.sources.now
        self._store = Store(host.state_dir, machine)
        self.synchronized = asyncio.Event()
        exposure = Exposure(host.containers_dir or host.state_dir / "containers")
        self._chronicle = Chronicle()
        self._publishers: list[Publisher] = []
        self.metrics = Metrics(
            version("nri-policy"),
            self._now(),
            generation=lambda: self._feed.generation,
            late_answers=lambda: self._policy.late_answers,
            publish_errors=lambda: sum(each.failed for each in self.publications),
        )
        self.node = Node(
            Engine(machine, settings, self._store.held.earlier), took=self.metrics.took
        )
        self.beat = Beat(observe=self.metrics.lagged)
        self.heart = Heart(self.node.turn, Clock())
        self._latest: Explanation | None = None  # of a decision about a container
        self._called: Service | None = None  # for a runtime that calls over gRPC
        self._telling = Telling(self.node)
        self._findings = Findings(
            host.node_name, record=host.record, count=self.metrics.found, now=self._now
        )
        self._cgroups: ContainerCgroups = host.cgroups or Cgroups(host.root)
        self._policy = Policy(
            self.node,
            exposure,
            self._telling,
            sources=replace(
                host.sources, held=lambda: self._store.held.grants, cgroups=self._cgroups
            ),
            synchronized=self._took_over,
            pods_changed=self.topology_changed,
            enforced=self.metrics.enforced,
            overlapped=self._findings.overlap,
            started=lambda each: self.auditor.started(each),  # noqa: PLW0108 - made below
        )
        self._overlaps = Overlaps(
            self.node, self._policy.enforcement, self._cgroups, self._telling.clock
        )
        self._feed = Feed(
            self.node,
            name=host.node_name,
            pods=self._policy.pods.exclusive.values,
            coming=self._policy.pods.guaranteed.values,
            synchronized=self.synchronized,
            devices=host.devices,
        )
        for each in (
            self._chronicle.note,
            DecisionEvents(host.record).decided,
            self._feed.decided,
            self.metrics.decided,
            self._decided,
        ):
            self.node.observe(each)
        self._session = Session(
            self._policy,
            host.identity,
            turn=self.node.turn,
            delay=host.delay,
            observe=self.metrics.requested,
        )
        self.auditor = Auditor(
            self,
            self._cgroups,
            now=self._now,
            drifted=self.metrics.drifted,
        )
        self._root = host.root
        self._notes = host.notes
        self._unused = host.unused
        self._load = host.load or (lambda: settings)
        self._report = host.report
        self.follow: Callable[[Settings], AbstractAsyncContextManager[None]] = _nobody
        self._reloading = asyncio.Lock()
        self.reloaded: Reload | None = None  # the latest

    @asynccontextmanager
    async def serving(self, runtime: Path | int) -> AsyncIterator[asyncio.Task[None]]:
        """Serve the runtime at a socket's path in the task given, which ends only if it fails.

        Or the one that started this daemon with its socket open as a file descriptor: then the task
        ends with it.
        """
        task = asyncio.create_task(self._serve(runtime), name="nri session")
        try:
            yield task
        finally:
            task.cancel()
            await asyncio.wait({task})

    async def close(self) -> None:
        """Let go of the store, once everything that was begun is in it; nobody may ask any more."""
        async with self._reloading, self.node.turn:
            self._store.close()

    def _took_over(self) -> None:
        self.synchronized.set()
        self.auditor.hasten()

    async def _serve(self, runtime: Path | int) -> None:
        async with asyncio.TaskGroup() as group:
            others = [
                group.create_task(self._telling.run(self._session), name="telling"),
                group.create_task(self._policy.enforcement.run(), name="enforcement"),
                group.create_task(self._overlaps.run(), name="overlaps"),
                group.create_task(self.beat.run(), name="beat"),
            ]
            if isinstance(runtime, int):
                await self._session.run_inherited(runtime)
            else:
                await self._session.run(str(runtime))
            for each in others:
                each.cancel()

    def topology_changed(self) -> None:
        """Take note of pods or devices that came or went, for those who are told what is left."""
        self._feed.changed()

    def _decided(self, event: Event, outcome: Outcome, view: NodeView) -> None:
        """Take down what was decided; what cannot be stored now is made up for later."""
        self._latest = getattr(outcome, "explanation", None) or self._latest
        try:
            self._store.commit(event, outcome, view, self._now())
        except StoreError as error:
            self.metrics.store_failed()
            log.warning("event=not-stored error=%r", str(error))

    def endpoint(self) -> Endpoint:
        """Return what serves probes and metrics, listening nowhere yet."""
        ready = {"runtime": self._missing, "nrt": self._unpublished}
        probes = Probes(alive=self.heart.trouble, ready=ready)
        return Endpoint(probes, Exporter(self.metrics, self.node, time.monotonic))

    def _missing(self) -> str:
        """Return what keeps the daemon from placing containers; for any thread."""
        called = self._called is not None and self._called.synchronized
        return "" if called or self._session.synchronized else "none is connected and synchronized"

    def _unpublished(self) -> str:
        """Return why the node's topology could not be published; for any thread.

        A cluster that does not know of such objects, as most do not, has nothing to wait for.
        """
        fine = (None, Trouble.NO_CRD)
        failing = [each for each in self.publications if each.trouble not in fine]
        return "; ".join(f"{each.to}: {each.error}" for each in failing)

    def status(self) -> str:
        """Return in one line how the daemon is."""
        if not self.synchronized.is_set():
            return "waiting for the runtime"
        view, latest = self.node.view, self._latest
        shown = f"{len(view.layout.tree.pools)} pools, {len(view.placed)} containers"
        if latest is not None:
            shown += f"; last decision: {latest.container} {latest.outcome.value}"
        return shown

    @asynccontextmanager
    async def listening(self, control_socket: Path) -> AsyncIterator[None]:
        """Serve at *control_socket* who asks what the daemon holds, and the runtime over gRPC.

        OSError where there can be no socket.
        """
        clock = Clock()
        plugin = Service(self._policy, self.node.turn, clock, self.metrics.requested)
        self._called = plugin
        control = Control(
            self.node,
            self._chronicle,
            synchronized=self.synchronized,
            not_taken=self._telling.refused,
            doubts=self._doubts,
            runtime=lambda: str(self._session.runtime or plugin.runtime or ""),
            read=self._wanted,
            proposed=self._proposed,
            found=self._found,
            unused=self._unused,
            used=self._cgroups.cpu_seconds,
            audit=self._audited,
            reloaded=lambda: self.reloaded,
            topology=self.topology,
            publications=lambda: [each.message() for each in self.publications],
            in_kernel=self.auditor.in_kernel,
            past=History(self._store.path),
        )
        health = Health(self.synchronized, [SERVICE.full_name])
        reflection = Reflection([SERVICE, HEALTH])
        async with listening(
            control_socket,
            shared=[control.handler(), health.handler(), reflection.handler()],
            private=[plugin_handler(plugin, clock), Administration(self.reload).handler()],
            large=[f"/{SERVICE.full_name}/WhatIf", *PATHS],
        ):
            yield

    def _doubts(self) -> Iterator[str]:
        """Yield what is to be known of the node, and what of the decisions is not in force."""
        yield from self._notes
        enforcement = self._policy.enforcement
        if count := enforcement.overdue:
            yield f"containers that were told, and not yet seen in their place: {count}"
        if count := enforcement.unwritable:
            yield f"containers whose cgroups cannot be written (docs/runtime.md): {count}"
        for cgroup in sorted(self.auditor.presence.strangers):
            yield f"{cgroup} has processes and is in no book"
        yield from self._findings.recent()

    async def topology(self) -> Object:
        """Return the node's NodeResourceTopology object."""
        reading = await self._feed.read()
        return await asyncio.to_thread(reading.object)

    @property
    def publications(self) -> list[Publication]:
        """How it goes with the copies of that object that are kept up to date."""
        return [publisher.publication for publisher in self._publishers]

    @asynccontextmanager
    async def publishing(self, sinks: Iterable[Sink]) -> AsyncIterator[None]:
        """Keep the node's NodeResourceTopology object up to date at *sinks*."""
        self._publishers = [Publisher(self._feed, sink) for sink in sinks]
        async with publishing(
            self._publishers,
            keep=lambda: self.node.view.layout.settings.on_exit is OnExit.KEEP,
        ):
            yield

    def _wanted(self, manifests: str, replicas: int) -> tuple[Wanted, ...]:
        """Return the pods of *manifests* as this node's kubelet would ask for them."""
        kubelet = Kubelet(memory_capacity=max(1, self.node.view.layout.machine.memory))
        making = Making(kubelet=kubelet, convert=self._policy.pods.container)
        return wanted_pods(manifests, replicas, making)

    async def _proposed(self, text: str) -> Reconfigured:
        """Return what the settings in a document would change here; ValueError if they cannot."""
        settings = load(text, "the settings")
        try:
            return Reconfigured(settings=settings, machine=await self._as_seen_by(settings))
        except (TopologyError, OSError) as error:
            raise ValueError(str(error)) from error

    async def _found(self) -> dict[str, Cpuset]:
        """Return where containers run, by the kernel, of which something is left alone."""
        seen = await self.auditor.observe(unpinned(self.node.view))
        return {each: (o.cpus.effective, o.mems.effective) for each, o in seen.items()}

    async def _audited(self) -> AuditReport:
        """Return what an audit finds now."""
        return document(await self.auditor.look(), self.audit)

    @property
    def audit(self) -> Audit:
        """What the settings want done about drift."""
        return self.node.view.layout.settings.audit

    @property
    def kubelet_asked(self) -> bool:
        """Whether the settings want the kubelet asked about devices."""
        return self.node.view.layout.settings.agent.pod_resource_api

    async def decided(self) -> Sequence[Decided]:
        """Return where every running container is to be."""
        return decisions(self.node.view, self._telling.untold)

    async def retell(self, container_ids: Collection[str]) -> None:
        """Tell the runtime again where these containers are to be, whatever it believes."""
        await self._policy.retell(container_ids)

    async def books(self) -> Books:
        """Return who runs, and whom there is, by the books."""
        async with self.node.turn:  # the pods change in turns
            return books(self.node.view, self._policy.pids, self._policy.pods.folders)

    async def release(self, container_ids: Collection[str]) -> None:
        """Release containers that have ended, though the runtime has not said so."""
        for each in await self._policy.release(container_ids):
            self._findings.ended(each)

    async def admit(self, cgroups: Collection[str]) -> None:
        """Have the runtime list its containers: some in *cgroups* are not known."""
        log.info("event=registering-anew cgroups=%d", len(cgroups))
        self._findings.unknown(cgroups)
        if self._session.can_register:
            self._session.reconnect()

    async def elapse(self) -> None:
        """Do what is due by now."""
        await self._policy.elapse()

    async def reconfigure(
        self, *, settings: Settings | None = None, machine: Machine | None = None
    ) -> None:
        """Change the settings or the machine under the running containers.

        RefusalError or CapacityError, never for a machine alone: everything stays as it was.
        """
        await self._policy.reconfigure(settings=settings, machine=machine)

    async def equip(self) -> None:
        """Take in what the host can do now: its disks, say."""
        await self._policy.equip()

    async def replace_machine(self, old: Machine, new: Machine) -> None:
        """Put the containers on *new*, unless another than *old* is in force by now.

        That one came with settings which may want the machine seen in another way than *new* was.
        """
        await self._policy.reconfigure(machine=new, instead_of=old)

    async def reload(self) -> Reload:
        """Take the settings that there are now, or keep the ones before; return the outcome."""
        async with self._reloading:
            origin, reason = self.node.view.layout.settings.origin, ""
            try:
                settings = await asyncio.to_thread(self._load)
                origin = settings.origin
                async with self.follow(settings):
                    await self._put_in_force(settings)
            except (SettingsError, CapacityError, RefusalError, TopologyError, OSError) as error:
                reason = str(error)
                if isinstance(error, SettingsError):
                    origin = error.origin
                self.metrics.settings_refused()
                log.error("event=reload-refused kept=old reason=%r", reason)  # noqa: TRY400 - its place says nothing
            else:
                self.metrics.settings_taken(self._now())
                log.info("event=reloaded origin=%s", origin)
                _warn(settings)
            self.reloaded = Reload(
                accepted=not reason, origin=origin, reason=reason, time=self._now()
            )
            if self._report is not None:
                self._report(self.reloaded)
            return self.reloaded

    async def _put_in_force(self, settings: Settings) -> None:
        """Change the settings, on the machine as it is then: it may change while it is read."""
        while True:
            known = self.node.view.layout.machine
            machine = await self._as_seen_by(settings)
            if await self._policy.reconfigure(
                settings=settings, machine=machine, instead_of=None if machine is None else known
            ):
                return

    async def _as_seen_by(self, settings: Settings) -> Machine | None:
        """Return the machine if *settings* want it seen in another way, else None."""
        kinds = settings.memory_kinds
        if kinds == self.node.view.layout.settings.memory_kinds:
            return None
        return await asyncio.to_thread(discover, self._root, memory_kinds=kinds)

    async def tell(self) -> None:
        """Tell the runtime what it has not heard, without waiting for a response to do so."""
        await self._telling.tell(self._session)

    def announce(self) -> None:
        """Log what the daemon starts with, and what is odd about it."""
        layout = self.node.view.layout
        _warn(layout.settings)
        for note in (*layout.machine.notes, *layout.tree.notes):
            log.info("event=hardware note=%r", note)
        log.info(
            "event=started cpus=%s reserved=%s isolated=%s pools=%d",
            layout.machine.online,
            layout.capacity.reserved,
            layout.capacity.isolated or "none",
            len(layout.tree.pools),
        )

    async def leave(self) -> None:
        """Do for the containers what the settings want when the daemon is stopped for good."""
        if self.node.view.layout.settings.on_exit is OnExit.WIDEN:
            called = self._called is not None and self._called.synchronized
            told = await self._telling.leave(self._session, LEAVING, called=called)
            log.log(logging.INFO if told else logging.WARNING, "event=widened complete=%s", told)


@asynccontextmanager
async def _nobody(_: Settings) -> AsyncIterator[None]:
    """Follow new settings where there is nothing that would have to."""
    yield


def _warn(settings: Settings) -> None:
    for note in settings.notices:
        log.warning("event=settings note=%r", note)
