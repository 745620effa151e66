"""Which class each CPU of a node is in (classes.md §2), as the latest settings say.

| CPUs | class |
|---|---|
| exclusive ones of a container | of its annotation, else `defaultExclusiveCPUClass` |
| exclusive ones of rooms and claims that no container has | `defaultExclusiveCPUClass` |
| reserved | `reservedPoolCPUClass` |
| all others that are available | `sharedPoolCPUClass` |

Where one of the settings is missing, `sharedPoolCPUClass` counts.
"""

from __future__ import annotations

from collections.abc import Iterator

from nri_policy.classes import select_cpu
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.node.view import NodeView
from nri_policy.tuning.cpu_classes import Assignment


def assign_cpus(view: NodeView) -> tuple[Assignment, ...]:
    """Return the classes of all available CPUs; none if the settings have no classes."""
    settings = view.layout.settings
    if not settings.cpu_classes or not settings.pin_cpu:
        return ()
    known = {each.name: each for each in settings.cpu_classes}
    return tuple(
        Assignment(given=known[name], cpus=cpus, origin=origin)
        for name, cpus, origin in _assign(view)
        if cpus
    )


def _assign(view: NodeView) -> Iterator[tuple[str, CPUSet, str]]:
    """Yield disjoint sets of CPUs, each with its class and what puts it there."""
    settings, capacity = view.layout.settings, view.layout.capacity
    shared = settings.shared_cpu_class
    assert shared is not None, "it is required with classes"
    assigned = capacity.reserved
    yield settings.reserved_cpu_class or shared, assigned, "reservedPoolCPUClass"
    for placed in view.placed.values():
        container, own = placed.container, placed.grant.own - assigned
        use = select_cpu(settings, container.pod.namespace, placed.request) if own else None
        if use is not None:
            assigned |= own
            yield use.name, own, container.full_name
    exclusive = view.exclusive - assigned
    yield settings.exclusive_cpu_class or shared, exclusive, "defaultExclusiveCPUClass"
    yield shared, capacity.available - assigned - exclusive, "sharedPoolCPUClass"
