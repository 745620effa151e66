"""Affinity: the containers that a container should be near to, or far from; placement.md §5.

Owns the two annotations, and the affinities that the settings imply without them. Only the entries
of the container itself are parsed, so a mistake in them affects no other container of the pod; of
the other entries only plain names count, because the short form is symmetric.

A weight beyond the range is cut with a notice, as in the peer: its sense is clear, and a pod that
starts elsewhere should start here. Other differences from the peer: the own pod is identified by
namespace and name, a weight of 0 means none (not 1), and a list may have names and affinities.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from nri_policy.foundation.wording import quoted
from nri_policy.settings import Settings
from nri_policy.workload.annotations import DOMAIN, ValuePath, yaml_map
from nri_policy.workload.expression import (
    ALWAYS,
    OWN_POD,
    Expression,
    Key,
    Operator,
    read_expression,
    refuse_unknown,
    search_count,
)
from nri_policy.workload.pod import Container

MAX_WEIGHT = 1000
COLOCATION = 10  # the weight that colocatePods and colocateNamespaces imply, and a later container
MAX_AFFINITIES = 100  # of one container in one annotation
MAX_SEARCHES = 64  # globs and joint keys in all of these: each costs a look at every container
_FIELDS = ("match", "scope", "weight")
_ANNOTATIONS = ((ValuePath(f"{DOMAIN}/affinity"), 1), (ValuePath(f"{DOMAIN}/anti-affinity"), -1))


class Affinity(Struct, frozen=True, kw_only=True):
    """Containers that satisfy *scope* and *match* pull with *weight*, or push if it is negative."""

    scope: Expression
    match: Expression
    weight: int  # -1000…1000

    @property
    def implied(self) -> bool:
        """Whether it matches every container: an implicit affinity from the settings."""
        return self.match == ALWAYS

    @property
    def misses_others(self) -> bool:
        """Whether it searches its own pod by more than a name: others may be meant."""
        keys = [each.key.parts for each in (self.scope, self.match) if each.key is not None]
        return keys[:1] == [(OWN_POD,)] and keys[1:] != [("name",)]


class Affinities(Struct, frozen=True, kw_only=True):
    """All affinities of one container."""

    each: tuple[Affinity, ...]
    notices: tuple[str, ...] = ()  # about values that were changed on reading


def affinities_of(container: Container, settings: Settings) -> Affinities:
    """Return the affinities of *container*; raises AnnotationError if its own are malformed.

    A container without affinities gets the implied ones of the settings.
    """
    found: list[Affinity] = []
    notices: list[str] = []
    for annotation, sign in _ANNOTATIONS:
        text = container.pod.annotations.get(annotation.key)
        if text is not None:
            found += _parse_annotations(annotation, text, container, sign, notices)
    if not found:
        pod = container.pod
        if settings.colocate_pods or container.joins_pod:
            found.append(Affinity(scope=_own_pod(container), match=ALWAYS, weight=COLOCATION))
        if settings.colocate_namespaces:
            scope = _among("namespace", [pod.namespace])
            found.append(Affinity(scope=scope, match=ALWAYS, weight=COLOCATION))
    return Affinities(each=tuple(found), notices=tuple(notices))


def describe_unmatched(affinities: Iterable[Affinity]) -> str:
    """Return a text that no container matched these; empty if none are from an annotation."""
    own = [each for each in affinities if not each.implied]
    if not own:
        return ""
    hint = "; without `scope` only its own pod is searched"
    return "no container that was there matches its affinities" + hint * any(
        each.misses_others for each in own
    )


def _parse_annotations(
    annotation: ValuePath, text: str, container: Container, sign: int, notices: list[str]
) -> list[Affinity]:
    """Return the affinities of one annotation; *sign* is -1 where it is the anti-affinity."""
    allowed = "a map of container name to a list of container names or affinities"
    entries = {  # YAML reads a name such as 1 or true as another type
        name if isinstance(name, str) else quoted(name): items
        for name, items in yaml_map(annotation.key, text, allowed).items()
    }
    own, place = entries.get(container.name, []), annotation.at(container.name)
    if not isinstance(own, list) or len(own) > MAX_AFFINITIES:
        raise place.refuse(own, f"a list of at most {MAX_AFFINITIES} container names or affinities")
    if sum(map(_searches, own)) > MAX_SEARCHES:
        allowed = f"a list with at most {MAX_SEARCHES} globs and joint keys in all its expressions"
        raise place.refuse(own, allowed)
    scope, found = _own_pod(container), []
    for index, item in enumerate(own):
        if not isinstance(item, str):
            found.append(_affinity(item, scope, sign, place.at(index), notices))
    named = [item for item in own if isinstance(item, str)]
    naming = [
        name
        for name, items in entries.items()
        if isinstance(items, list) and container.name in items
    ]
    if named or naming:
        match = _among("name", [*named, *naming])
        found.append(Affinity(scope=scope, match=match, weight=sign))
    return found


def _affinity(
    item: object, own_pod: Expression, sign: int, place: ValuePath, notices: list[str]
) -> Affinity:
    """Read one affinity in full."""
    if not isinstance(item, dict):
        raise place.refuse(item, f"a container's name or a map of {', '.join(_FIELDS)}")
    refuse_unknown(item, _FIELDS, place)
    scope = item.get("scope")
    weight = item.get("weight", 1)
    if not isinstance(weight, int) or isinstance(weight, bool):
        allowed = f"a whole number from {-MAX_WEIGHT} to {MAX_WEIGHT}"
        raise place.at("weight").refuse(weight, allowed)
    cut = max(-MAX_WEIGHT, min(weight, MAX_WEIGHT))
    if cut != weight:
        at = place.at("weight")
        notices.append(f"annotation {at.key}.{at.path}: {quoted(weight)} counts as {cut}")
    return Affinity(
        scope=own_pod if scope is None else read_expression(scope, place.at("scope")),
        match=read_expression(item.get("match"), place.at("match")),
        weight=sign * cut,
    )


def _searches(item: object) -> int:
    if not isinstance(item, dict):
        return 0
    return search_count(item.get("scope")) + search_count(item.get("match"))


def _own_pod(container: Container) -> Expression:
    pod = container.pod
    return _among(OWN_POD, [f"{pod.namespace}/{pod.name}"])


def _among(key: str, values: list[str]) -> Expression:
    return Expression(key=Key((key,)), operator=Operator.IN, values=tuple(dict.fromkeys(values)))
