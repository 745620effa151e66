"""The daemon: wires the adapters to the engine; the only place that knows them all.

Everything runs on one asyncio loop. Requests reach the engine one at a time, over NRI and over the
daemon's own socket.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from functools import cached_property
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct, field
from msgspec.structs import replace

from nri_policy.audit.auditor import Auditor
from nri_policy.audit.cgroup import Cgroups, ContainerCgroups
from nri_policy.audit.cpu_use import CpuUseSamples
from nri_policy.audit.deviations import DeviationKind
from nri_policy.audit.node_source import NodeSource
from nri_policy.audit.parents import ParentCgroups
from nri_policy.audit.result import Drift
from nri_policy.control.decision_log import DecisionLog
from nri_policy.control.listener import ProgramReplacedError, listening
from nri_policy.daemon.claim_driver import ClaimDriver, no_cpu_manager
from nri_policy.daemon.node_readiness import NodeReadiness
from nri_policy.daemon.paths import KUBELET_DIR
from nri_policy.daemon.pod_explanations import PodExplanations
from nri_policy.daemon.reload import Reloads
from nri_policy.daemon.rivals import Rivals
from nri_policy.daemon.status import Status
from nri_policy.daemon.tuner_link import Ask, TunerLink, no_tuner
from nri_policy.delivery.executor import Executor
from nri_policy.delivery.overlaps import Overlaps
from nri_policy.delivery.reporter import Observers
from nri_policy.dra.cdi import FOLDER, CDIFiles
from nri_policy.engine.engine import Engine
from nri_policy.engine.event import Event
from nri_policy.foundation.clock import SYSTEM_CLOCK, Clock
from nri_policy.foundation.program import REPLACED, Program
from nri_policy.hardware.machine import Machine
from nri_policy.kube.client import Client
from nri_policy.kube.events import ClusterEvent
from nri_policy.kubelet.device_counts import FreeDevices
from nri_policy.node import Node, NodeView, Outcome
from nri_policy.nri.plugin import PluginIdentity
from nri_policy.nri.service import PluginService
from nri_policy.nri.session import Session, registration_delay
from nri_policy.nrt.reading import Feed
from nri_policy.nrt.topology import PublishedTopology
from nri_policy.observability.decision_events import DecisionEvents
from nri_policy.observability.endpoint import Endpoint, Probes
from nri_policy.observability.exporter import Exporter
from nri_policy.observability.metrics import ExternalCounts, Metrics
from nri_policy.observability.watchdog import Watchdog
from nri_policy.plugin.components import PluginComponents
from nri_policy.plugin.daemon_events import DaemonEvents
from nri_policy.plugin.decisions import log_decision
from nri_policy.plugin.exposure import Exposure
from nri_policy.plugin.findings import Findings
from nri_policy.plugin.policy_plugin import PolicyPlugin
from nri_policy.plugin.runtime_link import RuntimeLink
from nri_policy.plugin.sources import Sources
from nri_policy.settings import OnExit, ReloadResult, Settings
from nri_policy.store.errors import StoreError
from nri_policy.store.store import Store
from nri_policy.systemd.scopes import Scopes
from nri_policy.workload.pod import ContainerState

if TYPE_CHECKING:
    from nri_policy.daemon.control import Control

log = logging.getLogger(__name__)

IDENTITY = PluginIdentity(name="nri-policy", index="90")
STORE_AGAIN = 60.0  # seconds between the tries to store what could not be stored
LEAVING = 10.0  # seconds, at most, for the last updates to the runtime


class Environment(Struct, frozen=True, kw_only=True):
    """What an engine's session has around it."""

    state_dir: Path
    containers_dir: Path | None = None  # what containers are shown; None: below the state folder
    containers_on_host: bool = True  # whether the runtime has that folder at the same path
    root: Path = Path("/")  # holds the host's /sys and /proc
    cgroups: ContainerCgroups | None = None  # of the containers, if not those below `root`
    load: Callable[[], Settings] | None = None  # reads the settings again; None: no reload
    report: Callable[[ReloadResult], None] = lambda _: None  # gets the result of each reload
    record: Callable[[ClusterEvent], None] = lambda _: None  # creates an event in the cluster
    identity: PluginIdentity = IDENTITY
    notes: tuple[str, ...] = ()  # permanent notes on the node, for `status`
    node_name: str = "localhost"  # in the cluster
    client: Client | None = None  # of that
    devices: Callable[[], FreeDevices] = dict  # those of each NUMA node
    unused: Callable[[], Mapping[str, int] | None] = lambda: None  # devices, by resource
    sources: Sources = field(default_factory=Sources)
    kubelet_dir: Path = KUBELET_DIR  # where it looks for drivers
    # whether the kubelet's CPU manager is on; None: it does not answer
    manages_cpus: Callable[[], Awaitable[bool | None]] = no_cpu_manager
    cdi_dir: Path = FOLDER  # the runtime's folder for CDI devices
    clock: Clock = SYSTEM_CLOCK
    rivals: Rivals | None = None  # guards against other daemons; None: no check
    ask_tuner: Ask = no_tuner  # sets tunables of the kernel
    groups_changed: Callable[[], None] = lambda: None  # there are other groups of resctrl
    delay: Callable[[int], float] = registration_delay  # seconds before the session registers again


_SERVICES = "nri_policy.daemon.services"


class Daemon:
    """An engine and its session with the runtime."""

    def __init__(self, machine: Machine, settings: Settings, host: Environment) -> None:
        """CapacityError where *settings* ask the impossible; OSError for the state folder.

        UnsafeStoreError where others could have written what is stored there.
        """
        self._clock = host.clock
        self._rivals = host.rivals
        self._store = Store(host.state_dir, machine)
        self.synchronized = asyncio.Event()
        self._deadlines = asyncio.Event()  # set while there may be any
        self._program = Program()
        self._version = version("nri-policy")  # what runs: another may be installed meanwhile
        self.metrics = Metrics(self._version, self._clock.date(), external=self._count_external)
        self.node = Node(
            Engine(machine, settings, self._store.held.earlier),
            commit=self._commit,
            time_decision=self.metrics.time_decision,
        )
        self.watchdog = Watchdog(self.node.turn, self._clock, self.metrics.count_lag)
        self._decision_log = DecisionLog()
        self._build_runtime_side(host)
        self._build_read_side(host)
        self._unused = host.unused
        self.node.add_observers(
            log_decision,
            self._decision_log.observe,
            DecisionEvents(host.record).observe,
            self.topology.feed.observe,
            self.metrics.observe,
            self.readiness.observe,
            self.claim_driver.observe,
            self.pod_explanations.observe,
            self.tuner_link.observe,
            self._note_deadlines,
        )

    def _build_runtime_side(self, host: Environment) -> None:
        """Make what answers the runtime, and what brings its containers where they belong."""
        self._findings = Findings(
            host.node_name,
            record=host.record,
            count=self.metrics.count_finding,
            clock=self._clock,
        )
        self._cgroups: ContainerCgroups = host.cgroups or Cgroups(host.root)
        self.executor = Executor(
            self.node,
            self._cgroups,
            Scopes(host.root, self._clock),
            observers=Observers(
                enforced=self.metrics.count_enforcement,
                wrote=self.metrics.count_writes,
                overlapped=self._findings.overlap,
            ),
            clock=self._clock,
        )
        self.tuner_link = TunerLink(
            self.node,
            host.root,
            host.ask_tuner,
            synchronized=self.synchronized,
            groups_changed=host.groups_changed,
            clock=self._clock,
        )
        self.components = PluginComponents(
            self.node,
            Exposure(
                host.containers_dir or host.state_dir / "containers",
                on_host=host.containers_on_host,
            ),
            self.executor,
            sources=replace(
                host.sources,
                held=lambda: self._store.held.grants,
                recorded=lambda: CDIFiles(host.cdi_dir).stored(self.node.view.layout),
                cgroups=self._cgroups,
                tuned=self.tuner_link.wait_for,
            ),
            pods_changed=self._topology_changed,
        )
        self.events = DaemonEvents(self.components)
        self.plugin = PolicyPlugin(
            self.components, synchronized=self._took_over, started=self._start
        )
        self._overlaps = Overlaps(self.node, self.executor, self._cgroups)
        self._session = Session(
            self.plugin,
            host.identity,
            turn=self.node.turn,
            delay=host.delay,
            observe=self.metrics.count_request,
            keep_out=None if self._rivals is None else self._rivals.keep_out,
            clock=self._clock,
        )
        self._link = RuntimeLink(self._session)
        self._called = PluginService(
            self.plugin, self.node.turn, self._clock, self.metrics.count_request
        )

    def _build_read_side(self, host: Environment) -> None:
        """Make what follows the node: the audit, what is published, and how the daemon is."""
        source = NodeSource(
            self.components, self.events, self._session, self._findings, self.executor.state.pending
        )
        self.auditor = Auditor(
            source,
            self._cgroups,
            drifted=self._note_drift,
            clock=self._clock,
        )
        self.parents = ParentCgroups(self.node, self._cgroups, clock=self._clock)
        self.cpu_use = CpuUseSamples(self._cgroups.cpu_use, self._list_cgroups, self._clock)
        self.topology = PublishedTopology(
            Feed(
                self.node,
                name=host.node_name,
                synchronized=self.synchronized,
                devices=host.devices,
            )
        )
        self.readiness = NodeReadiness(
            host.client,
            host.node_name,
            wanted=lambda: self.node.view.layout.settings.readiness,
            missing=self._not_ready,
            clock=self._clock,
        )
        self.claim_driver = ClaimDriver(
            self.node,
            self.components.claims,
            host.client,
            name=host.node_name,
            synchronized=self.synchronized,
            kubelet=host.kubelet_dir,
            manages_cpus=host.manages_cpus,
            cdi=host.cdi_dir,
            observe=self.metrics.count_claim,
            count=self.metrics.count_slice_write,
            record=host.record,
            clock=self._clock,
        )
        self.reloads = Reloads(
            self.node,
            self.events,
            self.tuner_link,
            self.metrics,
            root=host.root,
            read=host.load,
            report=host.report,
            clock=self._clock,
        )
        self.pod_explanations = PodExplanations(
            host.client,
            self.node,
            self._decision_log,
            clock=self._clock,
        )
        self.status = Status(
            self.node,
            self.components,
            self._session,
            self._called,
            self.auditor,
            self._findings,
            self._decision_log,
            synchronized=self.synchronized,
            notes=host.notes,
            more=self._problems,
            rival=lambda: self._rivals.holder if self._rivals else "",
        )

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
        """Close the store after all pending work; no calls may follow."""
        async with self.reloads.turn, self.node.turn:
            self.node.catch_up()
            self.components.resources.close()
            self._store.close()

    def _took_over(self) -> None:
        self.synchronized.set()
        self.watchdog.beat_now()
        self.auditor.start_now()

    def _not_ready(self) -> str:
        """Return why pods should not start yet; "" if they may."""
        if runtime := self.status.missing():
            return f"runtime: {runtime}"
        if pending := self.topology.pending():
            return f"topology: {pending}"
        return ""

    def _start(self, container_id: str) -> None:
        self.auditor.record_start(container_id)
        self._overlaps.touch()

    def _note_drift(self, drift: Drift) -> None:
        """Count a new drift; report company to the owner of exclusive CPUs."""
        self.metrics.count_drift(drift.deviation.kind)
        placed = self.node.view.placed.get(drift.container_id)
        if drift.deviation.kind is DeviationKind.COMPANY and placed is not None:
            self._findings.accompanied(placed.container, drift.deviation.reason)

    def _list_cgroups(self) -> list[str]:
        """Return the cgroups of running containers."""
        containers = (each.container for each in self.node.view.placed.values())
        return [each.cgroup for each in containers if each.state is ContainerState.RUNNING]

    def _topology_changed(self) -> None:
        self.topology.feed.changed()

    def _count_external(self) -> ExternalCounts:
        """Return what others than the metrics count."""
        return ExternalCounts(
            generation=self.topology.feed.generation,
            late_answers=self.plugin.late_answers,
            publish_errors=sum(each.failed for each in self.topology.publications),
            unrecorded=len(self.executor.state.unrecorded),
            volatile=len(self.executor.state.volatile),
            unwritable=len(self.executor.state.unwritable),
            partitions=self.executor.state.kernel_partitions.count(),
            tunables=self.tuner_link.count_tunables(),
            tunable_writes=self.tuner_link.writes,
        )

    async def _serve(self, runtime: Path | int) -> None:
        with self._overlaps.watching():
            async with asyncio.TaskGroup() as group:
                delivery = group.create_task(self.executor.run(self._link), name="delivery")
                await self._serve_session(runtime)
                delivery.cancel()

    async def _serve_session(self, runtime: Path | int) -> None:
        if isinstance(runtime, int):
            await self._session.run_inherited(runtime)
        else:
            await self._session.run(str(runtime))

    def _commit(self, event: Event, outcome: Outcome, view: NodeView) -> None:
        """Store a decision; if that fails, a later commit stores it."""
        try:
            self._store.commit(event, outcome, view, self._clock.date())
        except StoreError as error:
            self.metrics.count_store_failure()
            log.warning("not-stored", extra={"error": str(error)})

    def _note_deadlines(self, event: Event, outcome: Outcome, view: NodeView) -> None:
        del event, outcome
        if view.cold:
            self._deadlines.set()

    async def meet_deadlines(self) -> None:
        """Look once a second, while there are deadlines: they are minutes away, and may move.

        They are dates. Where the clock is set back, they are bounded by its new date.
        """
        while await self._deadlines.wait():
            if not self.node.view.cold:
                self._deadlines.clear()
                continue
            before = self._clock.date()
            await self._clock.sleep(1.0)
            await self.events.elapse(anyway=self._clock.date() < before)

    async def keep_stored(self) -> None:
        """Once a minute store what could not be stored: the next decision may be hours away."""
        while True:
            await self._clock.tick(STORE_AGAIN)
            if self._store.trouble:
                await self.events.elapse(anyway=True)

    def _problems(self) -> Iterator[str]:
        """Yield the problems of other parts than the plugin's."""
        if starved := self.watchdog.starvation():
            yield starved
        if trouble := self._store.trouble:
            yield trouble
        yield from self.readiness.problems()
        yield from self.claim_driver.problems()
        yield from self.pod_explanations.problems()
        yield from self.tuner_link.problems()
        if self._rivals:
            yield from self._rivals.problems()
        yield from self._overlaps.problems()
        yield from self.parents.problems()
        yield from self.components.cpuset_requests.problems()
        if self._program.replaced:
            yield f"the daemon cannot import more: {REPLACED}"

    def endpoint(self) -> Endpoint:
        """Return what serves probes and metrics, listening nowhere yet."""
        ready = {"runtime": self.status.missing, "nrt": self.topology.trouble}
        probes = Probes(alive=self.watchdog.trouble, ready=ready)
        return Endpoint(probes, Exporter(self.metrics, self.node, self._clock))

    @asynccontextmanager
    async def listening(self, control_socket: Path) -> AsyncIterator[None]:
        """Serve control calls, and the runtime over gRPC, at *control_socket*.

        Raises OSError if the socket cannot be made.
        """
        async with listening(control_socket, self._serve_callers, self._clock):
            yield

    @asynccontextmanager
    async def _serve_callers(self, path: Path, *, owner_only: bool) -> AsyncIterator[None]:
        if _SERVICES not in sys.modules and self._program.replaced:
            raise ProgramReplacedError
        await asyncio.to_thread(import_module, _SERVICES)  # it takes a while
        from nri_policy.daemon.services import serving_all  # noqa: PLC0415 - for callers only

        async with serving_all(
            path,
            self.control,
            plugin=self._called,
            reload=self.reloads.reload,
            ready=self.synchronized,
            owner_only=owner_only,
        ):
            yield

    @cached_property
    def control(self) -> Control:
        """What answers the commands, made for the first one."""
        from nri_policy.daemon.control import Control  # noqa: PLC0415 - for callers only
        from nri_policy.daemon.hypotheses import Hypotheses  # noqa: PLC0415
        from nri_policy.store.history import History  # noqa: PLC0415

        return Control(
            self.node,
            self._decision_log,
            status=self.status,
            what_if=Hypotheses(
                self.node, self.components.pods, self.reloads, self.auditor, self._unused
            ),
            auditor=self.auditor,
            parents=self.parents,
            executor=self.executor,
            cgroups=self._cgroups,
            cpu_use=self.cpu_use,
            tuner_link=self.tuner_link,
            reloads=self.reloads,
            topology=self.topology,
            past=History(self._store.path),
            version=self._version,
        )

    async def flush_updates(self) -> None:
        """Apply all pending updates, without waiting for an answer that could carry them."""
        await self.executor.settle()
        await self.executor.messages.flush(self._link)

    async def leave(self) -> None:
        """Do for the containers what the settings want when the daemon is stopped for good."""
        if self.node.view.layout.settings.on_exit is OnExit.WIDEN:
            await self.readiness.leave()
            await asyncio.to_thread(self.tuner_link.release)
            await self.executor.widen()
            await self.components.quotas.widen()
            called = self._called.synchronized
            delivered = await self.executor.messages.leave(self._link, LEAVING, called=called)
            log.log(
                logging.INFO if delivered else logging.WARNING,
                "widened",
                extra={"complete": delivered},
            )
