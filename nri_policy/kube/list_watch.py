"""Lists all objects of a kind and then watches their changes, without a gap."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from http.client import GONE

import msgspec
from msgspec import Raw, Struct

from nri_policy.foundation.clock import SYSTEM_CLOCK, Clock
from nri_policy.foundation.mismatch import JSON_ERRORS
from nri_policy.kube.client import Client, ObjectKind, Page
from nri_policy.kube.errors import APIError

_PAUSE = 1.0  # seconds between two watches, in case the server ends each at once


class _Metadata(Struct, rename="camel"):
    resource_version: str


class _Object(Struct):
    metadata: _Metadata


async def list_and_watch(
    client: Client,
    kind: ObjectKind,
    *,
    namespace: str = "",
    fields: str = "",
    clock: Clock = SYSTEM_CLOCK,
) -> AsyncGenerator[Page | tuple[str, Raw]]:
    """Yield all objects of a kind, or those that *fields* select, by pages; then each change.

    Changes are `ADDED`, `MODIFIED` or `DELETED` with the object. A watch that the server ends
    continues at the same revision; if the server no longer has it, all objects are listed again.
    Raises APIError: then changes may be missing, and the caller must start again.
    """
    while True:
        revision: str | None = None
        async with aclosing(client.pages(kind, namespace=namespace, fields=fields)) as pages:
            async for page in pages:
                revision = page.revision
                yield page
        while revision is not None:
            events = client.watch(kind, revision, namespace=namespace, fields=fields)
            try:
                async with aclosing(events):
                    async for change, about in events:
                        revision = _revision(about)
                        if change != "BOOKMARK":
                            yield change, about
            except APIError as error:
                if error.code != GONE:
                    raise
                revision = None
            await clock.sleep(_PAUSE)


def _revision(found: Raw) -> str:
    try:
        return msgspec.json.decode(found, type=_Object).metadata.resource_version
    except JSON_ERRORS as error:
        raise APIError("the answer is malformed: it has no resourceVersion") from error
