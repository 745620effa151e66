"""The pod annotations of this policy: the forms of their keys, and their precedence.

A key K has three forms; the most specific one counts: `K.DOMAIN/container.NAME`, `K.DOMAIN/pod`,
`K.DOMAIN`. Some have a deprecated fourth, `DOMAIN/K` with a map of container name to value, which
counts if no other is given. Only the annotation that counts is parsed, so a mistake in an
overridden annotation, or in one for another container, has no effect. `annotation_table` has the
keys, and `preferences` looks them up.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import IntEnum
from functools import lru_cache
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
# CRI-O's that have no effect here: other annotations or settings take their place
CRIO_BALANCING = "cpu-load-balancing.crio.io"
CRIO_QUOTA = "cpu-quota.crio.io"
MAX_SIZE = 32 << 10  # bytes of YAML in one annotation; Kubernetes allows 256 KiB for all of a pod

_CRIO_DOMAIN = ".crio.io"
_NAMED = 4  # errors besides the first one; an Event has 1024 characters
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
