"""What-if: the result of new settings or new pods, on a fork of the engine.

Owns the order in which a pod's containers start, which is the kubelet's: init containers one after
the other, each ending before the next unless it is a sidecar. If an init container is refused, its
pod ends; if another container is, the rest of its pod continues.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from itertools import chain, count, islice

from msgspec import Struct
from msgspec.structs import replace

from nri_policy.classes import Classes, explain_unserved
from nri_policy.engine.engine import Engine
from nri_policy.engine.event import Created, Prepared, Reconfigured, Stopped
from nri_policy.engine.explanation import Explanation
from nri_policy.engine.state.layout import Layout
from nri_policy.engine.state.state import Placed
from nri_policy.foundation.cpuset import EMPTY, CPUSet
from nri_policy.foundation.refusal import Refused
from nri_policy.foundation.units import format_pages
from nri_policy.node.alignment import describe_misfit
from nri_policy.node.view import Holding, NodeView, view_of
from nri_policy.settings import ExclusivePartitions, describe_unset
from nri_policy.workload.annotation_warnings import check_annotations
from nri_policy.workload.claim import ClaimPart
from nri_policy.workload.pod import Container
from nri_policy.workload.request import Sort

_IGNORED = (
    "devices were ignored: {}: without agent.podResourceAPI the daemon does not know how many are"
    " left"
)

CPUsAndMems = tuple[CPUSet, CPUSet]  # the CPUs and memory nodes of a container


class HypotheticalContainer(Struct, frozen=True, kw_only=True):
    """One container of a hypothetical pod."""

    container: Container
    init: bool  # if it is refused, the rest of the pod does not start
    to_end: bool  # it ends before the next one starts


class ClaimedParts(Struct, frozen=True, kw_only=True):
    """The devices of ours that the claims of a hypothetical pod would get."""

    prepared: tuple[tuple[ClaimPart, ...], ...] = ()  # the parts of each claim
    uses: Mapping[str, tuple[str, ...]] = {}  # the ids of a container's parts, by its name
    warnings: tuple[str, ...] = ()  # about parts of the claims that were left out


def _nothing(_name: str, _view: NodeView) -> ClaimedParts:
    return ClaimedParts()


class HypotheticalPod(Struct, frozen=True, kw_only=True):
    """A hypothetical pod, and its number of replicas or the maximum."""

    namespace: str
    name: str
    replicas: int
    ordinal: int | None = None  # number of a StatefulSet's first pod; others have none
    # the containers of the pod of that name, in order
    starts: Callable[[str], tuple[HypotheticalContainer, ...]]
    devices: Mapping[str, int] = {}  # devices of each plugin's resource that one pod takes
    # claims of the pod of that name; may raise Refused
    claim: Callable[[str, NodeView], ClaimedParts] = _nothing


class NewSettings(Struct, frozen=True, kw_only=True):
    """The result of new settings."""

    layout: Layout  # in force afterwards
    refusal: str  # why they would be refused; empty if accepted


class Misfit(Struct, frozen=True, kw_only=True):
    """A replica that fits but is split over nodes."""

    pod: str  # name
    replica: int  # the first is 1
    why: str


class Fit(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How many replicas of a pod fit."""

    pod: str  # namespace/name
    replicas: int | None  # None: as many as fit
    fit: int
    more: bool  # all replicas fit; perhaps more would
    misfits: tuple[Misfit, ...]
    refusal: str = ""  # why the first that does not fit would be refused; empty if all fit
    starts_unplaced: bool = False  # the first that does not fit starts anyway: nothing is pinned


class NewContainer(Struct, frozen=True, kw_only=True):
    """The result of starting a container."""

    holding: Holding | None  # None: it was refused
    explanation: Explanation | None = None
    refusal: str | None = None
    misfit: str | None = None
    ended: bool = False  # before the next one started


class HeldResources(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a container has, where it runs, and its I/O limits."""

    pool: str  # if CPUs are not pinned, the one around its CPUs; empty if unknown
    exclusive: CPUSet
    shared_milli: int
    isolated: CPUSet
    cpus: CPUSet
    mems: CPUSet
    blockio: str | None = None  # the class of its I/O
    limits: Mapping[str, str] = {}  # cgroup file -> content, by that class
    partition: ExclusivePartitions | None = None  # the kind of its kernel partition


class WhatIfResult(Struct, frozen=True, kw_only=True):
    """The result of a what-if; containers are by namespace/pod/name."""

    fits: bool
    settings: NewSettings | None
    fits_by_pod: tuple[Fit, ...]
    newcomers: dict[str, NewContainer]
    changes: dict[str, tuple[HeldResources, HeldResources]]  # of other containers: before, after
    warnings: tuple[str, ...]
    notes: tuple[str, ...]  # about new containers


class WhatIf:
    """Tries settings, then pods one after the other; collects the results for all containers."""

    def __init__(
        self,
        engine: Engine,
        *,
        most: bool = False,
        found: Mapping[str, CPUsAndMems] | None = None,
        devices: Mapping[str, int] | None = None,
        notes: Sequence[str] = (),
    ) -> None:
        """Try on *engine*, a fork of the node's; *most*: as many as fit, without a number.

        *found* has where unpinned containers run now, by id; *devices* the free devices of each
        resource, None if unknown; *notes* come first in the result.
        """
        self._devices = None if devices is None else dict(devices)
        self._engine = engine
        self._most = most
        self._cpusets = _known_cpusets(view_of(engine), found or {})
        self._before = _holdings(view_of(engine), self._cpusets)
        self._pinned = engine.layout.settings.pin_cpu  # before
        self._settings: NewSettings | None = None
        self._fits: list[Fit] = []
        self._newcomers: dict[str, NewContainer] = {}
        self._warnings: list[str] = []
        self._notes = [*notes]

    def reconfigure(self, event: Reconfigured) -> bool:
        """Apply settings; return whether they would be accepted."""
        reason = ""
        try:
            self._warnings += self._engine.handle(event).warnings
        except Refused as error:
            reason = str(error)
        self._settings = NewSettings(layout=self._engine.layout, refusal=reason)
        return not reason

    def run(self, wanted: HypotheticalPod) -> Iterator[None]:
        """Start the replicas of *wanted*, until one does not fit.

        Yields after each container, so that the caller can let other tasks run.
        """
        fit, misfits, odd = 0, list[Misfit](), dict[str, list[str]]()
        refusal, starts_unplaced = "", False
        if wanted.devices and self._devices is None:
            self._warnings.append(_IGNORED.format(", ".join(wanted.devices)))
        for name in islice(self._names(wanted), wanted.replicas):
            starts = wanted.starts(name)
            if not fit:  # equal for all replicas
                odd = self._list_remarks(starts)
                self._warnings += _name_once(odd, len(starts))
            try:
                starts = self._prepare(wanted, name, starts)
            except Refused as error:
                first, refusal = starts[0].container.full_name, str(error)
                self._newcomers[first] = NewContainer(holding=None, refusal=refusal)
                break
            if not (yield from self._start(starts, odd)):
                refusal = self._first_refusal(starts)
                starts_unplaced = self._engine.layout.settings.pins_nothing
                break
            fit += 1
            reasons = [self._newcomers[s.container.full_name].misfit for s in starts]
            if why := next(filter(None, reasons), None):
                misfits.append(Misfit(pod=name, replica=fit, why=why))
        self._fits.append(
            Fit(
                pod=f"{wanted.namespace}/{wanted.name}",
                replicas=None if self._most else wanted.replicas,
                fit=fit,
                more=fit == wanted.replicas,
                misfits=tuple(misfits),
                refusal=refusal,
                starts_unplaced=starts_unplaced,
            )
        )

    @property
    def view(self) -> NodeView:
        """The node as it would be."""
        return view_of(self._engine)

    def result(self) -> WhatIfResult:
        """Return the results so far."""
        view, newcomers = self.view, {}
        placed, settings = view.by_name(), view.layout.settings
        unset = describe_unset(pin_cpu=settings.pin_cpu, pin_memory=settings.pin_memory)
        for name, each in self._newcomers.items():
            # later containers may have changed it
            now = view.holding(placed[name]) if name in placed else each.holding
            newcomers[name] = replace(each, holding=now)
        after = _holdings(view, _known_cpusets(view, self._cpusets))
        if not (self._pinned and settings.pin_cpu):
            after = _keep_pools(self._before, after)
        return WhatIfResult(
            # with *most*, at least one replica must fit
            fits=all(pod.fit != 0 if self._most else pod.more for pod in self._fits)
            and (self._settings is None or not self._settings.refusal),
            settings=self._settings,
            fits_by_pod=tuple(self._fits),
            newcomers=newcomers,
            changes={
                name: (before, after[name])
                for name, before in self._before.items()
                if before != after[name]
            },
            warnings=tuple(dict.fromkeys(self._warnings)),
            notes=tuple(dict.fromkeys([*self._notes, *([unset] if unset else [])])),
        )

    def _prepare(
        self, wanted: HypotheticalPod, name: str, starts: tuple[HypotheticalContainer, ...]
    ) -> tuple[HypotheticalContainer, ...]:
        """Take the devices and claims of one pod; raises Refused.

        As the kubelet does, it refuses a pod whose devices or huge pages the node lacks.
        """
        if short := self._find_missing_pages(starts) or self._take_devices(wanted.devices):
            raise Refused(short)
        claimed = wanted.claim(name, view_of(self._engine))
        self._warnings += claimed.warnings
        for parts in claimed.prepared:
            self._engine.handle(Prepared(parts=parts))
        return tuple(
            replace(each, container=replace(each.container, claims=ids))
            if (ids := claimed.uses.get(each.container.name))
            else each
            for each in starts
        )

    def _find_missing_pages(self, starts: tuple[HypotheticalContainer, ...]) -> str:
        """Return which huge pages of one pod are missing on the node, "" if none are."""
        memory = self._engine.state.memory
        for size, amount in _count_pages(starts).items():
            known = size in memory.map.hugepages
            left = memory.free_pages(size, memory.map.nodes) if known else 0
            if left < amount:
                pages = format_pages(size, amount)
                return f"it asks for {pages} huge pages, and {left // size} are left"
        return ""

    def _take_devices(self, devices: Mapping[str, int]) -> str:
        """Take the devices of one pod; return what is missing, "" if nothing is."""
        if self._devices is None:
            return ""
        left = self._devices
        for resource, amount in devices.items():
            if left.get(resource, 0) < amount:
                return f"it asks for {amount} {resource}, and {left.get(resource, 0)} are left"
        left.update({resource: left[resource] - amount for resource, amount in devices.items()})
        return ""

    def _names(self, wanted: HypotheticalPod) -> Iterator[str]:
        """Yield unused names for replicas.

        The pod's own name for a single one; else, and for a StatefulSet, names with numbers.
        """
        pods = (placed.container.pod for placed in view_of(self._engine).placed.values())
        taken = {pod.name for pod in pods if pod.namespace == wanted.namespace}
        taken |= {
            name.split("/")[1]
            for name in self._newcomers
            if name.startswith(f"{wanted.namespace}/")
        }
        plain = [wanted.name] if wanted.replicas == 1 and wanted.ordinal is None else []
        first = 1 if wanted.ordinal is None else wanted.ordinal
        numbered = (f"{wanted.name}-{number}" for number in count(first))
        return (name for name in chain(plain, numbered) if name not in taken)

    def _start(
        self, starts: tuple[HypotheticalContainer, ...], said: Collection[str]
    ) -> Generator[None, None, bool]:
        """Start one pod; return whether all of its containers got a place.

        Warnings in *said* are not repeated.
        """
        whole = True
        for start in starts:
            placed = self._create(start.container, said)
            if placed and start.to_end:
                name = start.container.full_name
                self._newcomers[name] = replace(self._newcomers[name], ended=True)
                self._engine.handle(Stopped(container_id=start.container.id))
            yield
            whole = whole and placed
            if start.init and not placed and not self._engine.layout.settings.pins_nothing:
                break
        return whole

    def _create(self, container: Container, said: Collection[str]) -> bool:
        """Start one container; return whether it got a place."""
        try:
            decision = self._engine.handle(Created(container=container))
        except Refused as error:
            self._newcomers[container.full_name] = NewContainer(holding=None, refusal=str(error))
            return False
        view = view_of(self._engine)
        placed = view.placed[container.id]
        self._newcomers[container.full_name] = NewContainer(
            holding=view.holding(placed),
            explanation=decision.explanation,
            misfit=describe_misfit(view, placed),
        )
        self._warnings += [
            f"{container.full_name}: {each}" for each in decision.warnings if each not in said
        ]
        notes = [*decision.notes]
        if decision.explanation is not None and (text := decision.explanation.unmatched):
            notes.append(text)
        self._notes += [f"{container.full_name}: {each}" for each in notes]
        return True

    def _first_refusal(self, starts: tuple[HypotheticalContainer, ...]) -> str:
        """Return why the first container that was refused was; with its name, if it has company."""
        refused = (
            (each.container.name, new.refusal)
            for each in starts
            if (new := self._newcomers.get(each.container.full_name)) and new.refusal
        )
        name, reason = next(refused)
        return f"{name}: {reason}" if len(starts) > 1 else reason

    def _list_remarks(self, starts: tuple[HypotheticalContainer, ...]) -> dict[str, list[str]]:
        """Return the remarks on annotations without effect, each with its containers."""
        containers, state = [start.container for start in starts], self._engine.state
        names = [each.name for each in containers]
        about: dict[str, list[str]] = {}
        for each in containers:
            odd = check_annotations(each.pod.annotations, each.name, names, all_known=True)
            left = explain_unserved(state.layout.settings, state.equipment, each.pod)
            for remark in (*odd, *left):
                about.setdefault(remark, []).append(each.full_name)
        return about


def _count_pages(starts: tuple[HypotheticalContainer, ...]) -> dict[int, int]:
    """Return the bytes of huge pages of each size that a pod needs.

    Init containers that end leave theirs to later containers.
    """
    lasting, most = Counter[int](), Counter[int]()
    for start in starts:
        pages = Counter(dict(start.container.resources.hugepages))
        if start.to_end:
            most |= lasting + pages
        else:
            lasting += pages
    return dict(most | lasting)


def _name_once(about: Mapping[str, Sequence[str]], containers: int) -> Iterator[str]:
    """Yield remarks with their containers, or the pod if they concern all of its *containers*."""
    for remark, whose in about.items():
        if len(whose) == containers > 1:
            yield f"{whose[0].rpartition('/')[0]}: {remark}"
        else:
            yield from (f"{name}: {remark}" for name in whose)


def _known_cpusets(view: NodeView, otherwise: Mapping[str, CPUsAndMems]) -> dict[str, CPUsAndMems]:
    """Return the cpusets of containers: as sent to the runtime; *otherwise* if unpinned."""
    cpusets = {}
    for container_id in view.placed:
        cpus, mems = view.sent[container_id]
        there = otherwise.get(container_id, (EMPTY, EMPTY))
        cpusets[container_id] = cpus or there[0], mems or there[1]
    return cpusets


def _holdings(view: NodeView, cpusets: Mapping[str, CPUsAndMems]) -> dict[str, HeldResources]:
    """Return what every container has and where it runs, by name."""
    holdings = {}
    for container_id, placed in view.placed.items():
        cpus, mems = cpusets[container_id]
        grant = placed.grant
        classes = view.classes.get(container_id) or Classes()
        partition = view.partition(container_id)
        holdings[placed.container.full_name] = HeldResources(
            pool=_pool(view, placed, cpus),
            exclusive=grant.exclusive,
            shared_milli=grant.shared,
            isolated=grant.exclusive if grant.isolated else EMPTY,
            cpus=cpus,
            mems=mems,
            blockio=None if classes.blockio is None else classes.blockio.name,
            limits=classes.limits,
            partition=None if isinstance(partition, str) else partition.kind,
        )
    return holdings


def _keep_pools(
    before: Mapping[str, HeldResources], after: Mapping[str, HeldResources]
) -> dict[str, HeldResources]:
    """Return *after* with the former pools of containers that stay on their CPUs.

    Where pinning is turned on or off, `_pool` finds a pool by other rules than before.
    """
    return {
        name: replace(each, pool=old.pool)
        if (old := before.get(name)) is not None and old.cpus == each.cpus
        else each
        for name, each in after.items()
    }


def _pool(view: NodeView, placed: Placed, cpus: CPUSet) -> str:
    """Return the name of the pool that a container on *cpus* is in."""
    layout = view.layout
    if layout.settings.pin_cpu or placed.grant.sort is Sort.PRESERVE:
        return layout.tree.pools[placed.grant.pool].name
    here = cpus & layout.tree.top.cpus
    return layout.tree.around(here).name if here else ""
