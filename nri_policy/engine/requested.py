"""What a container asks for: its amounts and annotations, read by the settings in force."""

from __future__ import annotations

from msgspec.structs import asdict, replace

from nri_policy.engine.layout import Layout
from nri_policy.engine.shortage import PlacementError
from nri_policy.engine.zone_hint import zone_hint
from nri_policy.workload.affinity import affinities_of
from nri_policy.workload.annotations import ZONE, AnnotationError
from nri_policy.workload.pod import Container, Resources
from nri_policy.workload.preferences import preferences
from nri_policy.workload.request import Request, request_of


def read_request(container: Container, layout: Layout) -> tuple[Request, tuple[str, ...]]:
    """Return what *container* asks for, and what is odd about that; raises AnnotationError."""
    settings = layout.settings
    wishes = preferences(container.pod.annotations, container.name)
    if container.resized:
        wishes = replace(wishes, requirements=None)
    affinities = affinities_of(container, settings)
    zone, odd = zone_hint(container.pod.annotations.get(ZONE), layout)
    request = request_of(container, wishes, settings, layout.memory_bytes, affinities.each)
    if zone is not None:
        request = replace(request, zone=zone)
    return request, wishes.notices + affinities.notices + odd


def read_admitted(
    container: Container, layout: Layout
) -> tuple[Container, Request, tuple[str, ...]]:
    """Return what `read_request` does of a container that runs already.

    One with an annotation that makes no sense is taken for one without any.
    """
    try:
        return container, *read_request(container, layout)
    except AnnotationError as error:
        plain = replace(container, pod=replace(container.pod, annotations={}))
        request, warnings = read_request(plain, layout)
        return plain, request, (f"{error}; it is placed as if it had no annotations", *warnings)


def check_amounts(resources: Resources) -> None:
    """Refuse amounts that cannot be: the runtime would fail over them, or make others of them."""
    if text := resources.impossible:
        raise PlacementError(text)


def overlay(old: Resources, new: Resources) -> Resources:
    """Return *old* with the amounts that *new* names; the cpuset stays ours (nri.md §3.9)."""
    named = {
        name: value for name, value in asdict(new).items() if value and name not in ("cpus", "mems")
    }
    return replace(old, **named)
