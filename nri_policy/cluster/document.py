"""Reading of plain values (JSON, YAML) into typed documents: one clear error with its path.

Rule 1: whatever comes from outside passes here before it becomes a type of this package.
Rule 2: an error names the place as a reader finds it: `nodes[3].status.allocatable.cpu`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, TypeVar

import msgspec
from msgspec import Raw

from nri_policy.units import MAX_AMOUNT, parse_bytes, parse_cpu
from nri_policy.wording import did_you_mean, quoted

CPU = "cpu"
PODS = "pods"

Wire = str | int | float  # a quantity as documents have it
Amounts = dict[str, int]  # resource -> amount: CPU in milli, all else absolute

_Kind = TypeVar("_Kind")
_MESSAGE = re.compile(r"(?P<text>.*?)(?: - at `(?P<key>key in )?\$(?P<path>.*)`)?", re.DOTALL)
_UNKNOWN = re.compile(r"Object contains unknown field `(?P<field>.*)`", re.DOTALL)


class DocumentError(ValueError):
    """A document was refused: the path of the field, empty for the whole of it, and what."""

    def __init__(self, path: str, text: str) -> None:
        super().__init__(path, text)
        self.path = path
        self.text = text

    def __str__(self) -> str:
        return f"{self.path}: {self.text}" if self.path else self.text


def convert(value: object, kind: type[_Kind], path: str) -> _Kind:
    """Return *value*, or the JSON text of one, as *kind*.

    Raises DocumentError with the path of what does not fit.
    """
    try:
        if isinstance(value, Raw):
            return msgspec.json.decode(value, type=kind)
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        if isinstance(value, Raw):
            value = msgspec.json.decode(value)
        match = _MESSAGE.fullmatch(str(error))
        assert match is not None  # the pattern matches every text
        place = (path + _name_keys(match["path"] or "", value)).removeprefix(".")
        unknown = _UNKNOWN.fullmatch(match["text"])
        if unknown is None:
            text = match["text"].replace("`", "")
            raise DocumentError(place, text[0].lower() + text[1:]) from None
        hint = did_you_mean(unknown["field"], _fields_at(kind))
        raise DocumentError(join(place, unknown["field"]), f"unknown field{hint}") from None


@lru_cache(maxsize=4096)  # each pod is read by the same paths, which are needed in errors only
def join(path: str, key: str | int) -> str:
    """Return the path of an entry (by number) or a field below *path*."""
    if isinstance(key, int):
        return f"{path}[{key}]"
    name = key if re.fullmatch(r"[A-Za-z0-9_./-]{1,63}", key) else quoted(key)
    return f"{path}.{name}" if path else name


def parse_amount(resource: str, value: Wire, path: str) -> int:
    """Return a quantity of *resource*: CPU in milli, all else absolute, rounded up.

    Raises DocumentError for what is no quantity, for negative and for absurdly large ones.
    """
    try:
        return _parsed(resource == CPU, value)
    except ValueError as error:
        raise DocumentError(path, str(error)) from None


@lru_cache(maxsize=4096, typed=True)  # pods ask for the same amounts, again and again
def _parsed(is_cpu: bool, value: Wire) -> int:
    return parse_cpu(value) if is_cpu else parse_bytes(value)


def parse_amounts(values: Mapping[str, Wire] | None, path: str) -> Amounts:
    """Return the quantities of a pod; raises DocumentError, also for negative ones."""
    amounts = {}
    for resource, value in (values or {}).items():
        try:
            amounts[resource] = _parsed(resource == CPU, value)
        except ValueError as error:
            raise DocumentError(join(path, resource), str(error)) from None
    return amounts


def parse_supply(values: Mapping[str, Wire] | None, path: str) -> Amounts:
    """Return the quantities that a node or zone offers: negative ones as 0, huge ones capped.

    A node may report a negative amount: more is reserved than there is.
    Raises DocumentError for what is no quantity.
    """
    amounts = {}
    for resource, value in (values or {}).items():
        if isinstance(value, str) and value.startswith("-"):
            parse_amount(resource, value[1:], join(path, resource))
            amounts[resource] = 0
        elif isinstance(value, int | float) and value < 0:
            amounts[resource] = 0
        elif isinstance(value, int) and value > MAX_AMOUNT:
            amounts[resource] = MAX_AMOUNT
        else:
            amounts[resource] = parse_amount(resource, value, join(path, resource))
    return amounts


def _name_keys(path: str, value: object) -> str:
    """Return *path* with the keys of maps, which msgspec writes as `[...]`, where one is found.

    A map is entered at the first key that is not a string, or whose value is not like the others.
    """
    parts = re.findall(r"\.[^.\[]+|\[\d+\]|\[\.\.\.\]", path)
    out = ""
    for part in parts:
        if part == "[...]" and isinstance(value, Mapping):
            odd = [key for key, each in value.items() if not isinstance(each, str)]
            key = next(iter(odd), None)
            out += f"[{quoted(key)}]" if key is not None else part
            value = value.get(key) if key is not None else None
        else:
            out += part
            if isinstance(value, Mapping):
                value = value.get(part.removeprefix("."))
            elif isinstance(value, list) and part[0] == "[":
                value = value[int(part[1:-1])]
    return out


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
