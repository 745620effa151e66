"""Preferences: the typed annotations for one container.

The effects of a preference, and the settings, are the engine's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from nri_policy.workload.annotation_table import ANNOTATIONS, BY_NAME, Preferences
from nri_policy.workload.annotation_values import read_boolean
from nri_policy.workload.annotations import (
    DOMAIN,
    RESOURCES,
    AnnotationError,
    FoundAnnotation,
    find_all,
)
from nri_policy.workload.requirements import requirements

_NONE = Preferences()
_FORMS = {each.name: each.deprecated_form for each in ANNOTATIONS}
# Two that are read together: the tighter one decides, the requirement where they are equal.
_PREFER, _REQUIRE = BY_NAME["prefer-isolated-cpus"], BY_NAME["require-isolated-cpus"]
_TOGETHER = {_PREFER.name, _REQUIRE.name}


def preferences(annotations: Mapping[str, str], container: str) -> Preferences:
    """Return the preferences in a pod's *annotations* for its container of that name.

    Raises AnnotationError with all invalid values in force.
    """
    found = find_all(annotations, container, _FORMS)
    if not found and RESOURCES not in annotations:
        return _NONE
    notices = (*_list_deprecated(container, found),)
    values, wrong = dict[str, Any](), list[AnnotationError]()
    for name, each in found.items():
        try:
            if name not in _TOGETHER:
                values[BY_NAME[name].steers] = BY_NAME[name].read(each)
            elif name == _REQUIRE.name or _REQUIRE.name not in found:
                values |= _parse_isolated(found.get(_PREFER.name), found.get(_REQUIRE.name))
        except AnnotationError as error:
            wrong.append(error)
    try:
        values["requirements"] = requirements(annotations, container)
    except AnnotationError as error:
        wrong.append(error)
    if wrong:
        wrong[0].others = wrong[1:]
        raise wrong[0]
    return Preferences(**values, notices=notices)


def _parse_isolated(
    prefer: FoundAnnotation | None, require: FoundAnnotation | None
) -> dict[str, Any]:
    if require is not None and (prefer is None or require.scope <= prefer.scope):
        value = read_boolean(require)
        return {_PREFER.steers: value, _REQUIRE.steers: value}
    return {} if prefer is None else {_PREFER.steers: read_boolean(prefer)}


def _list_deprecated(container: str, found: Mapping[str, FoundAnnotation]) -> Iterator[str]:
    """Yield notices about deprecated forms among *found*."""
    for name, each in found.items():
        if each.deprecated:
            yield (
                f"annotation {each.key}: this form is deprecated;"
                f" use {name}.{DOMAIN}/container.{container}"
            )
