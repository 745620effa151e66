"""The service of the cluster side: the watches, the extender and its metrics, wired together."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import Callable, Iterable
from contextlib import suppress

import msgspec
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from nri_policy.cluster.engine.engine import Engine
from nri_policy.cluster.groups.controller import Controller
from nri_policy.cluster.groups.group_statistics import label_metric
from nri_policy.cluster.numa.admission import NumaAdmission
from nri_policy.cluster.numa.extender import BadRequestError, Verbs, error_result, read_binding
from nri_policy.cluster.numa.node_pods import NodePods
from nri_policy.cluster.numa.promised_room import PromisedRoom
from nri_policy.cluster.numa.promises import LiveZones, NoRoomError
from nri_policy.cluster.numa.service_spread import ServiceSpread
from nri_policy.cluster.objects.document import DocumentError
from nri_policy.cluster.objects.pod import read_pod
from nri_policy.cluster.objects.settings import ClusterSettings
from nri_policy.cluster.service.admission_writer import AdmissionWriter
from nri_policy.cluster.service.forked_answers import ForkedAnswers
from nri_policy.cluster.service.kinds import GROUPS, OF_EXTENDER, OF_GROUPS, OF_KUEUE
from nri_policy.cluster.service.lease import Lease, LeaseName
from nri_policy.cluster.service.live_settings import LiveSettings, PlacementFile
from nri_policy.cluster.service.node_health import NodeHealth
from nri_policy.cluster.service.queries import answer_explain, answer_place
from nri_policy.cluster.service.server import Handlers, Listen, Verb, make_server
from nri_policy.cluster.service.sources import list_sources
from nri_policy.cluster.service.watch import Watch
from nri_policy.cluster.service.writer import Writer
from nri_policy.cluster.view import Cluster
from nri_policy.foundation.clock import SYSTEM_CLOCK, Clock
from nri_policy.kube.client import PODS, Client
from nri_policy.kube.errors import APIError
from nri_policy.settings_sources.settings_file import watch

log = logging.getLogger(__name__)

_SECONDS = (250e-6, 500e-6, 1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 50e-3, 0.1, 0.5, 1.0, 5.0)


class Service:
    """What one replica does."""

    def __init__(  # noqa: PLR0913 - keywords: what it is given to work with
        self,
        settings: ClusterSettings,
        client: Client,
        lease: LeaseName | None = None,
        clock: Clock = SYSTEM_CLOCK,
        *,
        groups: bool = False,
        readiness: bool = False,
        kueue: bool = False,
        file: PlacementFile | None = None,
    ) -> None:
        """Without a *lease* it is the only replica; with *groups* it places groups, too.

        With *readiness* it marks Nodes whose daemon is silent, with *kueue* it answers admission
        checks of Kueue.

        The *settings* are those of the *file*, if there is one.
        """
        self.cluster = Cluster()
        self.zones = LiveZones(settings.extender, self.cluster.view, clock)
        self.cluster.follow(self.zones)
        self.lease = None if lease is None else Lease(client, lease, clock)
        self.settings = LiveSettings(settings, file, self._configure, clock)
        self.controller: Controller | None = None
        self.node_health = NodeHealth(client, self._leads, clock) if readiness else None
        self.admission = NumaAdmission(self.zones, clock) if kueue else None
        self.writer: Writer | None = None
        self.admission_writer: AdmissionWriter | None = None
        spread, pods = ServiceSpread(self.cluster.view, clock), NodePods()
        room: PromisedRoom | None = None
        if groups:
            room = PromisedRoom(self.cluster.view, clock)
            self.controller = Controller(
                settings, self.cluster.view, clock, self.zones, is_contested=room.is_contested
            )
            self.controller.engine.state.on_group = room.set_group
            self.cluster.follow(self.controller, room)
            self.writer = Writer(client, self.controller, self._may_write, clock)
        if self.admission is not None:
            self.admission_writer = AdmissionWriter(client, self.admission, self._may_admit, clock)
        followed = list_sources(
            self.settings,
            self.cluster,
            self.zones,
            spread,
            pods,
            self.controller,
            room,
            self.admission,
            self._wake,
        )
        self.watch = Watch(client, followed, clock)
        self.verbs = Verbs(self.zones, spread, room=room, pods=pods)
        if self.controller is not None:
            self.verbs.closed_to = self.controller.placer.waiting.closed_to
        if self.admission is not None:
            self.verbs.pod_arrived = self.admission.places.pod_arrived
        self._forked = ForkedAnswers()
        self._file = file
        self._client = client
        self._clock = clock
        self._registry = CollectorRegistry(auto_describe=False)
        self._requests = Counter(
            "nri_policy_cluster_requests",
            "Requests of kube-scheduler, by verb and status.",
            ["verb", "status"],
            registry=self._registry,
        )
        self._seconds = Histogram(
            "nri_policy_cluster_request_duration_seconds",
            "From a request's headers to its answer.",
            ["verb"],
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._registry.register(self)

    def answers(self) -> Handlers:
        """Return what the server asks."""

        def at_once(answer: Callable[[bytes], bytes]) -> Verb:
            async def handle(body: bytes) -> bytes:
                return answer(body)

            return handle

        async def of_place(body: bytes) -> bytes:
            return await self._forked.ask(lambda: answer_place(self._engine(), body))

        async def of_explain(body: bytes) -> bytes:
            return await self._forked.ask(lambda: answer_explain(self._engine(), body))

        return Handlers(
            verbs={
                "filter": at_once(self.verbs.filter),
                "prioritize": at_once(self.verbs.prioritize),
                "preempt": at_once(self.verbs.preempt),
                "bind": self.bind,
                "fit": at_once(self.verbs.fit),
                "place": of_place,
                "explain": of_explain,
                "settings": at_once(lambda _: msgspec.json.encode(self.settings.current)),
            },
            ready=self.problem,
            metrics=lambda: generate_latest(self._registry),
            count=self._count,
        )

    def problem(self) -> str:
        """Return why kube-scheduler is not answered; nothing if it is."""
        kinds = OF_EXTENDER if self.controller is None else (*OF_EXTENDER, GROUPS)
        return self.watch.problem(*kinds) or ("" if self.lease is None else self.lease.problem())

    async def run(self) -> None:
        """Follow the cluster, the file and the lease until cancelled; then let the lease go."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.watch.run())
                group.create_task(self.settings.write(self._client, self._leads))
                if self._file is not None:
                    group.create_task(watch(self._file, self.settings.reload, self._clock))
                if self.lease is not None:
                    group.create_task(self.lease.run())
                if self.writer is not None:
                    group.create_task(self.writer.run())
                if self.admission_writer is not None:
                    group.create_task(self.admission_writer.run())
                if self.node_health is not None:
                    group.create_task(self.node_health.run())
        finally:
            if self.lease is not None:
                await self.lease.release()

    async def bind(self, body: bytes) -> bytes:
        """Bind a pod, with the zone that it is promised; else kube-scheduler tries it again."""
        binding = read_binding(body)
        try:
            found = await self._client.get(PODS, binding.name, namespace=binding.namespace)
            pod = read_pod(found, "")
            if pod.node:
                return error_result(f"pod is already assigned to node {pod.node}")
            created = self.verbs.bind(binding, pod)
            await self._client.create(
                PODS, created, namespace=binding.namespace, name=binding.name, part="binding"
            )
        except (APIError, DocumentError, NoRoomError) as error:
            if not isinstance(error, APIError) or error.code:  # else it may have been bound
                self.verbs.withdraw(binding)
            return error_result(str(error))
        return error_result("")

    def collect(self) -> Iterable[Metric]:
        """Return what is read from the state as metrics are asked for."""
        name = "nri_policy_cluster_"
        yield GaugeMetricFamily(
            f"{name}promises", "Places promised and not reported yet.", len(self.zones.promises)
        )
        for own, text, label, numbers in (
            ("promises_ended", "Promises, by why they ended.", "reason", self.zones.ended),
            ("rejected_nodes", "Nodes rejected by the filter.", "reason", self.verbs.rejected),
            ("unreadable_objects", "Malformed objects.", "kind", self.watch.unreadable),
        ):
            yield label_metric(CounterMetricFamily, name + own, text, label, numbers)
        yield CounterMetricFamily(
            f"{name}unknown_nodes", "Nodes asked about that are not known.", self.verbs.unknown
        )
        yield CounterMetricFamily(
            f"{name}internal_errors",
            "Errors of the service itself; each stopped the work on one object or group.",
            self.watch.errors
            + sum(each.errors for each in (self.controller, self.admission) if each is not None),
        )
        if self.writer is not None:
            written = CounterMetricFamily(
                f"{name}writes", "Writes for placement groups.", labels=["kind", "outcome"]
            )
            for labels, number in self.writer.written.items():
                written.add_metric(labels, number)
            yield written
            controller = self.writer.controller
            waiting = controller.placer.waiting
            yield from controller.placer.statistics.collect(
                controller.groups.states(),
                controller.queue.oldest(self._clock.now()),
                len(controller.queue),
                reserved=len({host for *_, hosts in waiting.reservations() for host in hosts}),
                holds_ended=waiting.ended,
                opened=self.writer.written["OpenGate", "done"],
            )
        yield GaugeMetricFamily(
            f"{name}settings_rejected",
            "Whether the latest settings were wrong, and older ones are in force.",
            int(bool(self.settings.rejected)),
        )
        if self.admission_writer is not None:
            yield label_metric(
                CounterMetricFamily,
                f"{name}admission_checks",
                "Answers to Kueue's admission checks.",
                "state",
                self.admission_writer.answers,
            )
        if self.lease is not None:
            yield GaugeMetricFamily(
                f"{name}leader", "Whether this replica leads.", int(self.lease.leading)
            )
        text = "Zones that are not NUMA nodes."
        yield label_metric(
            GaugeMetricFamily, f"{name}ignored_zones", text, "reason", self.zones.ignored()
        )
        yield label_metric(
            GaugeMetricFamily,
            f"{name}not_followed_seconds",
            "How long objects of a kind could not be followed.",
            "kind",
            self.watch.lost_seconds(),
        )

    def _engine(self) -> Engine:
        """Return the engine of groups; raises BadRequestError where there is no answer."""
        if self.controller is None:
            raise BadRequestError("it places no groups: it runs without --groups")
        if problem := self.watch.problem(*OF_GROUPS):
            raise BadRequestError(f"not ready: {problem}")
        return self.controller.engine

    def _may_write(self) -> bool:
        """Whether groups may be placed: we lead, and know all that there is."""
        return self._leads() and not self.watch.problem(*OF_GROUPS)

    def _may_admit(self) -> bool:
        """Whether admission checks may be answered: we lead, and know all that there is."""
        return self._leads() and not self.watch.problem(*OF_EXTENDER, *OF_KUEUE)

    def _wake(self) -> None:
        for writer in (self.writer, self.admission_writer):
            if writer is not None:
                writer.wake()

    def _leads(self) -> bool:
        return self.lease is None or self.lease.leading

    def _configure(self, settings: ClusterSettings) -> None:
        self.zones.fits.configure(settings.extender)
        if self.controller is not None:
            self.controller.configure(settings)

    def _count(self, verb: str, status: int, seconds: float) -> None:
        self._requests.labels(verb, str(status)).inc()
        self._seconds.labels(verb).observe(seconds)


async def run(  # noqa: PLR0913 - keywords: what it is given to work with
    settings: ClusterSettings,
    client: Client,
    listen: Listen,
    *,
    file: PlacementFile | None,
    lease: LeaseName | None,
    groups: bool,
    readiness: bool,
    kueue: bool,
) -> None:
    """Serve until SIGTERM or SIGINT; raises ValueError and OSError where it cannot listen.

    Other settings in the *file* count at once, and are looked for at SIGHUP.
    """
    service = Service(
        settings, client, lease, groups=groups, readiness=readiness, kueue=kueue, file=file
    )
    http = make_server(listen, service.answers())
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, setattr, http, "should_exit", True)
    loop.add_signal_handler(signal.SIGHUP, service.settings.reload)
    following = asyncio.create_task(service.run())
    following.add_done_callback(lambda _: setattr(http, "should_exit", True))
    renewing = asyncio.create_task(http.follow_certificate(SYSTEM_CLOCK))
    try:
        with socket.create_server((listen.host, listen.port)) as listener:
            host, port, *_ = listener.getsockname()
            log.info("listening", extra={"address": host, "port": port})
            await http.serve([listener])
    finally:
        renewing.cancel()
        following.cancel()
        with suppress(asyncio.CancelledError):
            await following
        await client.close()
