"""What must hold of a node between two faults, as the runtime and the files see it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from itertools import chain, combinations
from pathlib import Path

from msgspec.structs import replace

from nri_policy.control.client import connected
from nri_policy.daemon.process import LOCK
from nri_policy.engine.event import StoredGrant
from nri_policy.engine.grant import Grant
from nri_policy.engine.state.layout import Layout, layout_of
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.plugin.convert import container_of
from nri_policy.plugin.exposed_resources import MAX_CREATION
from nri_policy.pools.capacity import Earlier
from nri_policy.simulation.containers import RuntimeState, SimulatedContainer
from nri_policy.store.database import open_for_reading, read_contents
from nri_policy.store.folder import MAX_ASIDE
from nri_policy.workload.pod import shares_of
from nri_policy.workload.request import Entitlement
from tests.faults.host import Host
from tests.support import bookkeeping, stores

MOST_DESCRIPTORS = 40
MOST_THREADS = 24
_FILES = {"lock", "store", "containers"}


@dataclass(frozen=True, slots=True)
class Books:
    """What the containers of a node hold, by container id, and pods that have rooms, by theirs."""

    grants: Mapping[str, StoredGrant]
    pending: set[str]  # ids of those with less than they ask for: there was no room

    @property
    def own(self) -> dict[str, tuple[CPUSet, bool]]:
        """The exclusive CPUs of containers that have some, and whether they share others too."""
        return {
            container_id: (held.grant.exclusive, held.grant.shares)
            for container_id, held in self.grants.items()
            if held.grant.exclusive and not held.of_room
        }


def living(host: Host) -> dict[str, SimulatedContainer]:
    """Return the runtime's containers that have not ended, by id."""
    return {
        container.id: container
        for container in host.runtime.containers
        if container.state in (RuntimeState.CREATED, RuntimeState.RUNNING)
    }


def audited(host: Host) -> Books:
    """Return what is held after checking it: the invariants, the runtime, the store, the daemon."""
    with closing(open_for_reading(host.store / "state.db")) as connection:
        held = read_contents(connection, host.store)
    assert held.machine is not None
    running = living(host)
    rooms = {each: known for each, known in held.grants.items() if known.of_room}
    grants = {each: known for each, known in held.grants.items() if not known.of_room}
    assert grants.keys() <= running.keys(), "the store has grants of containers that are gone"
    pods = {pod.id for pod in host.runtime.pods if pod.ready}
    assert rooms.keys() <= pods, "the store has rooms of pods that are gone"
    strays = [running[each].key for each in running.keys() - grants.keys()]
    assert not strays, f"{strays} run, and are not in the books"
    layout = layout_of(
        host.machine,
        host.settings,
        Earlier(reserved=held.reserved, exclusive=host.machine.online - held.reserved),
    )
    assert layout.capacity.reserved == held.reserved
    holders = _holders(layout, grants)
    runtime = bookkeeping.Runtime()
    for container_id in holders:
        runtime.cpus[container_id] = running[container_id].cpus
        runtime.mems[container_id] = running[container_id].mems
    bookkeeping.check_grants(layout, holders, runtime, [each.grant for each in rooms.values()])
    _check_rooms(host, grants, rooms)
    _check_memory(layout, {**holders, **_holders(layout, rooms)})
    _check_answers(host, grants)
    _check_leftovers(host, grants)
    pending = {
        container_id
        for container_id, (grant, _) in holders.items()
        if (
            not grant.tenant
            and running[container_id].shares
            != shares_of(1000 * len(grant.exclusive) + grant.shared)
        )
        or not _has_all_requests(layout, running[container_id], grants[container_id])
    }
    return Books(grants=held.grants, pending=pending)


def _has_all_requests(layout: Layout, container: SimulatedContainer, stored: StoredGrant) -> bool:
    """Whether the grant has all that the container requests; a degraded one has less."""
    known = container_of(container.pod.message, container.message)
    known = replace(known, resized=stored.resized, resources=stored.resources or known.resources)
    _, request, _ = layout.requests.read_admitted(known)
    return request.entitlement == stored.entitlement


def stored_grants(host: Host) -> Mapping[str, StoredGrant]:
    """Return what the store holds."""
    return stores.on_disk(host.store / "state.db")


def replayed(host: Host) -> None:
    """Check that the journal, played again, leads to what is stored; no daemon may be writing."""
    path = host.store / "state.db"
    assert stores.grants(stores.replayed(path)) == stores.on_disk(path)


def _holders(
    layout: Layout, grants: Mapping[str, StoredGrant]
) -> dict[str, tuple[Grant, Entitlement]]:
    pools = {pool.name: pool.id for pool in layout.tree.pools}
    return {
        container_id: (replace(each.grant, pool=pools[each.pool]), each.entitlement)
        for container_id, each in grants.items()
    }


def _check_rooms(
    host: Host, grants: Mapping[str, StoredGrant], rooms: Mapping[str, StoredGrant]
) -> None:
    """Assert I7: slices are disjoint parts of their pod's room, and the others share the rest."""
    pods = {each: container.pod.id for each, container in living(host).items()}
    tenants = {each: known.grant for each, known in grants.items() if known.grant.tenant}
    for pod_id in {pods[each] for each in tenants}:
        assert pod_id in rooms, "a tenant without a room"
        own = [grant for each, grant in tenants.items() if pods[each] == pod_id]
        rest = rooms[pod_id].grant.exclusive
        for grant in own:
            assert grant.exclusive <= rest, "I7: a slice outside its room, or in another"
            rest -= grant.exclusive
        for grant in own:
            assert grant.exclusive or grant.rest == rest, "I7: it has less than the rest"
            assert grant.rest in (rest, CPUSet()), "I7: it shares something else"


def _check_memory(layout: Layout, holders: Mapping[str, tuple[Grant, Entitlement]]) -> None:
    demands = [
        (grant.mems, request.memory)
        for grant, request in holders.values()
        if not request.memory_preserve and not grant.tenant  # which is booked with its room
    ]
    every = [*layout.memory.nodes]
    for nodes in chain.from_iterable(combinations(every, size) for size in range(len(every) + 1)):
        some = CPUSet(nodes)
        booked = sum(amount for zone, amount in demands if zone <= some)
        assert booked <= layout.memory.capacity_of(some), f"I6: nodes {some} are overbooked"


def _check_answers(host: Host, grants: Mapping[str, StoredGrant]) -> None:
    with connected(host.socket) as client:
        shown = client.containers()
        status = client.status()
    assert status.synchronized
    placed = {name: each for name, each in shown.items() if not each.error}
    names = {each.full_name: each for each in grants.values()}
    assert placed.keys() == names.keys(), "the daemon and its store disagree"
    for name, each in placed.items():
        assert each.exclusive == names[name].grant.exclusive
        assert each.pool == names[name].pool


def _check_leftovers(host: Host, grants: Mapping[str, StoredGrant]) -> None:
    """Assert that ended containers leave no files, and that few files and threads are open."""
    found = {entry.name for entry in host.disk.folder.iterdir()}
    aside = {name for name in found if name.startswith("store.aside-")}
    assert found - aside == _FILES
    assert len(aside) <= MAX_ASIDE
    for entry in (host.disk.folder / "containers").glob("[!.]*"):
        if entry.name != LOCK and entry.name not in grants:
            # it may have been under creation when the daemon registered
            age = min(time.time() - entry.stat().st_mtime, time.monotonic() - host.process.began)
            assert age < MAX_CREATION, f"resources are shown to {entry.name}, which is gone"
    descriptors = len([*Path(f"/proc/{host.process.pid}/fd").iterdir()])
    threads = len([*Path(f"/proc/{host.process.pid}/task").iterdir()])
    assert descriptors <= MOST_DESCRIPTORS, f"{descriptors} files are open"
    assert threads <= MOST_THREADS, f"{threads} threads are there"
