"""Preferences: the typed annotations for one container.

A lookup is a fixed number of accesses, for any number of annotations. The effects of a preference,
and the settings, are the engine's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from nri_policy.workload.annotation_table import ANNOTATIONS, BY_NAME, Preferences
from nri_policy.workload.annotation_values import read_boolean
from nri_policy.workload.annotations import (
    DOMAIN,
    RESOURCES,
    AnnotationError,
    FoundAnnotation,
    Scope,
    any_ours,
    yaml_map,
)
from nri_policy.workload.requirements import requirements

_FEW = 64  # annotations that are gone through faster than all of our keys are looked up
_NONE = Preferences()
_FORMS = {each.name: each.deprecated_form for each in ANNOTATIONS}
# Two that are read together: the tighter one decides, the requirement where they are equal.
_PREFER, _REQUIRE = BY_NAME["prefer-isolated-cpus"], BY_NAME["require-isolated-cpus"]
_TOGETHER = {_PREFER.name, _REQUIRE.name}


def preferences(annotations: Mapping[str, str], container: str) -> Preferences:
    """Return the preferences in a pod's *annotations* for its container of that name.

    Raises AnnotationError with all invalid values in force.
    """
    found = _find_all(annotations, container)
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


def _find_all(annotations: Mapping[str, str], container: str) -> dict[str, FoundAnnotation]:
    """Return the annotations in force for *container*, by name."""
    if not any_ours(annotations):
        return {}
    names = {*map(_named, annotations)} if len(annotations) <= _FEW else _FORMS.keys()
    found = {}
    for name, deprecated in _FORMS.items():
        if name in names:
            value = find(annotations, container, name, deprecated=deprecated)
            if value is not None:
                found[name] = value
    return found


def find(
    annotations: Mapping[str, str], container: str, name: str, *, deprecated: bool = False
) -> FoundAnnotation | None:
    """Return the annotation *name* in force for *container*, None if there is none.

    *deprecated*: it has the fourth form. Raises AnnotationError if that is in force and not a map.
    """
    ours, pods, bare = _keys(name)
    ours += container
    for scope, key in ((Scope.CONTAINER, ours), (Scope.POD, pods), (Scope.BARE, bare)):
        text = annotations.get(key)
        if text is not None:
            return FoundAnnotation(key=key, value=text, scope=scope)
    if deprecated and (text := annotations.get(f"{DOMAIN}/{name}")) is not None:
        values = yaml_map(f"{DOMAIN}/{name}", text, "a map of container name to value")
        if container in values:
            return FoundAnnotation(
                key=f"{DOMAIN}/{name}",
                value=values[container],
                scope=Scope.CONTAINER,
                deprecated=True,
            )
    return None


@cache
def _keys(name: str) -> tuple[str, str, str]:
    """Return the keys of an annotation of ours: for a container, without its name, pod and bare."""
    key = f"{name}.{DOMAIN}"
    return f"{key}/container.", f"{key}/pod", key


def _named(key: str) -> str:
    """Return the name of the annotation with this key, if it is one of ours in any form."""
    name, found, _ = key.partition(f".{DOMAIN}")
    return name if found else key.removeprefix(f"{DOMAIN}/")
