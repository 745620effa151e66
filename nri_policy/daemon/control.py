"""The control service: answers from a view of the node.

Owns what each method answers; proto/control.proto.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

import grpc
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from nri_policy.audit.auditor import Auditor
from nri_policy.audit.cgroup import ContainerCgroups
from nri_policy.audit.cpu_use import CpuUseSamples
from nri_policy.audit.parents import ParentCgroups
from nri_policy.classes import explain_unserved
from nri_policy.control.container_names import UnknownNameError, find_by_name
from nri_policy.control.decision_log import DecisionLog, LaggingError, Refusal
from nri_policy.daemon.hypotheses import Hypotheses
from nri_policy.daemon.reload import Reloads
from nri_policy.daemon.status import Status, own_usage
from nri_policy.daemon.tuner_link import UNANSWERED, TunerLink
from nri_policy.delivery.executor import Executor
from nri_policy.engine.event import Reconfigured
from nri_policy.engine.explanation import DecisionKind
from nri_policy.engine.grant import Placement
from nri_policy.foundation.grpc_services import service_handler
from nri_policy.kubelet.manifest_pods import Manifests
from nri_policy.node import Node, NodeView, Placed, WhatIf
from nri_policy.nrt.topology import PublishedTopology
from nri_policy.proto import control_pb2 as pb
from nri_policy.report import (
    ClassItemReport,
    ExplanationReport,
    NeighbourReport,
    RecentUseReport,
    SettingsReport,
    StatusReport,
    TopologyReport,
    annotation_items,
    answer_report,
    class_items,
    container_report,
    encode,
    explanation_report,
    held_hints,
    list_neighbours,
    machine_report,
    newcomer_report,
    occupied_pools,
    pool_reports,
    refusal_report,
    what_if_report,
)
from nri_policy.settings import effective
from nri_policy.store.history import History
from nri_policy.workload.annotation_values import HintKind
from nri_policy.workload.annotation_warnings import check_annotations
from nri_policy.workload.annotations import CRIO
from nri_policy.workload.crio_annotations import CRIOChoice
from nri_policy.workload.pod import Container

SERVICE = pb.DESCRIPTOR.services_by_name["Control"]

_MOST_WATCHING = 16
_MOST_REPLICAS = 1000
_MOST_NEIGHBOURS = 3
_LEAST_USE = 0.01  # CPUs
_NOT_ASKED = (
    "agent.podResourceAPI is off: the kubelet is not asked which devices it assigned, and a device"
    " counts only by its device file"
)
_UNKNOWN = "the runtime has not told its containers yet"

_Context = grpc.aio.ServicerContext[object, object]


class Control:
    """Serves what one node holds and would do."""

    def __init__(  # noqa: PLR0913 - keywords: the parts that the daemon wires
        self,
        node: Node,
        decision_log: DecisionLog,
        *,
        status: Status,
        what_if: Hypotheses,
        auditor: Auditor,
        parents: ParentCgroups,
        executor: Executor,
        cgroups: ContainerCgroups,
        cpu_use: CpuUseSamples,
        tuner_link: TunerLink,
        reloads: Reloads,
        topology: PublishedTopology,
        past: History,
        version: str,
    ) -> None:
        self._node = node
        self._decision_log = decision_log
        self._status = status
        self._what_if = what_if
        self._auditor = auditor
        self._parents = parents
        self._executor = executor
        self._cgroups = cgroups
        self._cpu_use = cpu_use
        self._tuner_link = tuner_link
        self._reloads = reloads
        self._topology = topology
        self._past = past
        self._version = version
        self._watching = 0

    def handler(self) -> grpc.GenericRpcHandler:
        """Return what a server needs to offer this."""
        methods: dict[str, Callable[..., Any]] = {
            "Status": self.status,
            "Pools": self.pools,
            "Containers": self.containers,
            "Machine": self.machine,
            "Settings": self.settings,
            "Journal": self.journal,
            "Explain": self.explain,
            "WhatIf": self.what_if,
            "Audit": self.audit,
            "Topology": self.topology,
            "Watch": self.watch,
        }
        return service_handler(SERVICE, methods)

    async def status(self, request: pb.StatusRequest, context: _Context) -> pb.Document:
        """Return how the daemon is as `status -o json` prints it."""
        del request, context
        self._node.catch_up()
        view, latest = self._node.view, self._reloads.latest
        layout = view.layout
        used = own_usage()
        return _document(
            StatusReport(
                version=self._version,
                synchronized=self._status.synchronized.is_set(),
                runtime=self._status.runtime,
                pools=len(layout.tree.pools),
                containers=len(view.placed),
                refused=len(self._list_refused(view)),
                online_cpus=layout.machine.online,
                offline_cpus=layout.machine.offline or None,
                reserved_cpus=layout.capacity.reserved,
                isolated_cpus=layout.capacity.isolated,
                exclusive_cpus=view.exclusive,
                shared_cpus=view.free,
                notices=(
                    *self._status.doubts(),
                    *layout.shortages,
                    *layout.settings.notices,
                    *layout.notes,
                ),
                publications=tuple(self._topology.publications),
                latest_reload=latest,
                lacking_classes=len(view.lacking_classes),
                tunables=self._tuner_link.count_by_state(),
                cpu_seconds=used.cpu_seconds,
                memory_bytes=used.memory_bytes,
            )
        )

    async def pools(self, request: pb.PoolsRequest, context: _Context) -> pb.Document:
        """Return the pools as `pools -o json` prints them."""
        del request, context
        return _document(occupied_pools(self._node.view))

    async def containers(self, request: pb.ContainersRequest, context: _Context) -> pb.Document:
        """Return the containers as `containers -o json` prints them."""
        del context
        self._node.catch_up()
        view, causes = self._node.view, self._decision_log.causes
        cgroups, shown, delivery = {}, {}, self._executor.state
        for holding in view.holdings():
            container = holding.placed.container
            failed = delivery.known(container.id).refused
            name = container.full_name
            cgroups[name] = container.cgroup
            shown[name] = container_report(
                holding,
                container.state.name.lower(),
                error=None if failed is None else _not_taken(failed),
                updated_by=(causes[name],) if name in causes else (),
                partition_error=delivery.kernel_partitions.error(container.id),
            )
        for name, reason in self._list_refused(view).items():
            shown.setdefault(name, refusal_report(reason, updated_by=()))
        if request.usage:
            used = await asyncio.to_thread(self._cgroups.cpu_seconds, cgroups.values())
            for name, cgroup in cgroups.items():
                shown[name] = replace(shown[name], cpu_seconds=used.get(cgroup))
        return _document(shown)

    async def machine(self, request: pb.MachineRequest, context: _Context) -> pb.Document:
        """Return the machine and its pool tree as `topology -o json` prints them."""
        del request, context
        layout = self._node.view.layout
        pools = pool_reports(layout.tree, layout.capacity)
        return _document(TopologyReport(machine=machine_report(layout.machine), pools=pools))

    async def settings(self, request: pb.SettingsRequest, context: _Context) -> pb.Document:
        """Return the settings as `config show -o json` prints them."""
        del request, context
        settings, latest = self._node.view.layout.settings, self._reloads.latest
        return _document(
            SettingsReport(
                latest_reload=latest,
                origin=settings.origin,
                notices=settings.notices,
                settings=effective(settings),
            )
        )

    async def journal(self, request: pb.JournalRequest, context: _Context) -> pb.Document:
        """Return a page of the journal."""
        del context
        page = await asyncio.to_thread(
            self._past.page, request.after, request.limit, request.container
        )
        return _document(page)

    async def explain(self, request: pb.ExplainRequest, context: _Context) -> pb.Document:
        """Return why a container, or each of a pod, is where it is, or was."""
        self._node.catch_up()
        view, refusals = self._node.view, dict(self._decision_log.refusals)
        placed = view.by_name()
        known: dict[str, Container] = {
            **{name: each.container for name, each in refusals.items()},
            **{name: each.container for name, each in placed.items()},
        }
        try:
            try:
                found = find_by_name(request.name, known)
            except UnknownNameError:
                gone = await asyncio.to_thread(self._past.names)
                found = find_by_name(request.name, {*known, *gone})
        except UnknownNameError as error:
            unknown = "" if self._status.synchronized.is_set() else f"; {_UNKNOWN}"
            await context.abort(grpc.StatusCode.NOT_FOUND, f"{error}{unknown}")

        def explanation() -> list[ExplanationReport]:
            names = [found] if isinstance(found, str) else found
            had = {*known, *self._past.names()}
            return [
                self._with_answer(
                    replace(
                        self._find_explanation(each, placed.get(each), refusals.get(each)),
                        annotations=_remarks(each, known.get(each), had, view),
                        classes=self._class_items(placed.get(each), view),
                    ),
                    placed.get(each),
                    view,
                )
                for each in names
            ]

        shown = await asyncio.to_thread(explanation)
        return _document(shown[0] if isinstance(found, str) else shown)

    def _class_items(
        self, placed: Placed | None, view: NodeView
    ) -> tuple[ClassItemReport, ...] | None:
        """Return the values of a container's classes, and those found in the kernel."""
        if placed is None:
            return None
        found = self._auditor.in_kernel(placed.container.id)
        name, classes = placed.container.full_name, view.classes_of(placed)
        tunables = self._tuner_link.of_origin(name)
        items = class_items(classes, found, *tunables) or ()
        crio = view.crio_choice(placed) or CRIOChoice()
        if (classes is None or classes.cpu is None) and (crio.governor or crio.latency):
            items += annotation_items("cpu", "crio.io", *tunables)
        choice = view.interrupts_of(placed) if placed.grant.own else None
        if choice is not None:
            key = choice.key if choice.key in CRIO else "irq-affinity"
            tunables = self._tuner_link.of_origin(name, interrupts=True)
            items += annotation_items("irq", key, *tunables)
        if self._tuner_link.unanswered:  # the tuner makes the groups of RDT classes
            items = tuple(
                replace(each, state=f"{each.state}: {UNANSWERED}")
                if each.kind == "rdt" and each.state == "unsupported"
                else each
                for each in items
            )
        return items or None

    def _find_explanation(
        self, name: str, placed: Placed | None, refusal: Refusal | None
    ) -> ExplanationReport:
        """Return an explanation from the engine, or from the journal if the container is gone."""
        if placed is not None:
            container = placed.container
            report, before = explanation_report(placed.explanation, placed.grant), None
            if placed.explanation.kind is DecisionKind.KEPT:  # it has no reasons
                before = self._past.placement(name, container.id)
                report = replace(report, why=_why_kept(before, report.pool))
            return replace(
                report,
                changes=self._past.changes(container.id, container.pod.id),
                placed_before=before,
                refused_resize=None
                if refusal is None
                else self._past.refused_resize(name, explanation_report(refusal.explanation, None)),
            )
        past = self._past.explanation(name)
        if (refusal is not None and refusal.pod_exists) or past is None:
            assert refusal is not None, "a known name is placed, refused or in the journal"
            return replace(explanation_report(refusal.explanation, None), changes=())
        return past

    async def what_if(self, request: pb.WhatIfRequest, context: _Context) -> pb.Document:
        """Return where pods would go, or which containers would move under other settings.

        Each call has a copy of the state, and a thread: `RequestLimiter` runs one at a time.
        """
        if not self._status.synchronized.is_set():
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, _UNKNOWN)
        if request.replicas > _MOST_REPLICAS:
            text = f"{request.replicas} replicas are too many to try; at most {_MOST_REPLICAS}"
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, text)
        try:
            event, asked = await self._parse_question(request)
        except ValueError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        found = {} if event is None else await self._what_if.observe_unpinned()
        before = self._node.view
        trial = WhatIf(
            self._node.fork(),
            most=request.most,
            found=found,
            devices=self._what_if.unused(),
            notes=asked.notes,
        )
        if event is None or trial.reconfigure(event):
            for pod in asked.pods:
                for _ in trial.run(pod):
                    await asyncio.sleep(0)  # the runtime's requests come first
        result, newcomers = trial.result(), {}
        for name, newcomer in result.newcomers.items():
            newcomers[name] = newcomer_report(newcomer)
            await asyncio.sleep(0)
        tunables = await asyncio.to_thread(self._tuner_link.preview, before, trial.view)
        unmet = (f"{name}: {text}" for name in newcomers for text in tunables.unmet.get(name, ()))
        return _document(
            replace(
                what_if_report(result, newcomers),
                warnings=(*result.warnings, *unmet),
                tunables=tunables.changes,
            )
        )

    async def _parse_question(
        self, request: pb.WhatIfRequest
    ) -> tuple[Reconfigured | None, Manifests]:
        """Return the settings and the pods to try; ValueError where they make no sense."""
        event = await self._what_if.settings(request.settings) if request.settings else None
        if event is not None and not request.manifests:
            return event, Manifests(pods=(), notes=())
        replicas = 1 if request.most else request.replicas
        asked = await asyncio.to_thread(self._what_if.pods, request.manifests, replicas)
        if request.most:
            pods = tuple(replace(pod, replicas=_MOST_REPLICAS) for pod in asked.pods)
            asked = replace(asked, pods=pods)
        return event, asked

    async def audit(self, request: pb.AuditRequest, context: _Context) -> pb.Document:
        """Return what an audit finds now, as `audit -o json` prints it."""
        del request
        if not self._status.synchronized.is_set():
            rival = self._status.rival()
            text = f"{_UNKNOWN}: it has another daemon, {rival}" if rival else _UNKNOWN
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, text)
        return _document(await self._auditor.document())

    async def topology(self, request: pb.TopologyRequest, context: _Context) -> pb.Document:
        """Return the NodeResourceTopology object as it would be published."""
        del request
        if not self._status.synchronized.is_set():
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, _UNKNOWN)
        return _document(await self._topology.document())

    async def watch(
        self, request: pb.WatchRequest, context: _Context
    ) -> AsyncIterator[pb.Decision]:
        """Yield the decisions from now on; metadata marks the beginning."""
        del request
        if self._watching == _MOST_WATCHING:
            text = f"{_MOST_WATCHING} others watch already"
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, text)
        self._watching += 1
        self._node.catch_up()
        try:
            with self._decision_log.watching() as watcher:
                await context.send_initial_metadata(())
                while True:
                    yield await watcher.next()
        except LaggingError as error:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))
        finally:
            self._watching -= 1

    def _with_answer(
        self, report: ExplanationReport, placed: Placed | None, view: NodeView
    ) -> ExplanationReport:
        """Return *report* with what a container has now, and where its devices are."""
        if placed is None:
            return report
        devices = held_hints(view.holding(placed), view.layout.topology_hints)
        asked = view.layout.settings.agent.pod_resource_api
        notes = (*report.notes, *self._parents.notes(placed))
        hints = placed.request.steering.hints
        if not asked and any(hint.kind is HintKind.DEVICES for hint in hints):
            notes = (*notes, _NOT_ASKED)
        answer = answer_report(
            view,
            placed,
            devices,
            recent=self._find_use(view, placed),
            partition_error=self._executor.state.kernel_partitions.error(placed.container.id),
        )
        return replace(report, answer=answer, devices=devices, notes=notes)

    def _find_use(self, view: NodeView, placed: Placed) -> RecentUseReport | UnsetType:
        """Return what a container used in the last minute, with the neighbours that used most."""
        own = placed.container.cgroup
        names = {each.container.cgroup: each for each in list_neighbours(view, placed)}
        found = self._cpu_use.recent([own, *names])
        if own not in found:
            return UNSET
        neighbours = [
            NeighbourReport(container=each.container.full_name, cpus=found[cgroup].cpus)
            for cgroup, each in names.items()
            if cgroup in found and found[cgroup].cpus >= _LEAST_USE
        ]
        neighbours.sort(key=lambda each: (-each.cpus, each.container))
        return replace(found[own], neighbours=tuple(neighbours[:_MOST_NEIGHBOURS]))

    def _list_refused(self, view: NodeView) -> dict[str, str]:
        """Return why containers that hold nothing were refused, by name, while their pods exist."""
        placed = view.by_name()
        return {
            name: refusal.reason
            for name, refusal in self._decision_log.refusals.items()
            if refusal.pod_exists and name not in placed
        }


def _remarks(
    full_name: str, container: Container | None, known: Iterable[str], view: NodeView
) -> tuple[str, ...]:
    """Return what is odd about the annotations of a container, as far as its pod is known."""
    if container is None:
        return ()
    pod = full_name.rpartition("/")[0]
    siblings = {name for each, _, name in (k.rpartition("/") for k in known) if each == pod}
    left = explain_unserved(view.layout.settings, view.equipment, container.pod)
    odd = check_annotations(container.pod.annotations, container.name, siblings, all_known=False)
    return (*odd, *left)


def _why_kept(before: ExplanationReport | None, pool: str | None) -> str:
    """Return why a container is where it is that was there before the daemon, or its pools."""
    if before is None:
        return "it was there already, and no decision about it is stored"
    if before.pool != pool:
        return f"it was placed on {before.pool}, and moved since"
    if before.why is None:
        return "it kept its place"
    return f"it kept its place: {before.why}"


def _not_taken(placement: Placement) -> str:
    return (
        f"the runtime does not set its cpuset to {placement.cpus}, its memory nodes to "
        f"{placement.mems}"
    )


def _document(value: object) -> pb.Document:
    return pb.Document(json=encode(value))
