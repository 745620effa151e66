"""Remarks on annotations that may not do what their author expects.

None of these is an error: a wrong annotation that fails a container is reported as an error.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from itertools import islice

from nri_policy.foundation.wording import did_you_mean, quoted
from nri_policy.workload.annotation_table import AFFINITIES, DEPRECATED, warnings
from nri_policy.workload.annotations import DOMAIN, AnnotationError, yaml_map
from nri_policy.workload.preferences import preferences

_CONTAINER = f".{DOMAIN}/container."
_SHOWN = 20  # of each kind, for one container


def check_annotations(
    annotations: Mapping[str, str], container: str, known: Collection[str], *, all_known: bool
) -> tuple[str, ...]:
    """Return remarks on unknown and unsupported keys, and on containers that the pod lacks.

    *known* are the pod's containers so far, because a runtime does not list later ones; or all, by
    its manifest.
    """
    annotations = dict(sorted(annotations.items()))  # the runtime's map has no order
    try:
        notices = preferences(annotations, container).notices
    except AnnotationError:
        notices = ()  # it was refused with that text
    no, yet = ("has no", "") if all_known else ("has had no", " so far")
    strangers = (
        f"annotation {key}: the pod {no} container {quoted(name)}{yet}{did_you_mean(name, known)}"
        for key, name in _addresses(annotations)
        if name not in known
    )
    return (*warnings(annotations), *notices[:_SHOWN], *islice(strangers, _SHOWN))


def _addresses(annotations: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the annotations that are for single containers, with the name of each."""
    for key, text in annotations.items():
        _, found, name = key.partition(_CONTAINER)
        if found:
            yield key, name
        elif key in _MAPS:
            try:
                names = yaml_map(key, text, "")
            except AnnotationError:
                continue
            yield from ((key, name) for name in names if isinstance(name, str))


_MAPS = frozenset(f"{DOMAIN}/{name}" for name in AFFINITIES | DEPRECATED)
