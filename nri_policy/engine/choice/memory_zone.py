"""Memory zones: narrows a pool's offer to the nodes beside the CPUs or devices; placement.md §7."""

from __future__ import annotations

from msgspec.structs import replace

from nri_policy.engine.state.state import State
from nri_policy.foundation.cpuset import EMPTY, CPUSet
from nri_policy.hardware.machine import MemoryKind
from nri_policy.pools.memory_offer import Offer
from nri_policy.workload.request import Request


def near_devices(state: State, request: Request, offer: Offer, exclusive: CPUSet) -> Offer:
    """Return *offer* on the nodes of its devices alone, as *request* wants it, if it fits.

    Only where each device has one of its *exclusive* CPUs beside it: where they could not be spread
    over the devices, its memory is chosen as usual (§8).
    """
    hints, steering = state.layout.topology_hints, request.steering
    if any(near.isdisjoint(exclusive) for near in hints.localities(steering.hints)):
        return offer
    zone = hints.pick_memory(steering.hints, offer.zone)
    return offer if zone is None else _narrow(state, request, offer, zone)


def near_cpus(
    state: State, request: Request, offer: Offer, exclusive: CPUSet, held: CPUSet
) -> Offer:
    """Return *offer* only on nodes beside its *exclusive* CPUs, if it has no others and fits.

    Memory follows the CPUs (§7). The nodes must have all kinds in the offer, and include those of
    its devices. *held* is its present zone, maybe with nodes that are offline now. During a
    cold start the offer is unchanged, because memory that is added later is not narrowed either.
    """
    offered, home = offer.booking.zone, offer.booking.home
    if not exclusive or home.cold:
        return offer
    devices = _device_nodes(state, request)
    if len(offered) == 1 and devices <= offered:
        return offer
    map_ = state.layout.memory
    zone = offered
    if not request.shares:
        zone = (held & map_.nodes) | (map_.beside(exclusive) & home.zone)
    for wanted in (zone | devices, zone):
        if wanted == offered or map_.kinds_of(wanted) != map_.kinds_of(offered):
            return offer
        if (narrowed := _narrow(state, request, offer, wanted)) is not offer:
            return narrowed
    return offer


def _device_nodes(state: State, request: Request) -> CPUSet:
    """Return the DRAM nodes of its devices: programs bind memory to the node of each (§7).

    None where the memory must be beside the CPUs, or of another kind.
    """
    layout, steering = state.layout, request.steering
    if not steering.hints or steering.strict_hints or layout.aligned:
        return EMPTY
    if MemoryKind.DRAM not in request.memory_kinds:
        return EMPTY
    near = layout.topology_hints.device_nodes(steering.hints)
    return layout.memory.kinds.get(MemoryKind.DRAM, EMPTY) & near


def _narrow(state: State, request: Request, offer: Offer, zone: CPUSet) -> Offer:
    """Return *offer* on *zone*, if it fits there without moving other bookings.

    A process can start there: a zone of movable memory gets the nearest other node (§7).
    """
    zone = state.layout.memory.startable(zone, offer.zone)
    if state.memory.free(zone) < request.memory:
        return offer
    if request.hugepages and not state.memory.has_pages(zone, request.hugepages):
        return offer
    return replace(offer, booking=replace(offer.booking, zone=zone), moves=())
