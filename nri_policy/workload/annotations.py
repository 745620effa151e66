"""The pod annotations of this policy: the forms of their keys, and their precedence.

A key K has three forms; the most specific one counts: `K.DOMAIN/container.NAME`, `K.DOMAIN/pod`,
`K.DOMAIN`. Some have a deprecated fourth, `DOMAIN/K` with a map of container name to value, which
counts if no other is given. Annotations of other containers, and those that a more specific one
overrides, are never parsed, so their mistakes have no effect. A lookup is a fixed number of
accesses, for any number of annotations. `annotation_table` has the keys.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from enum import IntEnum
from functools import cache, lru_cache
from typing import Any

from msgspec import Struct

from nri_policy.foundation.refusal import Refused
from nri_policy.foundation.wording import quoted
from nri_policy.foundation.yamltext import YAMLTextError, read

DOMAIN = "resource-policy.nri.io"
RESOURCES = "noderesource.dev/resources"
ZONE = "placement.nri/zone"  # the scheduler's choice of a NUMA zone, written by a binding
# CRI-O's, of the same meaning as some of ours
CRIO_INTERRUPTS = "irq-load-balancing.crio.io"
CRIO_CSTATES = "cpu-c-states.crio.io"
CRIO_GOVERNOR = "cpu-freq-governor.crio.io"
CRIO = (CRIO_INTERRUPTS, CRIO_CSTATES, CRIO_GOVERNOR)
MAX_SIZE = 32 << 10  # bytes of YAML in one annotation; Kubernetes allows 256 KiB for all of a pod

_CRIO_DOMAIN = ".crio.io"
_NAMED = 4  # errors besides the first one; an Event has 1024 characters
_FEW = 64  # annotations that are gone through faster than all of our keys are looked up
_SHORT = 4096  # characters of YAML; longer texts are parsed each time, not cached


def is_ours(key: str) -> bool:
    """Return whether an annotation of this key may mean something to us."""
    return DOMAIN in key or key in (RESOURCES, ZONE, *CRIO)


def any_ours(keys: Collection[str]) -> bool:
    """Return whether any of *keys* may be ours, without a call for each."""
    text = "\n".join(keys)
    return DOMAIN in text or _CRIO_DOMAIN in text or RESOURCES in keys or ZONE in keys


class AnnotationError(Refused, ValueError):
    """An annotation has a value that is not accepted; it has the key, the value, and what is."""

    def __init__(self, key: str, text: object, allowed: str, path: str = "") -> None:
        super().__init__(key, text, allowed, path)
        self.key = key
        self.text = text
        self.allowed = allowed
        self.path = path  # of the value within the annotation, as in `web[0].weight`
        self.others: Sequence[AnnotationError] = ()  # that the container has as well

    def __str__(self) -> str:
        at = f"{self.key}.{self.path}" if self.path else self.key
        texts = [f"annotation {at}: {quoted(self.text)} is not {self.allowed}"]
        texts += map(str, self.others[:_NAMED])
        if (more := len(self.others) - _NAMED) > 0:
            texts.append(f"and {more} more")
        return "; ".join(texts)


class ValuePath(Struct, frozen=True):
    """Where in the annotation *key* a value stands."""

    key: str
    path: str = ""

    def at(self, step: str | int) -> ValuePath:
        """Return the place of an entry below this one: by name in a map, by index in a list."""
        if isinstance(step, int):
            return ValuePath(self.key, f"{self.path}[{step}]")
        return ValuePath(self.key, f"{self.path}.{step}" if self.path else step)

    def refuse(self, value: object, allowed: str) -> AnnotationError:
        """Return the error that *value*, here, is not *allowed*."""
        return AnnotationError(self.key, value, allowed, self.path)


class Scope(IntEnum):
    """How tightly an annotation is addressed; a lower one decides."""

    CONTAINER = 0
    POD = 1
    BARE = 2


class FoundAnnotation(Struct, frozen=True, kw_only=True):
    """The annotation in force for a container."""

    key: str  # in full, as the pod has it
    value: Any  # text, or whatever the deprecated map holds
    scope: Scope
    deprecated: bool = False


def find_all(
    annotations: Mapping[str, str], container: str, forms: Mapping[str, bool]
) -> dict[str, FoundAnnotation]:
    """Return the annotations in force for *container*, by name.

    Of those named in *forms*, which says whether each has the fourth, deprecated form.
    """
    if not any_ours(annotations):
        return {}
    names = {*map(named, annotations)} if len(annotations) <= _FEW else forms.keys()
    found = {}
    for name, deprecated in forms.items():
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
    ours, pods, bare = _forms(name)
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
def _forms(name: str) -> tuple[str, str, str]:
    """Return the keys of an annotation of ours: for a container, without its name, pod and bare."""
    key = f"{name}.{DOMAIN}"
    return f"{key}/container.", f"{key}/pod", key


def named(key: str) -> str:
    """Return the name of the annotation with this key, if it is one of ours in any form."""
    name, found, _ = key.partition(f".{DOMAIN}")
    return name if found else key.removeprefix(f"{DOMAIN}/")


def yaml_map(key: str, text: str, allowed: str) -> dict[Any, Any]:
    """Parse the YAML map in the annotation *key*; raises AnnotationError.

    The result must not be changed: it is cached for containers and replicas with the same text.
    """
    try:
        value = _short(text) if len(text) <= _SHORT else read(text, max_size=MAX_SIZE)
    except YAMLTextError as error:
        raise AnnotationError(key, text, f"{allowed} ({error})") from None
    if not isinstance(value, dict):
        raise AnnotationError(key, text, allowed)
    return value


@lru_cache(maxsize=64)
def _short(text: str) -> Any:
    return read(text)
