"""Reading of plain values (JSON, YAML) into typed documents: one clear error with its path.

Rule 1: whatever comes from outside passes here before it becomes a type of this package.
Rule 2: an error names the place as a reader finds it: `nodes[3].status.allocatable.cpu`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, TypeVar, get_args, get_origin

import msgspec
from msgspec import Raw

from nri_policy.foundation.mismatch import MismatchError, find_mismatch, unknown_field
from nri_policy.foundation.units import (
    BILLIONTHS,
    MAX_AMOUNT,
    format_bytes,
    format_cpu,
    parse_bytes,
    parse_cpu,
    parse_exact,
)
from nri_policy.foundation.wording import did_you_mean, quoted

CPU = "cpu"
PODS = "pods"
_OF_BYTES = ("memory", "ephemeral-storage", "storage")
TRUE = ("1", "t", "T", "TRUE", "true", "True")  # Go's strconv.ParseBool
FALSE = ("0", "f", "F", "FALSE", "false", "False")

Object = dict[str, Any]  # an object of Kubernetes as plain values
Wire = str | int | float  # a quantity as documents have it
Amounts = dict[str, int]  # resource -> amount: CPU in milli, all else absolute
Offered = tuple[tuple[str, Wire], ...]  # resources and amounts of a node, as its document has them

_Kind = TypeVar("_Kind")


class DocumentError(MismatchError):
    """A document of a cluster was refused."""

    def below(self, path: str) -> DocumentError:
        """Return the same error of a document whose place is *path*."""
        return DocumentError(self.path_below(path), self.text)


def convert(value: object, kind: type[_Kind], path: str) -> _Kind:
    """Return *value*, or the JSON text of one, as *kind*.

    Raises DocumentError with the path of what does not fit.
    """
    try:
        if isinstance(value, Raw):
            return msgspec.json.decode(value, type=kind)
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        below, text = find_mismatch(error, plain(value))
        problem = DocumentError(below, text).below(path)
        unknown = unknown_field(text)
        if unknown is None:
            raise problem from None
        hint = did_you_mean(unknown, _fields_at(kind))
        raise DocumentError(join(problem.path, unknown), f"unknown field{hint}") from None


def fields_of(document: type[msgspec.Struct]) -> dict[str, Any]:
    """Return what is read of such documents, as `native._json_fields` takes it."""
    return {each.encode_name: _fields_in(each.type) for each in msgspec.structs.fields(document)}


def _fields_in(kind: Any) -> dict[str, Any] | None:
    """Return the fields of a document in a value of *kind*; None for other values."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return fields_of(kind)
    inner = () if get_origin(kind) is dict else get_args(kind)
    return next(filter(None, map(_fields_in, inner)), None)


def plain(value: object) -> Any:
    """Return *value*, or what the JSON text of one holds; None if a number there is too large."""
    if not isinstance(value, Raw):
        return value
    try:
        return msgspec.json.decode(value)
    except msgspec.ValidationError:
        return None


@lru_cache(maxsize=4096)  # each pod is read by the same paths, which are needed in errors only
def join(path: str, key: str | int) -> str:
    """Return the path of an entry (by number) or a field below *path*."""
    if isinstance(key, int):
        return f"{path}[{key}]"
    name = key if re.fullmatch(r"[A-Za-z0-9_./-]{1,63}", key) else quoted(key)
    return f"{path}.{name}" if path else name


def each_at(values: Iterable[_Kind] | None, path: str) -> Iterator[tuple[_Kind, str]]:
    """Yield the entries of a list at *path*, each with its own path; none if there is no list."""
    return ((each, join(path, number)) for number, each in enumerate(values or ()))


def with_place(pod: Amounts) -> Amounts:
    """Return what a pod requests with the place that it takes among the node's `pods`."""
    return {**pod, PODS: pod.get(PODS, 0) + 1}


def format_amount(resource: str, amount: int) -> str:
    """Return an amount as people read it: `1500m` of cpu, `16 GiB` of memory, `3`."""
    if resource == CPU:
        return format_cpu(amount)
    return format_bytes(amount) if is_bytes(resource) else str(amount)


def is_bytes(resource: str) -> bool:
    """Return whether a resource is counted in bytes."""
    return resource in _OF_BYTES or resource.startswith("hugepages-")


def parse_amount(resource: str, value: Wire, path: str) -> int:
    """Return a quantity of *resource*: CPU in milli, all else absolute, rounded up.

    Raises DocumentError for text that is no quantity, and for negative or huge amounts.
    """
    try:
        return _parsed(resource == CPU, value)
    except ValueError as error:
        raise DocumentError(path, str(error)) from None


@lru_cache(maxsize=4096, typed=True)  # pods ask for the same amounts, again and again
def _parsed(is_cpu: bool, value: Wire) -> int:
    return parse_cpu(value) if is_cpu else parse_bytes(value)


@lru_cache(maxsize=4096, typed=True)
def _check_whole(value: Wire) -> None:
    """Raise ValueError for a quantity that is no whole number."""
    if parse_exact(value) % BILLIONTHS:
        raise ValueError(f"{quoted(value)} is not a whole number, such as 1 or 8")


def parse_amounts(values: Mapping[str, Wire] | None, path: str) -> Amounts:
    """Return the quantities of a pod; raises DocumentError, also for negative ones.

    Fractions of an extended resource are refused, as the API server does.
    """
    amounts = {}
    for resource, value in (values or {}).items():
        try:
            amounts[resource] = _parsed(resource == CPU, value)
            if "/" in resource and "kubernetes.io/" not in resource:
                _check_whole(value)
        except ValueError as error:
            raise DocumentError(join(path, resource), str(error)) from None
    return amounts


@lru_cache(maxsize=4096)  # nodes offer the same amounts, again and again
def parse_supply(offered: Offered) -> Amounts:
    """Return the quantities that a node offers, huge ones capped.

    Equal ones are one object. Raises DocumentError for what is no quantity, and for negative ones,
    which the API server refuses, too.
    """
    return {
        resource: MAX_AMOUNT
        if isinstance(value, int) and value > MAX_AMOUNT
        else parse_amount(resource, value, join("", resource))
        for resource, value in offered
    }


def _fields_at(kind: Any) -> list[str]:
    """Return the names of the fields of *kind* and of the documents in it."""
    names: list[str] = []
    waiting, seen = [kind], set()
    while waiting:
        each = waiting.pop()
        if each in seen:
            continue
        seen.add(each)
        if isinstance(each, type) and issubclass(each, msgspec.Struct):
            for field in msgspec.structs.fields(each):
                names.append(field.encode_name)
                waiting.append(field.type)
        else:
            waiting.extend(getattr(each, "__args__", ()))
    return names
