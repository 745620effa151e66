"""What objects of the API server have in common.

Fields without a name here are skipped, so objects of later versions of the API can be read, too.
"""

from __future__ import annotations

from msgspec import Struct


class Part(Struct, frozen=True, kw_only=True, rename="camel"):
    """A part of an object."""


class Identity(Part, frozen=True):
    """The identity of an object, and the revision at which it was read, from its `metadata`."""

    name: str
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""


class APIObject(Part, frozen=True):
    """An object of any kind."""

    metadata: Identity
