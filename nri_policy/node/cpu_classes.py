"""Which class each CPU of a node is in (classes.md §2), as the latest settings say.

| CPUs | class |
|---|---|
| exclusive ones of a container | of its annotation, else `defaultExclusiveCPUClass` |
| exclusive ones of rooms and claims that no container has | `defaultExclusiveCPUClass` |
| reserved | `reservedPoolCPUClass` |
| all others that are available | `sharedPoolCPUClass` |

Where one of the settings is missing, `sharedPoolCPUClass` counts. CRI-O's annotations change the
governor and C-states of their container's class; without classes, only such containers have one.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from nri_policy.classes import select_cpu
from nri_policy.node.view import NodeView
from nri_policy.settings import CPUClass, Settings
from nri_policy.tuning.cpu_classes import PERFORMANCE, ClassAssignment
from nri_policy.workload.crio_annotations import CRIOChoice

_PLAIN = CPUClass(name="none")


def assign_cpus(view: NodeView) -> tuple[ClassAssignment, ...]:
    """Return the classes of CPUs: of all available ones, if the settings have classes."""
    settings = view.layout.settings
    if not uses_cpu_classes(settings):
        return ()
    return tuple(each for each in _assign(view) if each.cpus)


def uses_cpu_classes(settings: Settings) -> bool:
    """Return whether any CPU can be in a class."""
    return settings.pin_cpu and bool(settings.cpu_classes or settings.crio_annotation_namespaces)


def _assign(view: NodeView) -> Iterator[ClassAssignment]:
    """Yield disjoint sets of CPUs, each with its class and what puts it there."""
    settings, capacity = view.layout.settings, view.layout.capacity
    known = {each.name: each for each in settings.cpu_classes}
    shared, assigned = settings.shared_cpu_class, capacity.reserved
    if shared is not None:
        given = known[settings.reserved_cpu_class or shared]
        yield ClassAssignment(given=given, cpus=assigned, origin="reservedPoolCPUClass")
    for placed in view.placed.values():
        container, own = placed.container, placed.grant.own - assigned
        use = select_cpu(settings, container.pod.namespace, placed.request)
        given = _PLAIN if use is None else known[use.name]
        crio = view.crio_choice(placed) or CRIOChoice()
        if crio.governor is not None:  # performance permits no preference
            epp = None if crio.governor == PERFORMANCE else given.epp
            given = replace(given, governor=crio.governor, epp=epp)
        if use is not None or given is not _PLAIN or crio.latency is not None:
            assigned |= own
            name, latency = container.full_name, crio.latency
            yield ClassAssignment(given=given, cpus=own, origin=name, latency=latency)
    if shared is not None:
        exclusive = view.exclusive - assigned
        given = known[settings.exclusive_cpu_class or shared]
        yield ClassAssignment(given=given, cpus=exclusive, origin="defaultExclusiveCPUClass")
        left = capacity.available - assigned - exclusive
        yield ClassAssignment(given=known[shared], cpus=left, origin="sharedPoolCPUClass")
