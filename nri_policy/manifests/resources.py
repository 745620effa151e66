"""Requests and limits of containers and pods in manifests.

Owns reading a part of a manifest as the API server would: quantities, names, requests defaulted
from limits.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

import msgspec

from nri_policy.foundation.mismatch import find_mismatch
from nri_policy.foundation.units import parse_bytes, parse_cpu
from nri_policy.foundation.wording import quoted

_Kind = TypeVar("_Kind")

DNS_LABEL = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
DNS_SUBDOMAIN = r"^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$"

# RFC 1123, as the API server applies it.
Label = Annotated[str, msgspec.Meta(pattern=DNS_LABEL, max_length=63)]
Subdomain = Annotated[str, msgspec.Meta(pattern=DNS_SUBDOMAIN, max_length=253)]


_PATTERN = "matching regex"
_STEP = re.compile(r"(\w+)|\[(\d+)\]")


class ManifestError(Exception):
    """A manifest that the API server would refuse; its text names the field."""


class Amounts(dict[str, int]):
    """Resource name → amount: `cpu` in milli-CPU, memory and hugepages in bytes, others counted."""


class Texts(dict[str, str]):
    """Labels or annotations."""


class _Struct(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A part of a manifest; unknown fields are skipped."""


class ResourceChange(_Struct, frozen=True):
    """The amounts that a resize changes; all others stay."""

    requests: Amounts = Amounts()
    limits: Amounts = Amounts()


class ContainerClaim(_Struct, frozen=True):
    """A resource claim of the pod that a container uses: all of it, or one of its requests."""

    name: Label
    request: str = ""


class ResourceRequirements(ResourceChange, frozen=True):
    """Requests and limits of a container, and the resource claims that it uses."""

    claims: list[ContainerClaim] = []

    def __post_init__(self) -> None:
        # A request that is not given is the limit (API server's defaulting of pods).
        msgspec.structs.force_setattr(self, "requests", Amounts(self.limits | self.requests))
        for name, limit in self.limits.items():
            requested = self.requests[name]
            if requested > limit:
                raise ValueError(f"the request of {name} is more than its limit")
            if requested != limit and name not in {"cpu", "memory", "ephemeral-storage"}:
                raise ValueError(f"request and limit of {name} must be the same")
        for name in self.requests:
            if name.startswith("hugepages-") and name not in self.limits:
                raise ValueError(f"{name} needs a limit")

    def changed(self, change: ResourceChange) -> ResourceRequirements:
        """Return these resources with what *change* names replaced. Raises ValueError."""
        return ResourceRequirements(
            requests=Amounts(self.requests | change.requests),
            limits=Amounts(self.limits | change.limits),
            claims=self.claims,
        )


class PodResources(ResourceChange, frozen=True):
    """Pod-level resources (KEP-2837); the pod's spec gives the defaults of requests."""

    def __post_init__(self) -> None:
        for name in self.requests | self.limits:
            if name not in {"cpu", "memory"} and not name.startswith("hugepages-"):
                raise ValueError(f"a pod as a whole has cpu, memory and hugepages, not {name}")


def read_part(value: object, kind: type[_Kind]) -> _Kind:
    """Return a part of a manifest as *kind*. Raises ManifestError, naming the field in *value*."""
    try:
        return msgspec.convert(value, kind, dec_hook=_convert)
    except msgspec.ValidationError as error:
        field, problem = find_mismatch(error, value)
        if _PATTERN in problem:
            dots = ", '.'" if DNS_SUBDOMAIN in problem else ""
            problem = (
                f"{quoted(_at(value, field))} is not a name of lower-case letters, digits{dots} and"
                " '-', with a letter or digit at both ends"
            )
        raise ManifestError(f"{field}: {problem}" if field else problem) from error


def _at(value: Any, field: str) -> object:
    """Return the value at a path of msgspec's, None where a step of it has no name."""
    for name, index in _STEP.findall(field):
        try:
            value = value[int(index)] if index else value[name]
        except (LookupError, TypeError):
            return None
    return value


def _convert(kind: type, value: object) -> Amounts | Texts:
    """Convert what msgspec does not know: the maps whose errors must name the key."""
    if not isinstance(value, Mapping):
        raise ValueError(f"{quoted(value)} is not a map")  # noqa: TRY004 - msgspec wants ValueError
    return (_amounts if kind is Amounts else _texts)(value)


def _amounts(quantities: Mapping[object, Any]) -> Amounts:
    amounts, problems = Amounts(), []
    for name, quantity in quantities.items():
        try:
            parse = parse_cpu if name == "cpu" else parse_bytes
            amounts[str(name)] = parse(quantity)
        except ValueError as error:
            problems.append(f"{name}: {error}")
    if problems:
        raise ValueError("; ".join(problems))
    return amounts


def _texts(values: Mapping[object, object]) -> Texts:
    for key, value in values.items():
        if not (isinstance(key, str) and isinstance(value, str)):
            raise ValueError(  # noqa: TRY004 - msgspec wants ValueError
                f"{key}: {quoted(value)} is not a string; put it in quotes"
            )
    return Texts(values)  # type: ignore[arg-type]  # just checked
