"""NodeView: the state of the node at one moment, for all readers.

Owns what can be known of the node between two events. The tables are the engine's own, shared until
the next event, and the table of pods until a pod changes. Everything else is derived on request. A
view never changes, so it can be kept, compared and read on any thread.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping

from msgspec import Struct
from msgspec.structs import replace

from nri_policy.classes import Classes, Equipment, select_cpu, select_crio
from nri_policy.engine.engine import Engine, Touched
from nri_policy.engine.event import StoredGrant
from nri_policy.engine.grant import Placement
from nri_policy.engine.state.layout import Layout
from nri_policy.engine.state.partition_rules import Partition, partition_of
from nri_policy.engine.state.quota import NO_QUOTA
from nri_policy.engine.state.state import Placed, Resizing
from nri_policy.engine.updates.classification import updatable_limits
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.pools.memory import MemorySupply
from nri_policy.pools.memory_offer import Booking, Books
from nri_policy.pools.supply import Supply, supply_of
from nri_policy.workload.annotation_values import DEVICE_HINTS, InterruptChoice
from nri_policy.workload.annotations import AnnotationError
from nri_policy.workload.crio_annotations import CRIOChoice
from nri_policy.workload.pod import Container, Resources
from nri_policy.workload.request import Sort

_NO_PODS: Mapping[str, Sandbox] = {}
# A shell could read these characters in a device's name as commands, or as its end.
_UNSAFE = re.compile(r'["$`\\|\x00-\x1f\x7f]')


class Holding(Struct, frozen=True, kw_only=True):
    """The grant of one container with its details."""

    placed: Placed
    pool: str  # name
    cpus: CPUSet  # CPUs that it may run on; empty if it is not pinned
    classes: Classes | None = None
    interrupts: InterruptChoice | None = None  # which ones its exclusive CPUs claim and mask
    home: str | None = None  # the pool that it was moved up from and will return to
    unthrottled: bool = False  # without a CFS quota, because its CPUs are exclusive
    room: CPUSet | None = None  # the CPUs of its pod's room; None: no room
    partition: Partition | None = None  # the kernel partition that is due
    decided_only: tuple[str, ...] = ()  # decided but not set, by the settings: cpus, mems


class Sandbox(Struct, frozen=True, kw_only=True):
    """A pod that exists, by its sandbox; the engine knows of pods only by their containers."""

    namespace: str
    name: str  # of the pod
    folder: str  # its containers' parent cgroup
    asked: Resources  # the sum of its containers' requests, with later containers
    whole: Container | None  # a Guaranteed pod as one container
    overhead: int  # CFS quota beyond its containers', µs per period
    counted: bool = False  # schedulers count it as having exclusive resources (nrt.md §1.5)


class NodeView(Struct, frozen=True, kw_only=True):
    """The node after one event; its tables are read-only."""

    layout: Layout
    placed: Mapping[str, Placed]  # by container id, in the order of placement
    rooms: Mapping[str, Placed]  # by pod id: pods that have their CPUs as a whole
    claims: Mapping[str, Placed]  # by id: parts of resource claims, which have exclusive CPUs
    pods: Mapping[str, Sandbox]  # by pod id, in the order of their creation; empty in a fork
    sent: Mapping[str, tuple[CPUSet, CPUSet]]  # CPUs and memory nodes that the runtime has
    quotas: Mapping[str, int]  # CFS quotas sent to the runtime, µs per period, NO_QUOTA for none
    resizing: Mapping[str, Resizing]  # unfinished resizes, by container id
    # containers on pmem alone -> when they get dram, seconds since the epoch; None: not started
    cold: Mapping[str, float | None]
    classes: Mapping[str, Classes]  # by container id; containers without a class are left out
    equipment: Equipment
    free: CPUSet  # sharable CPUs that are not exclusive
    free_isolated: CPUSet
    latest: int  # `Container.created` of the latest container so far
    pools: bytes  # for `Supply.restore`
    memory_books: Books
    touched: Touched

    def changed_since(self, mark: object) -> Collection[str] | None:
        """Return the ids of holders that changed since the view with this mark.

        None if *mark* belongs to neither this view nor the previous view.
        """
        touched = self.touched
        if mark is touched.mark:
            return ()
        return touched.ids if mark is not None and mark is touched.before else None

    @property
    def taken(self) -> CPUSet:
        """The exclusive CPUs, with those held only until the end of a resize."""
        capacity = self.layout.capacity
        return (capacity.sharable | capacity.isolated) - (self.free | self.free_isolated)

    @property
    def exclusive(self) -> CPUSet:
        """The exclusive CPUs of containers, rooms and claims."""
        return CPUSet.union(self.held_by(each).grant.exclusive for each in self.holders)

    @property
    def holders(self) -> Iterator[str]:
        """The ids of all holders of a grant: rooms and claims before the containers in them."""
        yield from self.rooms
        yield from self.claims
        yield from self.placed

    @property
    def bookings(self) -> Mapping[str, Booking]:
        """All bookings of memory, by container id."""
        return self.memory_books.bookings

    @property
    def next_deadline(self) -> float | None:
        """When `Elapsed` is due next, in seconds since the epoch; None: never."""
        return min((at for at in self.cold.values() if at is not None), default=None)

    def held_by(self, holder_id: str) -> Placed:
        """Return the container, room or part of a claim with this id; raises KeyError."""
        for table in (self.placed, self.rooms):
            if holder_id in table:
                return table[holder_id]
        return self.claims[holder_id]

    def by_name(self) -> dict[str, Placed]:
        """Return the containers by namespace/pod/name; of two pods of one name the newer's."""
        by_age = sorted(self.placed.values(), key=lambda placed: placed.container.created)
        return {placed.container.full_name: placed for placed in by_age}

    def supply(self) -> Supply:
        """Return the free capacity of every pool, as the caller's own copy."""
        capacity = self.layout.capacity
        supply = supply_of(self.layout.tree, capacity.sharable, capacity.isolated)
        supply.restore(self.pools)
        return supply

    def memory(self) -> MemorySupply:
        """Return the bookings of memory, as the caller's own copy."""
        memory = MemorySupply(self.layout.memory)
        memory.restore(self.memory_books)
        return memory

    def cpus(self, placed: Placed, *, hide_hyperthreads: bool = False) -> CPUSet:
        """Return the CPUs that a container may run on; empty if it is not pinned."""
        if placed.grant.sort is Sort.PRESERVE:
            return self.layout.unowned(placed.grant, self.taken)
        return self.layout.cpus_of(placed.grant, self.free, hide_hyperthreads)

    def holding(self, placed: Placed) -> Holding:
        """Return the grant of a container with its details."""
        pools, grant = self.layout.tree.pools, placed.grant
        partition = self.partition(placed.container.id)
        return Holding(
            placed=placed,
            pool=pools[grant.pool].name,
            home=None if grant.home is None else pools[grant.home].name,
            cpus=self.cpus(placed, hide_hyperthreads=placed.request.hide_hyperthreads),
            classes=self.classes_of(placed),
            interrupts=self.interrupts_of(placed) if grant.own else None,
            unthrottled=self.quotas.get(placed.container.id) == NO_QUOTA,
            room=self.rooms[placed.container.pod.id].grant.exclusive if grant.tenant else None,
            partition=None if isinstance(partition, str) else partition,
            decided_only=self.decided_only(placed),
        )

    def classes_of(self, placed: Placed) -> Classes | None:
        """Return a container's classes, with the class of its exclusive CPUs; None: no class."""
        classes = self.classes.get(placed.container.id)
        if not placed.grant.own:
            return classes
        namespace = placed.container.pod.namespace
        cpu = select_cpu(self.layout.settings, namespace, placed.request)
        return classes if cpu is None else replace(classes or Classes(), cpu=cpu)

    @property
    def lacking_classes(self) -> frozenset[str]:
        """The ids of containers whose classes are partly impossible here."""
        cpu = (
            each
            for each, placed in self.placed.items()
            if placed.request.steering.cpu_class is not None
            and (classes := self.classes_of(placed)) is not None
            and classes.lacking
        )
        return frozenset(each for each, of in self.classes.items() if of.lacking).union(cpu)

    def crio_choice(self, placed: Placed) -> CRIOChoice | None:
        """Return what CRI-O's annotations ask for a container, by the latest settings."""
        settings, about = self.layout.settings, (placed.container, placed.request)
        try:
            return select_crio(settings, self.equipment, *about)
        except AnnotationError:  # it was running before these settings
            return None

    def interrupts_of(self, placed: Placed) -> InterruptChoice | None:
        """Return which interrupts a container's annotation chooses, ours or CRI-O's."""
        if (ours := placed.request.steering.interrupts) is not None:
            return ours
        crio = self.crio_choice(placed)
        return None if crio is None else crio.interrupts

    def decided_only(self, placed: Placed) -> tuple[str, ...]:
        """Return what is decided for a container but not set, by the settings: cpus, mems."""
        settings = self.layout.settings
        cpus = not settings.pin_cpu and placed.grant.sort is not Sort.PRESERVE
        mems = not settings.pin_memory and not placed.request.memory_preserve
        return ("cpus",) * cpus + ("mems",) * mems

    def holdings(self) -> Iterator[Holding]:
        """Yield the grants of all containers with their details."""
        return map(self.holding, self.placed.values())

    def placement(self, container_id: str) -> Placement | None:
        """Return the latest placement of a container, sent or due; None if it has no grant."""
        if container_id not in self.placed:
            return None
        cpus, mems = self.sent[container_id]
        return Placement(
            cpus=cpus,
            mems=mems,
            shares=None,
            cause="again",
            quota=self.quotas.get(container_id),
            limits=updatable_limits(self.classes.get(container_id), self.equipment),
        )

    def placements(self, container_ids: Iterable[str]) -> dict[str, Placement]:
        """Return the placements of the containers that have a grant, by container id."""
        return {
            each: placement
            for each in container_ids
            if (placement := self.placement(each)) is not None
        }

    def granted_quota(self, container_id: str) -> int | None:
        """Return the CFS quota of a container whose quota we removed, µs per period; else None."""
        quota = self.placed[container_id].container.resources.cpu_quota
        return quota if container_id in self.quotas and quota > 0 else None

    def exposed(self, container_id: str) -> dict[str, str]:
        """Return the shell variables with the container's own resources, by placement.md §9."""
        placed = self.placed[container_id]
        grant, resources = placed.grant, dict[str, CPUSet]()
        if grant.shares or grant.rest or grant.sort is Sort.RESERVED:
            resources["SHARED_CPUS"] = self.cpus(placed) - grant.own
        if grant.own:
            resources["ISOLATED_CPUS" if grant.isolated else "EXCLUSIVE_CPUS"] = grant.own
        resources["ALL_MEMS"] = grant.mems
        for kind, nodes in self.layout.tree.top.memory.items():
            if grant.mems & nodes:
                resources[f"{kind.upper()}_MEMS"] = grant.mems & nodes
        return {name: str(ids) for name, ids in resources.items()} | self._exposed_devices(placed)

    def _exposed_devices(self, placed: Placed) -> dict[str, str]:
        """Return where each device of a container is, with its CPUs there (placement.md §9).

        Annotations that exclude devices from the hints do not matter here.
        """
        topology = self.layout.topology_hints
        own = self.cpus(placed, hide_hyperthreads=placed.request.hide_hyperthreads)
        devices = [
            f"{name}|{topology.nodes(hint)}|{topology.cpus(hint) & own}"
            for hint in placed.container.hints
            if hint.kind in DEVICE_HINTS and not _UNSAFE.search(name := hint.device or hint.source)
        ]
        return {f"DEVICE_{n}": device for n, device in enumerate(devices)}

    def partition(self, container_id: str) -> Partition | str:
        """Return the kernel partition due for a container, or why it gets none.

        The text is empty if none is requested or the container is gone.
        """
        placed = self.placed.get(container_id)
        if placed is None:
            return ""
        cpus, _ = self.sent[container_id]
        found = partition_of(placed.request, placed.grant, cpus, self.layout, self.equipment)
        if placed.grant.claimed and isinstance(found, Partition):
            users = sum(bool(each.grant.claimed & found.cpus) for each in self.placed.values())
            if users > 1:
                return "other containers use its resource claim, too"
        return found

    def to_store(self, container_id: str) -> StoredGrant:
        """Return what the store needs to restore a holder's grant."""
        placed, pools = self.held_by(container_id), self.layout.tree.pools
        home = placed.grant.home
        return StoredGrant(
            pod_uid=placed.container.pod.uid,
            full_name=placed.container.full_name,
            resized=placed.container.resized,
            entitlement=placed.request.entitlement,
            pool=pools[placed.grant.pool].name,
            home=None if home is None else pools[home].name,
            grant=placed.grant,
            deadline=self.cold.get(container_id),
            resources=placed.container.resources,
            created=placed.container.created,
            classes=self.classes.get(container_id),
            requirements=placed.container.requirements,
            pod_level=placed.container.pod_level,
            pod_amounts=placed.container.pod.amounts,
            part=placed.container.part,
        )


def view_of(engine: Engine, pods: Mapping[str, Sandbox] = _NO_PODS) -> NodeView:
    """Return the state of *engine* after its latest event, with these *pods*."""
    state, tables = engine.state, engine.tables
    return NodeView(
        layout=state.layout,
        placed=tables.placed,
        rooms=tables.rooms,
        claims=tables.claims,
        pods=pods,
        sent=tables.sent,
        quotas=tables.quotas,
        resizing=tables.resizing,
        cold=tables.cold,
        classes=tables.classes,
        equipment=tables.equipment,
        free=state.supply.free_cpus(),
        free_isolated=state.supply.free_isolated_cpus(),
        latest=state.latest,
        touched=engine.touched,
        pools=tables.supply,
        memory_books=tables.memory,
    )
