"""The JSON form of documents: plain values, texts, and schemas.

Owns what a set of CPUs or nodes looks like: the kernel's list format.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec

from nri_policy.foundation.cpuset import CPUSet
from nri_policy.foundation.mismatch import json_problem

_T = TypeVar("_T")


def plain(document: object) -> Any:
    """Return a document as values that JSON and YAML know."""
    return json.loads(encode(document))


def encode(document: object) -> str:
    """Return a document as a JSON text.

    It is ASCII: names from sysfs may hold bytes that are no UTF-8.
    """
    return json.dumps(msgspec.to_builtins(document, enc_hook=_to_plain, str_keys=True))


def decode(text: str, kind: type[_T]) -> _T:
    """Return the document in a JSON text; ValueError where it is of another kind."""
    return convert(json.loads(text), kind)


def convert(values: object, kind: type[_T]) -> _T:
    """Return the document that plain values are; ValueError where they are of another kind."""
    try:
        return msgspec.convert(values, kind, dec_hook=_from_plain)
    except msgspec.ValidationError as error:
        raise ValueError(json_problem(error, values)) from error


def schemas(kinds: Sequence[Any]) -> tuple[tuple[dict[str, Any], ...], dict[str, Any]]:
    """Return the JSON schema of each of *kinds*, and of what they refer to, by name."""
    return msgspec.json.schema_components(
        kinds, schema_hook=_schema_of, ref_template="#/$defs/{name}"
    )


def _to_plain(value: object) -> object:
    if isinstance(value, CPUSet):
        return str(value)
    raise NotImplementedError(f"{type(value).__name__} has no place in a document")


def _from_plain(kind: type, value: Any) -> object:
    if kind is CPUSet and isinstance(value, str):
        return CPUSet.parse(value)
    raise NotImplementedError(f"{kind.__name__} has no place in a document")


def _schema_of(kind: type) -> dict[str, Any]:
    if kind is CPUSet:
        return {"type": "string", "description": "CPUs or nodes in the kernel's list format: 0-3,8"}
    raise NotImplementedError(f"{kind.__name__} has no place in a document")
