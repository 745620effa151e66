"""The interrupts of a node, as its containers with exclusive CPUs and the settings want them."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from nri_policy.foundation.cpuset import CPUSet
from nri_policy.hardware.interrupts import Interrupts
from nri_policy.node.view import NodeView
from nri_policy.settings import IsolateInterrupts
from nri_policy.tuning.interrupts import (
    DEFAULT,
    InterruptWishes,
    Owner,
    find_interrupt_wishes,
    item_of,
)
from nri_policy.tuning.items import Item


def uses_interrupts(view: NodeView) -> bool:
    """Return whether anything on the node claims or masks interrupts."""
    isolates = view.layout.settings.isolate_interrupts is not IsolateInterrupts.OFF
    return bool(view.taken) and (isolates or any(each.choice for each in _list_owners(view, {})))


def wish_interrupts(
    view: NodeView, found: Interrupts, originals: Mapping[Item, str]
) -> InterruptWishes:
    """Return the wishes for the interrupts *found*, of which the tuner has changed some.

    *originals* are the values before it did.
    """
    settings, layout = view.layout.settings, view.layout
    before = {item: CPUSet.parse(text) for item, text in originals.items()}
    interrupts = Interrupts(
        each=tuple(
            replace(irq, affinity=before.get(item_of(irq.number), irq.affinity))
            for irq in found.each
        ),
        default=before.get(DEFAULT, found.default),
    )
    return find_interrupt_wishes(
        interrupts,
        _list_owners(view, found.of_devices),
        controllable=settings.controllable_interrupts,
        isolate=settings.isolate_interrupts is IsolateInterrupts.EXCLUSIVE,
        online=layout.machine.online,
        reserved=layout.capacity.reserved,
    )


def list_devices(view: NodeView) -> set[str]:
    """Return the folders in sysfs of devices whose interrupts containers may claim."""
    placed = view.placed.values()
    return {folder for each in placed for folder in each.request.steering.device_folders}


def _list_owners(view: NodeView, of_devices: Mapping[str, frozenset[int]]) -> list[Owner]:
    """Return the containers with exclusive CPUs, and resource claims; none if CPUs are not set.

    *of_devices* maps a device's folder in sysfs to its interrupts.
    """
    if not view.layout.settings.pin_cpu:
        return []
    owners = [
        Owner(
            name=placed.container.full_name,
            cpus=placed.grant.own,
            choice=view.interrupts_of(placed),
            devices=frozenset().union(
                *(
                    of_devices.get(folder, frozenset())
                    for folder in placed.request.steering.device_folders
                )
            ),
        )
        for placed in view.placed.values()
        if placed.grant.own
    ]
    left = view.exclusive - CPUSet.union(owner.cpus for owner in owners)
    return [*owners, Owner(name="", cpus=left)] if left else owners
