"""Expression: a condition on a container and its pod, as affinities are written with.

Owns the keys that can be asked for, the operators, and their text; spec placement.md §5. Which
containers a condition holds for is the business of `peers`.

Differences from the peer: `uid` of a container is its pod's, `pod/qosclass` has a value, NotEqual
is the opposite of Equals for `*` too, `In` and `MatchesAny` need at least one value, and a joint
key may have its own separators with or without a colon before them.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct

from nri_policy.foundation.glob import Glob
from nri_policy.foundation.wording import did_you_mean
from nri_policy.workload.annotations import ValuePath
from nri_policy.workload.pod import Container

OWN_POD = "pod"  # the key of `namespace/pod`, for scopes; it cannot be written
MAX_PARTS = 8  # of a joint key
ANY = "*"  # as a value of Equals and In: any value


class Operator(StrEnum):
    """How the value of a key is compared with the values of an expression."""

    EQUALS = "Equals"
    NOT_EQUAL = "NotEqual"
    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    NOT_EXISTS = "NotExists"
    ALWAYS_TRUE = "AlwaysTrue"
    MATCHES = "Matches"
    MATCHES_NOT = "MatchesNot"
    MATCHES_ANY = "MatchesAny"
    MATCHES_NONE = "MatchesNone"


# An operator that negates holds wherever its opposite does not, so also where there is no value.
NEGATIONS = frozenset(
    {
        Operator.NOT_EQUAL,
        Operator.NOT_IN,
        Operator.NOT_EXISTS,
        Operator.MATCHES_NOT,
        Operator.MATCHES_NONE,
    }
)
_OPERATORS = {str(operator): operator for operator in Operator} | {"NotExist": Operator.NOT_EXISTS}
_WITHOUT_VALUES = (Operator.EXISTS, Operator.NOT_EXISTS, Operator.ALWAYS_TRUE)
_OF_ONE_VALUE = (Operator.EQUALS, Operator.NOT_EQUAL, Operator.MATCHES, Operator.MATCHES_NOT)
_OF_GLOBS = (
    Operator.MATCHES,
    Operator.MATCHES_NOT,
    Operator.MATCHES_ANY,
    Operator.MATCHES_NONE,
)
_FIELDS = ("key", "operator", "values")
_SINGLE = ("name", "namespace", "qosclass", "id", "uid")
_MAPS = ("labels", "tags")
_KEYS = (
    f"a key: {', '.join(_SINGLE)}, {', '.join(f'{each}/K' for each in _MAPS)}, one of these after"
    f" pod/, or up to {MAX_PARTS} joined, such as :namespace:name"
)


class Key(Struct, frozen=True):
    """What is asked of a container: one property, or several joined by a separator."""

    parts: tuple[str, ...]
    separator: str = ""

    def value(self, facts: Mapping[str, str]) -> str | None:
        """Return the value, with empty missing parts; None if all parts are missing."""
        if len(self.parts) == 1:
            return facts.get(self.parts[0])
        values = [facts.get(part) for part in self.parts]
        if all(value is None for value in values):
            return None
        return self.separator.join(value or "" for value in values)


class Expression(Struct, frozen=True, kw_only=True):
    """A condition; it has values or globs, as its operator takes them."""

    key: Key | None  # None only for operators without a key
    operator: Operator
    values: tuple[str, ...] = ()
    globs: tuple[Glob, ...] = ()


ALWAYS = Expression(key=None, operator=Operator.ALWAYS_TRUE)


def facts_of(container: Container) -> dict[str, str]:
    """Return the keys of *container* that have a value, with these.

    `tags/K` is a valid key without values: nothing in this policy tags containers.
    """
    pod = container.pod
    facts = {
        "name": container.name,
        "id": container.id,
        "namespace": pod.namespace,
        "qosclass": str(pod.qos),
        "uid": pod.uid,
        "pod/name": pod.name,
        "pod/id": pod.id,
        "pod/namespace": pod.namespace,
        "pod/qosclass": str(pod.qos),
        "pod/uid": pod.uid,
        OWN_POD: f"{pod.namespace}/{pod.name}",
    }
    facts |= {f"labels/{key}": value for key, value in container.labels.items()}
    facts |= {f"pod/labels/{key}": value for key, value in pod.labels.items()}
    return facts


def read_expression(value: object, place: ValuePath) -> Expression:
    """Return the expression that *value*, read from YAML at *place*, writes; AnnotationError."""
    if not isinstance(value, dict):
        raise place.refuse(value, f"a map of {', '.join(_FIELDS)}")
    refuse_unknown(value, _FIELDS, place)
    operator = _operator(value.get("operator"), place.at("operator"))
    key = value.get("key")
    parsed = None
    if key is not None or operator is not Operator.ALWAYS_TRUE:
        parsed = _key(key)
        if parsed is None:
            raise place.at("key").refuse(key, _KEYS)
    values = _values(value.get("values"), operator, place.at("values"))
    if operator not in _OF_GLOBS:
        return Expression(key=parsed, operator=operator, values=values)
    return Expression(key=parsed, operator=operator, globs=_globs(values, place.at("values")))


def search_count(value: object) -> int:
    """Return the number of globs and joint keys in *value*, an expression that may be malformed.

    For each of these an evaluation visits all values or containers.
    """
    if not isinstance(value, dict):
        return 0
    key, values = value.get("key"), value.get("values")
    joint = isinstance(key, str) and key != "" and _separates(key[0])
    globs = values if isinstance(values, list) and value.get("operator") in _OF_GLOBS else []
    return joint + len(globs)


def refuse_unknown(
    value: Mapping[object, object], fields: tuple[str, ...], place: ValuePath
) -> None:
    """Raise AnnotationError for the first key of a map that is not in *fields*."""
    for field in value:
        if field not in fields:
            hint = did_you_mean(field, fields) if isinstance(field, str) else ""
            raise place.refuse(field, f"a field here: {', '.join(fields)}{hint}")


def _operator(text: object, place: ValuePath) -> Operator:
    if not isinstance(text, str) or text not in _OPERATORS:
        hint = did_you_mean(text, _OPERATORS) if isinstance(text, str) else ""
        raise place.refuse(text, f"an operator: {', '.join(Operator)}{hint}")
    return _OPERATORS[text]


def _values(values: object, operator: Operator, place: ValuePath) -> tuple[str, ...]:
    if values is None:
        values = []
    if operator in _WITHOUT_VALUES:
        allowed, fits = f"left out: {operator} takes no values", values == []
    elif operator in _OF_ONE_VALUE:
        allowed, fits = f"a list of one string: {operator} takes exactly one", _count(values) == 1
    else:
        allowed, fits = f"a list of strings: {operator} takes at least one", _count(values) >= 1
    if not fits or not isinstance(values, list):
        raise place.refuse(values, allowed)
    for index, each in enumerate(values):
        if not isinstance(each, str):
            raise place.at(index).refuse(each, "text; quote numbers and booleans")
    return tuple(values)


def _count(values: object) -> int:
    return len(values) if isinstance(values, list) else -1


def _globs(patterns: tuple[str, ...], place: ValuePath) -> tuple[Glob, ...]:
    globs = []
    for index, pattern in enumerate(patterns):
        try:
            globs.append(Glob.parse(pattern))
        except ValueError as error:
            raise place.at(index).refuse(pattern, f"a glob such as web-* ({error})") from None
    return tuple(globs)


def _key(text: object) -> Key | None:
    """Return the key in *text*, None if it is malformed.

    It is `a`, or joint: `:a:b`, or `<ksep><vsep>a<ksep>b` with custom separators, which the peer's
    code (not its documentation) requires after a colon. No property starts with a separator, so the
    number of separators distinguishes the forms.
    """
    if not isinstance(text, str):
        return None
    bare = next((at for at, char in enumerate(text) if not _separates(char)), len(text))
    if bare == 0:
        return Key((text,)) if _is_property(text) else None
    separators = "::" if text[:bare] == ":" else text[:bare]
    if len(separators) == 3:
        separators = separators.removeprefix(":")
    if len(separators) != 2:
        return None
    parts = text[bare:].split(separators[0], MAX_PARTS)
    if len(parts) > MAX_PARTS or not all(map(_is_property, parts)):
        return None
    return Key(tuple(parts), separators[1])


def _separates(char: str) -> bool:
    return not char.isalnum() and char not in "/."


def _is_property(text: str) -> bool:
    field, slash, rest = text.removeprefix("pod/").partition("/")
    return bool(rest) if field in _MAPS else field in _SINGLE and not slash
